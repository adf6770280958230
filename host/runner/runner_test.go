package runner

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/host/link/linktest"
	"sallyport.dev/relay"
	"sallyport.dev/relay/hostside"
)

func TestCall(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	p := b.call()
	k := x.arrived(b.ID, p.ID())
	if want := string(b.record().Arguments); string(k.Record.Arguments) != want || k.Record.Tool != "echo" || k.Sent != 1 {
		t.Errorf("control got %+v", k.Record)
	}
	if !k.Journal() {
		t.Fatal("no stream")
	}
	if !k.Answer("answered", answer("done")) {
		t.Fatal("no stream")
	}
	if got := b.text(p); got != answer("done") {
		t.Errorf("the guest got %s", got)
	}
	if err := b.guest.Ack(p.ID()); err != nil {
		t.Fatal(err)
	}
	x.await("no ack", func(*linktest.View) bool { return k.Acked == 1 })
	for _, dir := range []string{"relay/claimed", "relay/out/new", "relay/out/tmp", "in/results", "in/progress", "in/tmp"} {
		if left := b.names(dir); len(left) != 0 && dir != "relay/out/tmp" {
			t.Errorf("left in %s: %v", dir, left)
		}
	}
}

func TestManySessionsAtOnce(t *testing.T) {
	x := newRig(t)
	x.echo()
	var all sync.WaitGroup
	for range 8 {
		b := x.sandbox()
		for range 8 {
			all.Go(func() {
				for range 20 {
					p, err := b.guest.Call(b.record())
					if err != nil {
						t.Error(err)
						return
					}
					r, err := p.Wait(x.context())
					if err != nil || string(r.Result) != answer("done") {
						t.Errorf("%s, %v", r.Result, err)
						return
					}
					if err := b.guest.Ack(p.ID()); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
	x.await("not every ack came", func(v *linktest.View) bool {
		acks := 0
		for _, f := range v.Frames() {
			if f.GetAck() != nil {
				acks++
			}
		}
		return v.Calls() == 8*8*20 && acks >= 8*8*20
	})
}

func TestJournaledRecordsAreGivenUp(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	c := b.record()
	c.Arguments = []byte(`{"a":"` + strings.Repeat("x", 100_000) + `"}`)
	p, err := b.guest.Call(c)
	if err != nil {
		t.Fatal(err)
	}
	k := x.arrived(b.ID, p.ID())
	if held := x.runner.Health().Counters["held_bytes"]; held < 100_000 {
		t.Errorf("holds %d bytes", held)
	}
	k.Journal()
	x.eventually("bytes are held", func() bool { return x.runner.held.Load() == 0 })
	names := b.names("relay/claimed")
	if len(names) != 1 || !strings.HasSuffix(names[0], "."+k.Digest.String()) {
		t.Fatalf("claimed/ has %v", names)
	}
	if info, err := os.Stat(filepath.Join(b.Folder.Root, "relay/claimed", names[0])); err != nil || info.Size() != 0 {
		t.Errorf("%d bytes, %v", info.Size(), err)
	}
	k.Answer("answered", answer("done"))
	b.text(p)
	b.inside("relay/claimed/"+names[0], false)
}

func TestLongResults(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	for _, size := range []int{linktest.ChunkBytes - 200, linktest.ChunkBytes, 3*linktest.ChunkBytes + 17, relay.MaxInline - 100} {
		p := b.call()
		want := answer(strings.Repeat("x", size))
		x.arrived(b.ID, p.ID()).Answer("answered", want)
		if got := b.text(p); got != want {
			t.Errorf("%d bytes became %d", len(want), len(got))
		}
	}
	p := b.call()
	k := x.arrived(b.ID, p.ID())
	x.control.Push(&sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Result{Result: &sallyportv1.CallResult{
		Session: b.ID, Epoch: 1, RecordId: k.Record.ID, Record: make([]byte, relay.MaxResult+1),
	}}})
	wantText(t, b.text(p), "too large", "(oversize)", "It did run")
}

func TestResultFiles(t *testing.T) {
	x := newRig(t)
	b, other := x.sandbox(), x.sandbox()
	file := linktest.File(bytes.Repeat([]byte("0123456789abcdef"), 2*linktest.ChunkBytes/16+1))
	sum := sha256.Sum256(file)
	name := "in/files/" + hex.EncodeToString(sum[:])
	for _, b := range []*sandbox{b, b, other} {
		p := b.call()
		x.arrived(b.ID, p.ID()).Answer("answered", answer("in a file"), file)
		if got := b.text(p); got != answer("in a file") {
			t.Errorf("got %s", got)
		}
		data, err := os.ReadFile(filepath.Join(b.Folder.Root, name))
		if err != nil || !bytes.Equal(data, file) {
			t.Errorf("the file has %d bytes, %v", len(data), err)
		}
		if left := b.names("in/tmp"); len(left) != 0 {
			t.Errorf("left in tmp: %v", left)
		}
	}
}

// Two results announce the same file, and their chunks come interleaved.
func TestInterleavedFiles(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	one, two := b.call(), b.call()
	file := bytes.Repeat([]byte("abc"), linktest.ChunkBytes)
	sum := sha256.Sum256(file)
	chunks := linktest.Chunks(file)
	var frames []*sallyportv1.ControlFrame
	for _, p := range []*relay.Pending{one, two} {
		k := x.arrived(b.ID, p.ID())
		record, err := relay.AppendResult(nil, &relay.Result{ID: p.ID(), Call: k.Digest, State: "answered", Result: []byte(`{}`)})
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, &sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Result{Result: &sallyportv1.CallResult{
			Session: b.ID, Epoch: 1, RecordId: p.ID(), Record: record,
			Files: []*sallyportv1.ResultFile{{Digest: sum[:], Size: int64(len(file))}},
		}}})
	}
	for _, c := range chunks {
		frames = append(frames, c, c)
	}
	x.control.Push(frames...)
	b.text(one)
	b.text(two)
	if data, err := os.ReadFile(filepath.Join(b.Folder.In(), "files", hex.EncodeToString(sum[:]))); err != nil || !bytes.Equal(data, file) {
		t.Errorf("the file has %d bytes, %v", len(data), err)
	}
}

// What control must not send ends the stream, and leaves nothing behind.
func TestChunksThatAreNotAnnounced(t *testing.T) {
	sum := sha256.Sum256([]byte("body"))
	result := func(change func(*sallyportv1.CallResult)) *sallyportv1.ControlFrame {
		f := &sallyportv1.CallResult{Session: relay.NewID(), Epoch: 1, RecordId: relay.NewID(), ChunkedDigest: sum[:], ChunkedSize: 4}
		change(f)
		return &sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Result{Result: f}}
	}
	chunk := func(offset int64, data string) *sallyportv1.ControlFrame {
		return &sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Chunk{Chunk: &sallyportv1.Chunk{Digest: sum[:], Offset: offset, Data: []byte(data)}}}
	}
	keep := func(*sallyportv1.CallResult) {}
	for name, tc := range map[string]struct {
		frames []*sallyportv1.ControlFrame
		ok     bool
	}{
		"for a result that nobody waits for": {[]*sallyportv1.ControlFrame{result(keep), chunk(0, "bo"), chunk(2, "dy")}, true},
		"of nothing":                         {[]*sallyportv1.ControlFrame{chunk(0, "body")}, false},
		"with a gap":                         {[]*sallyportv1.ControlFrame{result(keep), chunk(1, "ody")}, false},
		"beyond the end":                     {[]*sallyportv1.ControlFrame{result(keep), chunk(0, "body!")}, false},
		"after the end":                      {[]*sallyportv1.ControlFrame{result(keep), chunk(0, "body"), chunk(4, "!")}, false},
		"empty":                              {[]*sallyportv1.ControlFrame{result(keep), chunk(0, "")}, false},
		"of other bytes":                     {[]*sallyportv1.ControlFrame{result(keep), chunk(0, "nody")}, false},
		"of a record and whole":              {[]*sallyportv1.ControlFrame{result(func(f *sallyportv1.CallResult) { f.Record = []byte(`{}`) })}, false},
		"of a record over its bound":         {[]*sallyportv1.ControlFrame{result(func(f *sallyportv1.CallResult) { f.ChunkedSize = relay.MaxResult + 1 })}, false},
		"of no digest":                       {[]*sallyportv1.ControlFrame{result(func(f *sallyportv1.CallResult) { f.ChunkedDigest = sum[:8] })}, false},
		"of a file over its bound": {[]*sallyportv1.ControlFrame{result(func(f *sallyportv1.CallResult) {
			f.Files = []*sallyportv1.ResultFile{{Digest: sum[:], Size: relay.MaxFile + 1}}
		})}, false},
		"of too many files": {[]*sallyportv1.ControlFrame{result(func(f *sallyportv1.CallResult) {
			for range maxFiles + 1 {
				f.Files = append(f.Files, &sallyportv1.ResultFile{Digest: sum[:], Size: 4})
			}
		})}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := New(Config{})
			err := (*peer)(r).Receive(tc.frames)
			if (err == nil) != tc.ok || err != nil && !errs.Is(err, errs.Invalid) {
				t.Errorf("got %v", err)
			}
			(*peer)(r).Down(errors.New("lost"))
			if r.batches.count != 0 || len(r.batches.all) != 0 {
				t.Errorf("%d bodies are kept", r.batches.count)
			}
		})
	}
}

