package server

import (
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
)

// Tool timeouts of harnesses lie above the hold, with time to say that a call is pending.
const (
	defaultTimeout = 120 * time.Second
	maxTimeout     = 10 * time.Minute
	answerMargin   = 30 * time.Second
)

// relayTimeout is a call's timeout_ms where the harness sets none.
func relayTimeout(p control.Profile) time.Duration {
	return min(max(defaultTimeout, p.Hold+answerMargin), maxTimeout)
}

func modelPolicy(p control.Profile) *sallyportv1.ModelPolicy {
	return &sallyportv1.ModelPolicy{Provider: p.Model.Provider, Source: p.Model.Source, Allow: p.Model.Allow}
}

func sandboxPolicy(p control.Profile) *sallyportv1.SandboxPolicy {
	s := p.Sandbox
	return &sallyportv1.SandboxPolicy{
		Driver: s.Driver, Closed: s.Closed, Workspace: s.Workspace, MemoryBytes: s.Memory, Pids: s.PIDs, Cpu: s.CPU, AllowHosts: p.Network.Allow,
		SharedAddress: p.Network.SharedAddress, ProtectedPaths: s.Protected, AllowEnvFiles: s.AllowEnvFiles, HoldMs: p.Hold.Milliseconds(),
		OnDisconnect: p.OnDisconnect,
	}
}
