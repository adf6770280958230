package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"sallyport.dev/test/rig"
)

// badEvery is how long each bad neighbour waits between two requests: three of them together send 150 a second, one after another of each kind.
const badEvery = 20 * time.Millisecond

// badInput are requests that each must be refused, in words.
var badInput = []struct {
	what   string
	params []byte
}{
	{"an unknown tool", callParams("tracker_no_such_tool", `{}`)},
	{"arguments that break the schema", callParams(readName, `{"bytes":"many"}`)},
	{"a name twice", callParams(readName, `{"bytes":1,"bytes":2}`)},
	{"arguments over the bound", callParams(readName, `{"bytes":1,"pad":"`+strings.Repeat("x", 1<<20)+`"}`)},
	{"arguments that are nested too deep", callParams(readName, `{"bytes":`+strings.Repeat("[", 200)+strings.Repeat("]", 200)+`}`)},
	{"a tool that no rule grants", callParams("tracker_add_comment", `{"project":"web","number":1,"text":"x"}`)},
}

// readName is the read's name in the sandbox.
const readName = "tracker_" + readTool

// neighbourRow measures a session's reads while three others do everything wrong, and while they are silent, in turns.
func (b *bench) neighbourRow(ctx context.Context) error {
	w, err := openPath(ctx, b.programs, 4, options{})
	if err != nil {
		return err
	}
	defer func() { b.note(w.close()) }()
	read := w.read(w.sessions[0])
	if _, err := sequential(ctx, 500, read); err != nil {
		return err
	}
	rounds, n := b.n(8, 4), b.n(500, 250)
	var quiet, beside sample
	refused := 0
	for range rounds {
		t, err := sequential(ctx, n, read)
		if err != nil {
			return err
		}
		quiet = append(quiet, t...)
		stop := misbehave(ctx, w.sessions[1:])
		t, err = sequential(ctx, n, read)
		count, bad := stop()
		if err = errors.Join(err, bad); err != nil {
			return err
		}
		refused += count
		beside = append(beside, t...)
	}
	r := ratio(beside.p99(), quiet.p99())
	b.report.add(row{
		ID: "neighbour_p99_ratio", Value: r, Unit: "ratio", N: len(beside), goal: "2",
		note: fmt.Sprintf("a read's p99 beside three sessions with bad input (%d were refused), over its p99 alone, in ms", refused),
	}.beside(ms(quiet.p99()), r))
	return nil
}

// misbehave lets sessions send bad input until stop, which says how many requests were refused, and what was not.
func misbehave(ctx context.Context, sessions []*rig.Session) (stop func() (refused int, err error)) {
	ctx, cancel := context.WithCancel(ctx)
	var (
		work   sync.WaitGroup
		mu     sync.Mutex
		count  int
		failed error
	)
	for i, s := range sessions {
		work.Go(func() {
			tick := time.NewTicker(badEvery)
			defer tick.Stop()
			for n := i; ; n++ {
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
				bad := badInput[n%len(badInput)]
				line, err := s.Shim.Request(context.WithoutCancel(ctx), "tools/call", bad.params)
				if err == nil && !bytes.Contains(line, failedResult) && !bytes.Contains(line, []byte(`"error":`)) {
					err = fmt.Errorf("%s was not refused: %.300s", bad.what, line)
				}
				mu.Lock()
				count++
				failed = errors.Join(failed, err)
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	return func() (int, error) {
		cancel()
		work.Wait()
		return count, failed
	}
}