func TestProgress(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	c := b.record()
	c.Progress = true
	p, err := b.guest.Call(c)
	if err != nil {
		t.Fatal(err)
	}
	k := x.arrived(b.ID, p.ID())
	k.Progress(1, 3, "one")
	if got := <-p.Progress(); got.Progress != 1 || got.Total != 3 || got.Message != "one" {
		t.Errorf("got %+v", got)
	}
	for n := 2.0; n <= 40; n++ {
		k.Progress(n, 0, "")
	}
	last := relay.Progress{}
	for last.Progress != 40 {
		select {
		case last = <-p.Progress():
		case <-x.context().Done():
			t.Fatalf("the newest progress is %+v", last)
		}
	}
	if last.N >= 40 {
		t.Errorf("every one of 40 in a row was published: n is %d", last.N)
	}
	k.Answer("answered", answer("done"))
	b.text(p)
	b.inside("in/progress/"+relay.ResultName(p.ID()), false)
	// A call that gave no token gets no file.
	q := b.call()
	k = x.arrived(b.ID, q.ID())
	k.Progress(1, 0, "")
	k.Answer("answered", answer("done"))
	b.text(q)
	if left := b.names("in/progress"); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestCancel(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	for why, want := range map[relay.Why]sallyportv1.CancelWhy{
		relay.WhyHarness: sallyportv1.CancelWhy_CANCEL_WHY_HARNESS, relay.WhyClosed: sallyportv1.CancelWhy_CANCEL_WHY_CLOSED,
	} {
		p := b.call()
		k := x.arrived(b.ID, p.ID())
		if err := p.Cancel(why); err != nil {
			t.Fatal(err)
		}
		x.await("no cancel", func(*linktest.View) bool { return k.Cancelled(want) })
		k.Answer("cancelled", answer("cancelled"))
		b.text(p)
	}
	// Published together, in whatever order they are listed.
	for range 50 {
		p := b.call()
		if err := p.Cancel(relay.WhyClosed); err != nil {
			t.Fatal(err)
		}
		k := x.arrived(b.ID, p.ID())
		x.await("no cancel", func(*linktest.View) bool { return len(k.Cancels) == 1 })
		k.Answer("cancelled", answer("cancelled"))
		b.text(p)
	}
	// Of a call that never was, and of another session.
	for _, session := range []string{b.ID, relay.NewID()} {
		id := relay.NewID()
		record, err := relay.AppendCancel(nil, &relay.Cancel{Session: session, Epoch: 1, ID: id, Why: relay.WhyHarness})
		if err != nil {
			t.Fatal(err)
		}
		b.publish(relay.CancelName(id), record)
		b.inside("relay/out/new/"+relay.CancelName(id), false)
	}
}

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
	if k.Sent != 1 || k.Attached != 0 {
		t.Errorf("sent %d times, attached %d", k.Sent, k.Attached)
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
	if k.Sent != 1 || k.Attached != 1 {
		t.Errorf("sent %d times, attached %d", k.Sent, k.Attached)
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

func TestFramesOfThePast(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	p := b.call()
	k := x.arrived(b.ID, p.ID())
	record, err := relay.AppendResult(nil, &relay.Result{ID: p.ID(), Call: k.Digest, State: "answered", Result: []byte(answer("old"))})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*sallyportv1.CallResult{
		{Session: b.ID, Epoch: 2, RecordId: p.ID(), Record: record},
		{Session: relay.NewID(), Epoch: 1, RecordId: p.ID(), Record: record},
		{Session: b.ID, Epoch: 1, RecordId: "../../../x", Record: record},
		{Session: b.ID, Epoch: 1, RecordId: relay.NewID(), Record: record},
	} {
		x.control.Push(&sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Result{Result: f}})
	}
	k.Answer("answered", answer("new"))
	if got := b.text(p); got != answer("new") {
		t.Errorf("got %s", got)
	}
	if late := x.runner.Health().Counters["late_results"]; late != 4 {
		t.Errorf("%d late results", late)
	}
}

func TestFramesOfOthers(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	if f := <-x.frames; f.GetWelcome() == nil {
		t.Errorf("first %v", f)
	}
	x.control.Push(&sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Origins{Origins: &sallyportv1.Origins{DenyHosts: []string{"example.org"}}}})
	if f := <-x.frames; f.GetOrigins() == nil {
		t.Errorf("got %v", f)
	}
	x.control.Push(&sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Session{Session: &sallyportv1.SessionChange{Session: b.ID, Epoch: 1, Change: "close"}}})
	if c := <-x.changes; c.GetSession() != b.ID {
		t.Errorf("got %v", c)
	}
	if err := x.runner.Send(&sallyportv1.HostFrame{Frame: &sallyportv1.HostFrame_Egress{Egress: &sallyportv1.EgressDecisions{}}}); err != nil {
		t.Fatal(err)
	}
	x.await("the frame did not arrive", func(v *linktest.View) bool {
		for _, f := range v.Frames() {
			if f.GetEgress() != nil {
				return true
			}
		}
		return false
	})
	x.control.Break(errors.New("away"))
	for range maxOther {
		if err := x.runner.Send(&sallyportv1.HostFrame{}); err != nil {
			break
		}
	}
	x.runner.otherMu.Lock()
	x.runner.other = nil
	x.runner.otherMu.Unlock()
}

