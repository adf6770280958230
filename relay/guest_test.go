package relay

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sallyport.dev/errs"
)

// tree makes the directories that a host makes, and plays its part.
type tree struct {
	t       *testing.T
	in, out string
}

func newTree(t *testing.T) tree {
	t.Helper()
	x := tree{t: t, in: filepath.Join(t.TempDir(), "in"), out: filepath.Join(t.TempDir(), "out")}
	for _, dir := range []string{x.in + "/results", x.in + "/progress", x.in + "/tmp", x.out + "/tmp", x.out + "/new"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return x
}

func (x tree) guest() *Guest {
	g := NewGuest(x.in, x.out)
	x.t.Cleanup(func() {
		if err := g.Close(); err != nil {
			x.t.Error(err)
		}
	})
	return g
}

// answer publishes a result for the call's record.
func (x tree) answer(id, result string) {
	x.t.Helper()
	record, err := os.ReadFile(x.out + "/new/" + CallName(id))
	if err != nil {
		x.t.Fatal(err)
	}
	data, err := AppendResult(nil, &Result{ID: id, Call: Sum(record), State: "answered", Result: []byte(result)})
	if err != nil {
		x.t.Fatal(err)
	}
	x.publish("results/"+ResultName(id), data)
}

func (x tree) publish(name string, data []byte) {
	x.t.Helper()
	if err := Publish(x.in+"/tmp/"+filepath.Base(name), x.in+"/"+name, data); err != nil {
		x.t.Fatal(err)
	}
}

func (x tree) names(dir string) []string {
	x.t.Helper()
	entries, err := os.ReadDir(x.out + "/" + dir)
	if err != nil {
		x.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func guestCall() *Call {
	return &Call{Session: NewID(), Epoch: 1, Tool: "echo", Arguments: []byte(`{"text": "x"}`), TimeoutMS: 1000}
}

func TestGuestCall(t *testing.T) {
	x := newTree(t)
	g := x.guest()
	c := guestCall()
	p, err := g.Call(c)
	if err != nil {
		t.Fatal(err)
	}
	record, err := os.ReadFile(x.out + "/new/" + CallName(p.ID()))
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseCall(record)
	if err != nil || got.ID != p.ID() || got.Shim != g.Shim() || string(got.Arguments) != `{"text": "x"}` {
		t.Errorf("published %+v, %v", got, err)
	}
	if left := x.names("tmp"); len(left) != 0 {
		t.Errorf("left in tmp: %v", left)
	}
	x.answer(p.ID(), `{"content":[]}`)
	r, err := p.Wait(t.Context())
	if err != nil || string(r.Result) != `{"content":[]}` {
		t.Errorf("got %s, %v", r.Result, err)
	}
	if again, err := p.Wait(t.Context()); err != nil || again.ID != r.ID {
		t.Errorf("a second Wait: %v", err)
	}
}

func TestGuestManyCalls(t *testing.T) {
	x := newTree(t)
	g := x.guest()
	var all []*Pending
	for range MaxInFlight {
		p, err := g.Call(guestCall())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	for _, p := range all {
		x.answer(p.ID(), `{"id":"`+p.ID()+`"}`)
	}
	for _, p := range all {
		r, err := p.Wait(t.Context())
		if err != nil || string(r.Result) != `{"id":"`+p.ID()+`"}` {
			t.Errorf("%s: %s, %v", p.ID(), r.Result, err)
		}
	}
}

func TestGuestRefusesAResultOfAnotherCall(t *testing.T) {
	x := newTree(t)
	g := x.guest()
	for name, data := range map[string]string{
		"another digest": `{"v":1,"id":"ID","call":"` + strings.Repeat("0", 64) + `","state":"answered","result":{}}`,
		"another id":     `{"v":1,"id":"` + NewID() + `","call":"DIGEST","state":"answered","result":{}}`,
		"broken":         `{"v":1`,
		"empty":          ``,
	} {
		p, err := g.Call(guestCall())
		if err != nil {
			t.Fatal(err)
		}
		data = strings.NewReplacer("ID", p.ID(), "DIGEST", p.digest.String()).Replace(data)
		x.publish("results/"+ResultName(p.ID()), []byte(data))
		if _, err := p.Wait(t.Context()); !errs.Is(err, errs.Conflict) && !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestGuestNeverOverwrites(t *testing.T) {
	x := newTree(t)
	g := x.guest()
	c := guestCall()
	p, err := g.Call(c)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(x.out + "/new/" + CallName(p.ID()))
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	other := guestCall()
	other.ID = p.ID()
	if _, err := g.Call(other); !errs.Is(err, errs.Conflict) {
		t.Errorf("the same id again: %v", err)
	}
	after, err := os.ReadFile(x.out + "/new/" + CallName(p.ID()))
	if err != nil || string(after) != string(before) {
		t.Errorf("the record became %q (%v)", after, err)
	}
	if left := x.names("tmp"); len(left) != 0 {
		t.Errorf("left in tmp: %v", left)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) != 0 {
		t.Error("a call that was not made waits")
	}
}

func TestGuestErrors(t *testing.T) {
	x := newTree(t)
	g := x.guest()
	c := guestCall()
	c.Arguments = []byte(`{"a":1,"a":2}`)
	if _, err := g.Call(c); !errs.Is(err, errs.Invalid) {
		t.Errorf("duplicate names: %v", err)
	}
	if err := os.RemoveAll(x.out + "/new"); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Call(guestCall()); !errs.Is(err, errs.Unavailable) {
		t.Errorf("without new/: %v", err)
	}
	if err := g.Ack(NewID()); !errs.Is(err, errs.Unavailable) {
		t.Errorf("an ack without new/: %v", err)
	}
}

func TestGuestWaitEndsWithItsContext(t *testing.T) {
	x := newTree(t)
	g := x.guest()
	p, err := g.Call(guestCall())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	x.answer(p.ID(), `{}`)
	if _, err := p.Wait(t.Context()); err != nil {
		t.Errorf("a later Wait: %v", err)
	}
}

func TestGuestClose(t *testing.T) {
	x := newTree(t)
	g := x.guest()
	p, err := g.Call(guestCall())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); !errs.Is(err, errs.Unavailable) {
		t.Errorf("a wait: %v", err)
	}
	if _, err := g.Call(guestCall()); !errs.Is(err, errs.Unavailable) {
		t.Errorf("a call: %v", err)
	}
}

func TestGuestNotes(t *testing.T) {
	x := newTree(t)
	g := x.guest()
	p, err := g.Call(guestCall())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Cancel(WhyHarness); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(x.out + "/new/" + CancelName(p.ID()))
	if err != nil {
		t.Fatal(err)
	}
	if c, err := ParseCancel(data); err != nil || c.ID != p.ID() || c.Why != WhyHarness {
		t.Errorf("%+v, %v", c, err)
	}
	if err := p.Cancel(WhyDeadline); !errs.Is(err, errs.Invalid) {
		t.Errorf("a guest may not say deadline: %v", err)
	}
	for range 2 {
		id := NewID()
		if err := g.Ack(id); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(x.out + "/new/" + AckName(id)); err != nil {
			t.Error(err)
		}
		if err := g.Ack(id); !errs.Is(err, errs.Conflict) {
			t.Errorf("the same ack again: %v", err)
		}
		// A session that was resumed has a new, empty tmp/.
		if err := os.RemoveAll(x.out + "/tmp"); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(x.out+"/tmp", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Gate(&Gate{Session: NewID(), Epoch: 1, Build: "b", NetNS: "4:1", Probe: []byte(`{}`)}); err != nil {
		t.Fatal(err)
	}
	if err := g.Gate(&Gate{Session: NewID(), Epoch: 1, Build: "b", NetNS: "4:1", Probe: []byte(`{}`)}); !errs.Is(err, errs.Conflict) {
		t.Errorf("a second gate: %v", err)
	}
}

func TestReadTakesRegularFilesOnly(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("12345"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]errs.Code{"file": "", "link": errs.Invalid, "fifo": errs.Invalid, ".": errs.Invalid, "none": errs.NotFound} {
		if _, err := Read(filepath.Join(dir, name), 5); errs.CodeOf(err) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Read(file, 4); !errs.Is(err, errs.Oversize) {
		t.Errorf("over the bound: %v", err)
	}
}
