package gate

import "github.com/go-json-experiment/json"

// probeJSON is the probe of a gate record: what the first process of the sandbox saw and tried. docs/relay.md describes it.
//
//	{"interfaces":["lo"],"tried":["tcp 1.1.1.1:443", ...],"answered":[]}
//
// answered lists those of tried from which anything but "unreachable" came back.
type probeJSON struct {
	Interfaces []string `json:"interfaces"`
	Tried      []string `json:"tried"`
	Answered   []string `json:"answered"`
}

// ReadProbe reads a probe. One that cannot be read, or that tried nothing, is unclear, and keeps the gate shut.
func ReadProbe(raw []byte) Probe {
	var p probeJSON
	if err := json.Unmarshal(raw, &p, json.RejectUnknownMembers(true)); err != nil || len(p.Tried) == 0 {
		return Probe{}
	}
	return Probe{Clear: true, Interfaces: p.Interfaces, Answered: p.Answered}
}
