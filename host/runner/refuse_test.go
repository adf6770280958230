package runner

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/host/link/linktest"
	"sallyport.dev/relay"
)

// publish puts any bytes under any name into new/.
func (b *sandbox) publish(name string, data []byte) {
	b.rig.t.Helper()
	out := b.Folder.Out()
	if err := relay.Publish(filepath.Join(out, "tmp", "raw"), filepath.Join(out, "new", name), data); err != nil {
		b.rig.t.Fatal(err)
	}
}

// result waits for a published result record.
func (b *sandbox) result(id string) relay.Result {
	b.rig.t.Helper()
	b.inside("in/results/"+relay.ResultName(id), true)
	data, err := os.ReadFile(filepath.Join(b.Folder.In(), "results", relay.ResultName(id)))
	if err != nil {
		b.rig.t.Fatal(err)
	}
	r, err := relay.ParseResult(data)
	if err != nil {
		b.rig.t.Fatal(err)
	}
	return r
}

func TestRefusals(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	record := func(change func(*relay.Call)) []byte {
		c := b.record()
		c.ID, c.Shim = relay.NewID(), relay.NewID()
		change(c)
		data, err := relay.AppendCall(nil, c)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for name, tc := range map[string]struct {
		data []byte
		want string
	}{
		"another session":   {record(func(c *relay.Call) { c.Session = relay.NewID() }), "(not_allowed)"},
		"an earlier epoch":  {record(func(c *relay.Call) { c.Epoch = 7 }), "(fenced)"},
		"another id inside": {record(func(*relay.Call) {}), "(invalid)"},
		"broken":            {[]byte(`{"v":1`), "(invalid)"},
		"empty":             {nil, "(invalid)"},
		"a newer format":    {[]byte(`{"v":2}`), "(too_old)"},
	} {
		t.Run(name, func(t *testing.T) {
			id := relay.NewID()
			if !strings.Contains(name, "inside") {
				if c, err := relay.ParseCall(tc.data); err == nil {
					id = c.ID
				}
			}
			b.publish(relay.CallName(id), tc.data)
			r := b.result(id)
			wantText(t, string(r.Result), tc.want, "Sallyport did not run", `"isError":true`)
			if r.Call != relay.Sum(tc.data) || r.State != relay.StateHost {
				t.Errorf("%+v", r)
			}
			if err := b.guest.Ack(id); err != nil {
				t.Fatal(err)
			}
			b.inside("in/results/"+relay.ResultName(id), false)
			x.await("not told to control", func(v *linktest.View) bool {
				for _, f := range v.Frames() {
					if told := f.GetRefused(); told.GetRecordId() == id {
						return string(told.GetRecordDigest()) == string(r.Call[:]) && told.GetSession() == b.ID && "("+told.GetCode()+")" == tc.want
					}
				}
				return false
			})
		})
	}
	p := b.call()
	x.arrived(b.ID, p.ID())
	x.await("", func(v *linktest.View) bool {
		if v.Calls() != 1 {
			t.Errorf("control got %d calls", v.Calls())
		}
		for _, f := range v.Frames() {
			if f.GetAck() != nil {
				t.Error("control heard of a result that it did not write")
			}
		}
		return true
	})
}

// What a guest refused by itself reaches control in the host's words; a guest that goes on and on fills no journal.
func TestGuestRefuses(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	tell := func(code errs.Code, tool string, more int64) {
		t.Helper()
		if err := b.guest.Refused(&relay.Refused{Session: b.ID, Epoch: b.Epoch, Code: code, Tool: tool, More: more}); err != nil {
			t.Fatal(err)
		}
	}
	told := func(v *linktest.View) (all []*sallyportv1.HostRefused) {
		for _, f := range v.Frames() {
			if r := f.GetRefused(); r != nil {
				all = append(all, r)
			}
		}
		return all
	}
	tell(errs.UnknownTool, "drop_all", 3)
	x.await("a refusal", func(v *linktest.View) bool {
		all := told(v)
		if len(all) == 0 {
			return false
		}
		const says = "the agent called a tool that this session does not have; its guest refused it; 3 more were refused before it and are not listed"
		if all[0].GetCode() != "unknown_tool" || all[0].GetTool() != "drop_all" || all[0].GetReason() != says {
			t.Errorf("%+v", all[0])
		}
		return true
	})
	// Of another session, and what no guest says: counted and left.
	b.publish(relay.RefusedName(relay.NewID()), []byte(`{"v":1,"session":"`+b.ID+`","epoch":1,"id":"`+relay.NewID()+`","code":"rule_denied","more":0}`))
	const many = 300
	for range many {
		tell(errs.Invalid, "", 0)
	}
	p := b.call()
	x.arrived(b.ID, p.ID()) // a good call goes on
	x.await("", func(v *linktest.View) bool {
		if n := len(told(v)); n > refusalBurst+1 {
			t.Errorf("control was told of %d refusals", n)
		}
		return true
	})
}

func TestTooManyInFlight(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	var all []*relay.Pending
	for range relay.MaxInFlight {
		all = append(all, b.call())
	}
	for _, p := range all {
		x.arrived(b.ID, p.ID())
	}
	p := b.call()
	wantText(t, b.text(p), "64 calls", "(busy)", "wait for one")
	x.arrived(b.ID, all[0].ID()).Answer("answered", answer("done"))
	b.text(all[0])
	p = b.call()
	x.arrived(b.ID, p.ID())
}

func TestTheSameIDAgain(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	p := b.call()
	id := p.ID()
	k := x.arrived(b.ID, id)
	record, err := os.ReadFile(filepath.Join(b.Folder.Root, "relay/claimed", b.names("relay/claimed")[0]))
	if err != nil {
		t.Fatal(err)
	}
	b.publish(relay.CallName(id), record)
	b.inside("relay/out/new/"+relay.CallName(id), false)
	other := bytes.Replace(record, []byte(`"echo"`), []byte(`"rm"`), 1)
	b.publish(relay.CallName(id), other)
	b.inside("relay/out/new/"+relay.CallName(id), false)
	k.Answer("answered", answer("done"))
	b.text(p)
	b.publish(relay.CallName(id), record)
	b.inside("relay/out/new/"+relay.CallName(id), false)
	if k.State().Sent != 1 || k.State().Attached != 0 {
		t.Errorf("sent %d times, attached %d", k.State().Sent, k.State().Attached)
	}
	if err := b.guest.Ack(id); err != nil {
		t.Fatal(err)
	}
	b.inside("in/results/"+relay.ResultName(id), false)
	// Read and gone: control is asked, and gives the recorded answer.
	b.publish(relay.CallName(id), record)
	if r := b.result(id); string(r.Result) != answer("done") {
		t.Errorf("got %s", r.Result)
	}
	if k.State().Sent != 1 || k.State().Attached != 1 {
		t.Errorf("sent %d times, attached %d", k.State().Sent, k.State().Attached)
	}
	if err := b.guest.Ack(id); err != nil {
		t.Fatal(err)
	}
	b.inside("in/results/"+relay.ResultName(id), false)
	b.publish(relay.CallName(id), other)
	r := b.result(id)
	wantText(t, string(r.Result), "(conflict)")
	if r.Call != relay.Sum(other) {
		t.Error("the conflict does not name the record that it refuses")
	}
}

func TestExceeded(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	other := x.sandbox()
	for i := range relay.MaxEntries + 1 {
		if err := os.Mkdir(filepath.Join(b.Folder.Out(), "new", relay.NewID()), 0o700); err != nil {
			t.Fatal(i, err)
		}
	}
	if got := <-x.exceeded; got != b.ID {
		t.Errorf("ended %s", got)
	}
	x.echo()
	other.text(other.call())
	deep := x.sandbox()
	if err := os.MkdirAll(filepath.Join(deep.Folder.Out(), "tmp", strings.Repeat("d/", 20)), 0o700); err != nil {
		t.Fatal(err)
	}
	deep.text(deep.call()) // an active session is measured within a second
	if got := <-x.exceeded; got != deep.ID {
		t.Errorf("ended %s", got)
	}
}
