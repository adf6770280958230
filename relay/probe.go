package relay

import (
	"slices"
	"strconv"

	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

// Probe is the probe member of gate.json: what the first process of a sandbox found of the network. It is the guest's word: it may keep a
// gate shut, and never opens one.
type Probe struct {
	Interfaces []string // all of them, sorted; lo alone in a closed sandbox
	Routes     int      // beyond lo
	Asked      []Asked
}

// Asked is one question to the world outside, and what came of it.
type Asked struct {
	How string // tcp, udp, dns, tcp6, udp6, metadata, …: for people
	To  string // address and port
	Got Got
}

// Got is what came of a question.
type Got string

// Outcomes. The last three are answers: bytes left the sandbox and something came back.
const (
	GotForbidden   Got = "forbidden"   // no such socket may be made here
	GotUnreachable Got = "unreachable" // the kernel knows no way
	GotSilence     Got = "silence"     // nothing came back in time
	GotRefusal     Got = "refusal"     // a reset or an ICMP refusal
	GotConnection  Got = "connection"
	GotReply       Got = "reply"
)

// Answers reports whether something outside answered.
func (g Got) Answers() bool { return g == GotRefusal || g == GotConnection || g == GotReply }

// Bounds of a probe.
const (
	maxProbeList = 256
	maxProbeText = 64
)

// Answered returns the questions that were answered, as text for a log.
func (p Probe) Answered() []string {
	var all []string
	for _, a := range p.Asked {
		if a.Got.Answers() {
			all = append(all, a.How+" "+a.To+": "+string(a.Got))
		}
	}
	return all
}

// AppendProbe appends the probe as it stands in gate.json. Errors: as [ParseProbe].
func AppendProbe(dst []byte, p *Probe) ([]byte, error) {
	if err := p.check(); err != nil {
		return dst, err
	}
	dst = append(dst, `{"interfaces":[`...)
	for i, name := range p.Interfaces {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strictjson.AppendQuote(dst, name)
	}
	dst = append(dst, `],"routes":`...)
	dst = strconv.AppendInt(dst, int64(p.Routes), 10)
	dst = append(dst, `,"asked":[`...)
	for i, a := range p.Asked {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendText(dst, `{"how":`, a.How)
		dst = appendText(dst, `,"to":`, a.To)
		dst = appendText(dst, `,"got":`, string(a.Got))
		dst = append(dst, '}')
	}
	return append(dst, `]}`...), nil
}

// ParseProbe reads a probe strictly: all members, no others, and at least one question. Errors: [errs.Invalid], [errs.Oversize].
func ParseProbe(data []byte) (Probe, error) {
	var p Probe
	m, err := probeMembers("probe", data)
	if err != nil {
		return p, err
	}
	names, asked := m.array("interfaces"), m.array("asked")
	routes := m.integer("routes")
	if err := m.done(); err != nil {
		return Probe{}, err
	}
	if routes < 0 || routes > 1<<20 {
		return Probe{}, errs.New(errs.Invalid, "probe: routes is no count")
	}
	p.Routes = int(routes)
	for raw := range strictjson.Elements(names) {
		name, ok := strictjson.Unquote(raw)
		if !ok {
			return Probe{}, errs.New(errs.Invalid, "probe: interfaces are strings")
		}
		if p.Interfaces = append(p.Interfaces, name); len(p.Interfaces) > maxProbeList {
			break
		}
	}
	for raw := range strictjson.Elements(asked) {
		q, err := probeMembers("probe asked", raw)
		if err != nil {
			return Probe{}, err
		}
		a := Asked{How: q.text("how"), To: q.text("to"), Got: Got(q.text("got"))}
		if err := q.done(); err != nil {
			return Probe{}, err
		}
		if p.Asked = append(p.Asked, a); len(p.Asked) > maxProbeList {
			break
		}
	}
	if err := p.check(); err != nil {
		return Probe{}, err
	}
	return p, nil
}

func probeMembers(kind string, data []byte) (*members, error) {
	m := &members{kind: kind}
	var err error
	if m.all, err = strictjson.Object(data, m.room[:0]); err != nil {
		return nil, errs.Wrap(errs.Invalid, kind+": "+errs.Message(err), err)
	}
	if len(m.all) > len(m.room) {
		return nil, errs.Newf(errs.Invalid, "%s: unknown members", kind)
	}
	return m, nil
}

func (p *Probe) check() error {
	switch {
	case len(p.Interfaces) > maxProbeList || len(p.Asked) > maxProbeList:
		return errs.Newf(errs.Oversize, "probe: at most %d interfaces and questions", maxProbeList)
	case len(p.Asked) == 0:
		return errs.New(errs.Invalid, "probe: nothing was asked")
	case p.Routes < 0:
		return errs.New(errs.Invalid, "probe: routes is no count")
	}
	for _, name := range p.Interfaces {
		if err := checkText("probe: an interface", name, 1, maxProbeText); err != nil {
			return err
		}
	}
	known := []Got{GotForbidden, GotUnreachable, GotSilence, GotRefusal, GotConnection, GotReply}
	for _, a := range p.Asked {
		if err := checkText("probe: how", a.How, 1, maxProbeText); err != nil {
			return err
		}
		if err := checkText("probe: to", a.To, 1, maxProbeText); err != nil {
			return err
		}
		if !slices.Contains(known, a.Got) {
			return errs.New(errs.Invalid, "probe: got is no outcome")
		}
	}
	return nil
}
