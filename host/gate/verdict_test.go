package gate

import (
	"reflect"
	"testing"

	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/proc"
	"sallyport.dev/relay"
)

// good is a sandbox whose gate opens.
func good() Facts {
	parent, child := proc.ID{PID: 100, Start: 5}, proc.ID{PID: 102, Start: 7}
	return Facts{
		Session: "s", Epoch: 3, Parent: parent, Closed: sandbox.Proven, Demanded: sandbox.Proven,
		Signed: true, Peer: parent,
		Proof: Proof{Session: "s", Epoch: 3, Key: []byte("k"), Supervisor: parent, Sandbox: sandbox.Process{PID: 102, Start: 7, Outer: 101, NetNS: "4:9"}},
		Child: child, Below: true, OwnNetNS: "4:1", ChildNetNS: "4:9", Interfaces: []string{"lo"}, NoRoutes: true,
		Record:  &Record{Session: "s", Epoch: 3, NetNS: "4:9", Probe: Probe{Clear: true, Interfaces: []string{"lo"}}},
		Control: true,
	}
}

func TestDecide(t *testing.T) {
	known := Proof{Key: []byte("k")}.Fingerprint()
	cases := []struct {
		name   string
		change func(*Facts)
		want   Reason
	}{
		{"all fits", func(*Facts) {}, Opens},
		{"again with its key", func(f *Facts) { f.Key = known }, Opens},
		{"nothing is known", func(f *Facts) { *f = Facts{} }, ProofForged},
		{"no epoch", func(f *Facts) { f.Epoch, f.Proof.Epoch = 0, 0 }, ProofForged},
		{"signature", func(f *Facts) { f.Signed = false }, ProofForged},
		{"another session", func(f *Facts) { f.Proof.Session = "t" }, ProofElsewhere},
		{"an earlier epoch", func(f *Facts) { f.Proof.Epoch = 2 }, ProofElsewhere},
		{"another process at the socket", func(f *Facts) { f.Peer.PID = 200 }, ParentUnknown},
		{"the same pid, used again", func(f *Facts) { f.Peer.Start = 6 }, ParentUnknown},
		{"no process expected", func(f *Facts) { f.Parent, f.Peer = proc.ID{}, proc.ID{} }, ParentUnknown},
		{"it names another process", func(f *Facts) { f.Proof.Supervisor.PID = 1 }, ParentPretends},
		{"it names another start", func(f *Facts) { f.Proof.Supervisor.Start = 1 }, ParentPretends},
		{"another key", func(f *Facts) { f.Key = "other" }, KeyChanged},
		{"the child is gone", func(f *Facts) { f.Child = proc.ID{} }, ChildUnknown},
		{"the child's pid was used again", func(f *Facts) { f.Child.Start = 8 }, ChildUnknown},
		{"no child", func(f *Facts) { f.Child, f.Proof.Sandbox = proc.ID{}, sandbox.Process{} }, ChildUnknown},
		{"somebody else's child", func(f *Facts) { f.Below = false }, ChildUnknown},
		{"the host's network", func(f *Facts) { f.ChildNetNS = "4:1" }, NamespaceShared},
		{"another network than proven", func(f *Facts) { f.ChildNetNS = "4:8" }, NamespaceChanged},
		{"namespace not readable", func(f *Facts) { f.ChildNetNS = "" }, NetworkNotSeen},
		{"own namespace not readable", func(f *Facts) { f.OwnNetNS = "" }, NetworkNotSeen},
		{"interfaces not readable", func(f *Facts) { f.Interfaces = nil }, NetworkNotSeen},
		{"an interface", func(f *Facts) { f.Interfaces = []string{"lo", "eth0"} }, InterfacesOpen},
		{"a kernel with tunnels", func(f *Facts) {
			f.Interfaces, f.Record.Probe.Interfaces = []string{"lo", "tunl0", "sit0"}, []string{"lo", "sit0", "tunl0"}
		}, Opens},
		{"a tunnel and an interface", func(f *Facts) { f.Interfaces = []string{"lo", "tunl0", "tun0"} }, InterfacesOpen},
		{"a tunnel without lo", func(f *Facts) { f.Interfaces = []string{"tunl0"} }, InterfacesOpen},
		{"a route", func(f *Facts) { f.NoRoutes = false }, InterfacesOpen},
		{"another interface alone", func(f *Facts) { f.Interfaces = []string{"eth0"} }, InterfacesOpen},
		{"no record", func(f *Facts) { f.Record = nil }, RecordMissing},
		{"record of another session", func(f *Facts) { f.Record.Session = "t" }, RecordElsewhere},
		{"record of another epoch", func(f *Facts) { f.Record.Epoch = 4 }, RecordElsewhere},
		{"record from another network", func(f *Facts) { f.Record.NetNS = "4:1" }, NamespaceChanged},
		{"probe not readable", func(f *Facts) { f.Record.Probe = Probe{} }, ProbeUnclear},
		{"the guest sees more", func(f *Facts) { f.Record.Probe.Interfaces = []string{"lo", "tun0"} }, InterfacesOpen},
		{"the guest sees a route", func(f *Facts) { f.Record.Probe.Routes = 1 }, InterfacesOpen},
		{"something answered", func(f *Facts) { f.Record.Probe.Answered = []string{"tcp 169.254.169.254:80"} }, ProbeAnswered},
		{"only asserted", func(f *Facts) { f.Closed = sandbox.Asserted }, DriverTooOpen},
		{"asserted, with consent", func(f *Facts) { f.Closed, f.Demanded = sandbox.Asserted, sandbox.Asserted }, Opens},
		{"no sandbox", func(f *Facts) { f.Closed = sandbox.Open }, DriverTooOpen},
		{"no sandbox, and the user's word", func(f *Facts) { f.Closed, f.Insecure, f.ChildNetNS = sandbox.Open, true, f.OwnNetNS }, Opens},
		{"no sandbox, and somebody else's child", func(f *Facts) { f.Closed, f.Insecure, f.Below = sandbox.Open, true, false }, ChildUnknown},
		{"the user's word opens no network", func(f *Facts) { f.Insecure, f.Interfaces = true, []string{"lo", "eth0"} }, InterfacesOpen},
		{"control says no", func(f *Facts) { f.Control = false }, ControlRefused},
	}
	seen := make(map[Reason]bool)
	for _, c := range cases {
		f := good()
		c.change(&f)
		if got := Decide(f); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		seen[c.want] = true
	}
	for r := range sentences {
		if !seen[r] {
			t.Errorf("no case gives %s", r)
		}
	}
}

