package runner

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/host/link/linktest"
	"sallyport.dev/relay"
	"sallyport.dev/relay/hostside"
)

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