func TestAddAndRemove(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	if err := x.runner.Add(b.Session); !errs.Is(err, errs.Conflict) {
		t.Errorf("added twice: %v", err)
	}
	if err := x.runner.Add(Session{ID: "x", Folder: b.Folder}); !errs.Is(err, errs.Invalid) {
		t.Errorf("an id that is none: %v", err)
	}
	if err := x.runner.Add(Session{ID: relay.NewID(), Folder: hostside.Folder{Root: t.TempDir()}}); !errs.Is(err, errs.Unavailable) {
		t.Errorf("a folder that was not made: %v", err)
	}
	p := b.call()
	k := x.arrived(b.ID, p.ID())
	x.away()
	x.runner.Remove(b.ID)
	x.runner.Remove(b.ID)
	k.Answer("answered", answer("meanwhile"))
	if err := x.runner.Open(b.ID); !errs.Is(err, errs.NotFound) {
		t.Errorf("got %v", err)
	}
	// Served again, as after a restart: the call goes on.
	if err := x.runner.Add(b.Session); err != nil {
		t.Fatal(err)
	}
	x.control.Mend()
	if got := b.text(p); got != answer("meanwhile") {
		t.Errorf("got %s", got)
	}
	x.eventually("bytes are held", func() bool { return x.runner.held.Load() == 0 })
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
	if got := <-x.exceeded; got != deep.ID {
		t.Errorf("ended %s", got)
	}
}