// Every fact that opens a gate is needed: with any of them forgotten it stays shut. Key and Insecure are those that a first, closed sandbox
// does not have.
func TestDecideNeedsEveryFact(t *testing.T) {
	v := reflect.ValueOf(good())
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if name == "Key" || name == "Insecure" || name == "Demanded" {
			continue
		}
		f := good()
		reflect.ValueOf(&f).Elem().Field(i).SetZero()
		if Decide(f) == Opens {
			t.Errorf("the gate opens without %s", name)
		}
	}
}

func TestReadProbe(t *testing.T) {
	closed, err := relay.AppendProbe(nil, &relay.Probe{Interfaces: []string{"lo"}, Asked: []relay.Asked{{How: "tcp", To: "192.0.2.1:443", Got: relay.GotUnreachable}}})
	if err != nil {
		t.Fatal(err)
	}
	if p := ReadProbe(closed); !reflect.DeepEqual(p, Probe{Clear: true, Interfaces: []string{"lo"}}) {
		t.Errorf("%+v", p)
	}
	open, err := relay.AppendProbe(nil, &relay.Probe{Interfaces: []string{"eth0", "lo"}, Routes: 2, Asked: []relay.Asked{{How: "dns", To: "192.0.2.1:53", Got: relay.GotReply}}})
	if err != nil {
		t.Fatal(err)
	}
	if p := ReadProbe(open); !p.Clear || len(p.Interfaces) != 2 || p.Routes != 2 || len(p.Answered) != 1 {
		t.Errorf("%+v", p)
	}
	for _, bad := range []string{"", "{}", "[]", `{"interfaces":["lo"],"routes":0,"asked":[]}`} {
		if ReadProbe([]byte(bad)).Clear {
			t.Errorf("%q is clear", bad)
		}
	}
}
