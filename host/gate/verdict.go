// Package gate is the host's side of a sandbox's boot: every sandbox starts shut, and opens only when its parent is the one that the host
// knows, control confirmed epoch, owner and policy, and the network was seen to be closed. Whatever does not fit is torn down.
//
// The decision is a pure function ([Decide]) over facts that the kernel, the supervisor, the sandbox and control gave; it is enforced in one
// place ([Hub]). A supervisor is known by the process that the kernel names at the other end of its socket, and by a key that it made; a host
// that was restarted knows it again by both.
package gate

import (
	"fmt"
	"slices"

	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/proc"
)

// Reason says why a gate stays shut; [Opens] says that nothing stands against it.
type Reason string

// Reasons, in the order in which they are looked for.
const (
	Opens            Reason = "opens"
	ProofForged      Reason = "proof_forged"      // the signature is not over this challenge
	ProofElsewhere   Reason = "proof_elsewhere"   // for another session or epoch
	ParentUnknown    Reason = "parent_unknown"    // the process at the other end is not the one that the host expects
	ParentPretends   Reason = "parent_pretends"   // it says that it is another process than the kernel sees
	KeyChanged       Reason = "key_changed"       // another key than the one first seen
	ChildUnknown     Reason = "child_unknown"     // the sandbox's first process is gone, or another, or not below the parent
	NamespaceShared  Reason = "namespace_shared"  // the sandbox lives in the host's own network
	NamespaceChanged Reason = "namespace_changed" // another network namespace than the proof, or the sandbox itself, names
	NetworkNotSeen   Reason = "network_not_seen"  // the host could not look at the sandbox's interfaces
	InterfacesOpen   Reason = "interfaces_open"   // something beside lo, or a way to it
	RecordMissing    Reason = "record_missing"    // no gate record in time
	RecordElsewhere  Reason = "record_elsewhere"  // of another session or epoch
	ProbeUnclear     Reason = "probe_unclear"     // the probe does not say what was tried
	ProbeAnswered    Reason = "probe_answered"    // something outside answered
	DriverTooOpen    Reason = "driver_too_open"   // the driver closes less than the policy demands
	ControlRefused   Reason = "control_refused"   // or was not asked
)

// sentences are what a person reads.
var sentences = map[Reason]string{
	Opens:            "the gate opens",
	ProofForged:      "the supervisor could not prove its key",
	ProofElsewhere:   "the supervisor belongs to another session, or to an earlier start of it",
	ParentUnknown:    "the supervisor is not the process that this host started or spoke with",
	ParentPretends:   "the supervisor says that it is another process than the kernel sees",
	KeyChanged:       "the supervisor has another key than before",
	ChildUnknown:     "the sandbox's first process is gone, or is not the supervisor's",
	NamespaceShared:  "the sandbox is in this machine's own network",
	NamespaceChanged: "the sandbox is in another network namespace than its supervisor said",
	NetworkNotSeen:   "this host cannot see the sandbox's network interfaces",
	InterfacesOpen:   "the sandbox has a network interface, or a route out",
	RecordMissing:    "the sandbox's first process did not report in time",
	RecordElsewhere:  "the sandbox reported for another session, or for an earlier start of this one",
	ProbeUnclear:     "the sandbox did not say what it found of the network",
	ProbeAnswered:    "something outside answered the sandbox",
	DriverTooOpen:    "the driver closes the network less than the policy demands",
	ControlRefused:   "the control plane did not confirm the session",
}

// Sentence is what a person reads about a reason.
func (r Reason) Sentence() string {
	if s, ok := sentences[r]; ok {
		return s
	}
	return "an unknown reason"
}

// Facts are all that the decision looks at. A zero value stands for what is not known, and keeps the gate shut.
type Facts struct {
	// What the host expects.
	Session  string
	Epoch    int64
	Parent   proc.ID        // the supervisor that it started, or that asked for the session
	Key      string         // fingerprint of the key first seen; "" the first time
	Closed   sandbox.Closed // what the driver promises
	Demanded sandbox.Closed // what the policy demands
	Insecure bool           // the user's word that no sandbox is wanted

	// What the supervisor says, and the kernel about it.
	Signed bool // the signature is over this challenge
	Proof  Proof
	Peer   proc.ID // the process at the other end of the socket

	// What the host sees of the sandbox.
	Child      proc.ID  // the process that the proof names, as it is now
	Below      bool     // it descends from the supervisor
	OwnNetNS   string   // the host's own network namespace
	ChildNetNS string   // the sandbox's
	Interfaces []string // in it, nil: not seen
	NoRoutes   bool     // no route leads beyond lo

	// What the sandbox and control say.
	Record  *Record // nil: none in time
	Control bool
}

