package gate

import "sallyport.dev/relay"

// ReadProbe reads the probe of a gate record. One that cannot be read is not clear, and keeps the gate shut.
func ReadProbe(data []byte) Probe {
	p, err := relay.ParseProbe(data)
	if err != nil {
		return Probe{}
	}
	return Probe{Clear: true, Interfaces: p.Interfaces, Routes: p.Routes, Answered: p.Answered()}
}