func TestFullResultDirectory(t *testing.T) {
	if !hostside.MayMount() {
		t.Skip("only root can mount")
	}
	x := newRig(t)
	s := x.folder()
	if err := s.Folder.Create(os.Getuid(), os.Getgid(), true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		x.runner.Remove(s.ID)
		if err := s.Folder.Remove(); err != nil {
			t.Error(err)
		}
	})
	if err := x.runner.Add(s); err != nil {
		t.Fatal(err)
	}
	b := &sandbox{rig: x, Session: s, guest: relay.NewGuest(s.Folder.In(), s.Folder.Out())}
	t.Cleanup(func() { b.guest.Close() })
	p := b.call()
	k := x.arrived(b.ID, p.ID())
	filler := filepath.Join(s.Folder.In(), "files", "filler")
	fill, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = fill.Write(make([]byte, 1<<20))
	}
	fill.Close()
	k.Answer("answered", answer(strings.Repeat("x", 10_000)))
	x.eventually("the result found room", func() bool { return x.runner.Health().Counters["undelivered"] == 1 })
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if got := b.text(p); len(got) < 10_000 {
		t.Errorf("got %s", got)
	}
	x.eventually("a result is undelivered", func() bool { return x.runner.Health().Counters["undelivered"] == 0 })
}