// Record is what the sandbox's first process reported.
type Record struct {
	Session string
	Epoch   int64
	NetNS   string
	Probe   Probe
}

// Probe is what a sandbox found of the network: what it tried, and what answered. What the guest says can only keep its gate shut; that the
// network is closed is what the host sees.
type Probe struct {
	Clear      bool // it could be read and says what was tried
	Interfaces []string
	Routes     int // beyond lo
	Answered   []string
}

// Decide says whether a gate opens, or the first reason why it does not.
func Decide(f Facts) Reason {
	for _, check := range []func(Facts) Reason{decideParent, decideSandbox, decideRecord, decidePolicy} {
		if r := check(f); r != Opens {
			return r
		}
	}
	return Opens
}

// decideParent is whether the supervisor is the one that the host knows; it is asked again of one that comes back.
func decideParent(f Facts) Reason {
	switch {
	case f.Session == "" || f.Epoch < 1 || !f.Signed:
		return ProofForged
	case f.Proof.Session != f.Session || f.Proof.Epoch != f.Epoch:
		return ProofElsewhere
	case f.Peer.PID <= 0 || f.Parent.PID <= 0 || f.Peer != f.Parent:
		return ParentUnknown
	case f.Proof.Supervisor != f.Peer:
		return ParentPretends
	case f.Key != "" && f.Key != f.Proof.Fingerprint():
		return KeyChanged
	}
	return Opens
}

func decideSandbox(f Facts) Reason {
	child := proc.ID{PID: f.Proof.Sandbox.PID, Start: f.Proof.Sandbox.Start}
	if child.PID <= 0 || f.Child != child || !f.Below {
		return ChildUnknown
	}
	if f.Closed == sandbox.Open {
		return Opens // nothing is promised; decidePolicy asks for the user's word
	}
	switch {
	case f.ChildNetNS == "" || f.OwnNetNS == "":
		return NetworkNotSeen
	case f.ChildNetNS == f.OwnNetNS:
		return NamespaceShared
	case f.ChildNetNS != f.Proof.Sandbox.NetNS:
		return NamespaceChanged
	case len(f.Interfaces) == 0:
		return NetworkNotSeen
	case !shut(f.Interfaces), !f.NoRoutes:
		return InterfacesOpen
	}
	return Opens
}

func decideRecord(f Facts) Reason {
	switch {
	case f.Record == nil:
		return RecordMissing
	case f.Record.Session != f.Session || f.Record.Epoch != f.Epoch:
		return RecordElsewhere
	case f.Closed == sandbox.Open:
		return Opens
	case f.Record.NetNS != f.ChildNetNS:
		return NamespaceChanged
	case !f.Record.Probe.Clear:
		return ProbeUnclear
	case !shut(f.Record.Probe.Interfaces), f.Record.Probe.Routes != 0:
		return InterfacesOpen
	case len(f.Record.Probe.Answered) > 0:
		return ProbeAnswered
	}
	return Opens
}

// fallbacks are devices that a kernel with tunnel modules puts into every new network namespace, switched off. Nobody inside may switch one
// on, and without a route nothing leads to them.
var fallbacks = []string{"tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0"}

// shut reports whether interfaces are lo and what no packet leaves by.
func shut(interfaces []string) bool {
	return slices.Contains(interfaces, "lo") && !slices.ContainsFunc(interfaces, func(name string) bool { return name != "lo" && !slices.Contains(fallbacks, name) })
}

func decidePolicy(f Facts) Reason {
	if sandbox.Meets(f.Closed, f.Demanded) != sandbox.Enough && !(f.Closed == sandbox.Open && f.Insecure) {
		return DriverTooOpen
	}
	if !f.Control {
		return ControlRefused
	}
	return Opens
}

// String is a reason with what was seen, for the log.
func (f Facts) String() string {
	return fmt.Sprintf("session %s epoch %d parent %d peer %d child %d below %t net %s own %s interfaces %v record %+v control %t",
		f.Session, f.Epoch, f.Parent.PID, f.Peer.PID, f.Child.PID, f.Below, f.ChildNetNS, f.OwnNetNS, f.Interfaces, f.Record, f.Control)
}
