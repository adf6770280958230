// Package relaybench measures the relay alone: one process publishes calls and waits for results, another claims the calls and answers them at
// once. No shim, no control, no upstream: what is left is the price of the files and of two wake-ups.
package relaybench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sallyport.dev/relay"
	"sallyport.dev/relay/hostside"
)

// A process of the benchmark finds in its environment which side it is, of which session folder, and how much to measure.
const (
	sideEnv   = "SALLYPORT_RELAYBENCH_SIDE"
	folderEnv = "SALLYPORT_RELAYBENCH_FOLDER"
	amountEnv = "SALLYPORT_RELAYBENCH_AMOUNT"
)

// Main is the first call of a program (or TestMain) that uses [Run]: in a child process that Run starts it is one side of the relay and never
// returns; elsewhere it does nothing.
func Main() {
	folder := hostside.Folder{Root: os.Getenv(folderEnv)}
	var err error
	switch os.Getenv(sideEnv) {
	case "host":
		ctx, stop := context.WithCancel(context.Background())
		go func() { // the parent holds the other end: its death ends this process
			_, _ = os.Stdin.Read(make([]byte, 1))
			stop()
		}()
		err = Serve(ctx, folder)
	case "guest":
		err = guest(folder)
	default:
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "relaybench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Serve answers every call of one session's folder with a small result until ctx ends.
func Serve(ctx context.Context, folder hostside.Folder) error {
	box, err := hostside.Open(folder, uint32(os.Getuid()))
	if err != nil {
		return err
	}
	defer box.Close()
	watcher := hostside.NewWatcher()
	defer watcher.Close()
	s := server{box: box, wakes: make(chan struct{}, 1)}
	s.watch = watcher.Add(box, func(reason hostside.Wake) {
		s.reason.Or(uint32(reason))
		select {
		case s.wakes <- struct{}{}:
		default:
		}
	})
	defer s.watch.Close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wakes:
			if err := s.serve(hostside.Wake(s.reason.Swap(0))); err != nil {
				return err
			}
		}
	}
}

type server struct {
	box    *hostside.Box
	watch  *hostside.Watch
	wakes  chan struct{}
	reason atomic.Uint32
	buffer [32 << 10]byte
	record []byte
}

func (s *server) serve(reason hostside.Wake) error {
	if err := s.watch.Before(reason); err != nil {
		return err
	}
	useful := 0
	var failed error
	junk, _, err := s.box.List(s.buffer[:], func(kind relay.Kind, name, id string) bool {
		claimed, why, err := s.box.Claim(kind, name, id)
		if err == nil && why == hostside.Taken {
			useful++
			err = s.answer(kind, &claimed)
		}
		failed = err
		return err == nil
	})
	s.watch.After(hostside.Listing{Useful: useful, Junk: junk, Active: useful > 0})
	if err == nil {
		err = failed
	}
	return err
}

func (s *server) answer(kind relay.Kind, claimed *hostside.Claimed) error {
	switch kind {
	case relay.KindAck:
		return s.box.Retract(claimed.ID)
	case relay.KindCall:
	default:
		return s.box.Settle(claimed)
	}
	call, err := relay.ParseCall(claimed.Record)
	if err != nil {
		return err
	}
	record, err := relay.AppendResult(s.record[:0], &relay.Result{
		ID: call.ID, Call: claimed.Digest, State: "answered", Result: []byte(`{"content":[{"type":"text","text":"done"}],"isError":false}`),
	})
	if err != nil {
		return err
	}
	s.record = record
	if err := s.box.PublishResult(call.ID, record); err != nil {
		return err
	}
	return s.box.Settle(claimed)
}

// Options say what to measure.
type Options struct {
	Dir      string // where the session's folder goes: a tmpfs for comparable numbers
	Calls    int    // of each part; default 5,000
	InFlight int    // of the concurrent part; default [relay.MaxInFlight]
}

// Numbers are what was measured.
type Numbers struct {
	P50, P99  time.Duration // of a round trip, one call at a time
	PerSecond float64       // with InFlight calls at once
	N         int
}

// Run starts both sides as processes of this program (see [Main]) and measures both parts. The guest runs with one thread of execution, as a
// shim does: it has nothing to do beside.
func Run(ctx context.Context, o Options) (Numbers, error) {
	if o.Calls == 0 {
		o.Calls = 5000
	}
	if o.InFlight == 0 {
		o.InFlight = relay.MaxInFlight
	}
	folder := hostside.Folder{Root: filepath.Join(o.Dir, relay.NewID())}
	if err := folder.Create(os.Getuid(), os.Getgid(), false); err != nil {
		return Numbers{}, err
	}
	defer folder.Remove() //nolint:errcheck // the caller removes o.Dir
	host, err := child(ctx, "host", folder)
	if err != nil {
		return Numbers{}, err
	}
	stdin, err := host.StdinPipe()
	if err != nil {
		return Numbers{}, err
	}
	if err := host.Start(); err != nil {
		return Numbers{}, err
	}
	defer func() {
		_ = stdin.Close()
		_ = host.Wait()
	}()
	guest, err := child(ctx, "guest", folder)
	if err != nil {
		return Numbers{}, err
	}
	amount, err := json.Marshal(o)
	if err != nil {
		return Numbers{}, err
	}
	guest.Env = append(guest.Env, "GOMAXPROCS=1", amountEnv+"="+string(amount))
	out, err := guest.Output()
	if err != nil {
		return Numbers{}, err
	}
	var n Numbers
	return n, json.Unmarshal(out, &n)
}

func child(ctx context.Context, side string, folder hostside.Folder) (*exec.Cmd, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), sideEnv+"="+side, folderEnv+"="+folder.Root)
	cmd.Stderr = os.Stderr
	return cmd, nil
}

// guest is the measuring process: it prints its numbers as JSON.
func guest(folder hostside.Folder) error {
	var o Options
	if err := json.Unmarshal([]byte(os.Getenv(amountEnv)), &o); err != nil {
		return err
	}
	ctx := context.Background()
	g := relay.NewGuest(folder.In(), folder.Out())
	defer g.Close() //nolint:errcheck // its inotify descriptor
	b := bench{guest: g, session: relay.NewID()}
	if _, err := b.sequential(ctx, min(o.Calls, 200)); err != nil { // warm-up
		return err
	}
	times, err := b.sequential(ctx, o.Calls)
	if err != nil {
		return err
	}
	slices.Sort(times)
	n := Numbers{P50: times[len(times)/2], P99: times[len(times)*99/100], N: o.Calls}
	if n.PerSecond, err = b.concurrent(ctx, o.Calls, o.InFlight); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(n)
}

type bench struct {
	guest   *relay.Guest
	session string
}

func (b *bench) call(ctx context.Context) error {
	pending, err := b.guest.Call(&relay.Call{
		Session: b.session, Epoch: 1, Tool: "tracker_list_issues", Arguments: []byte(`{"project":"web","state":"open","limit":20}`),
		TimeoutMS: relay.DefaultTimeout.Milliseconds(),
	})
	if err != nil {
		return err
	}
	if _, err := pending.Wait(ctx); err != nil {
		return err
	}
	return b.guest.Ack(pending.ID())
}

func (b *bench) sequential(ctx context.Context, calls int) ([]time.Duration, error) {
	times := make([]time.Duration, 0, calls)
	for range calls {
		start := time.Now()
		if err := b.call(ctx); err != nil {
			return nil, err
		}
		times = append(times, time.Since(start))
	}
	return times, nil
}

func (b *bench) concurrent(ctx context.Context, calls, inFlight int) (float64, error) {
	var next atomic.Int64
	failures := make(chan error, inFlight)
	var done sync.WaitGroup
	start := time.Now()
	for range inFlight {
		done.Go(func() {
			for next.Add(1) <= int64(calls) {
				if err := b.call(ctx); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	done.Wait()
	elapsed := time.Since(start)
	select {
	case err := <-failures:
		return 0, err
	default:
		return float64(calls) / elapsed.Seconds(), nil
	}
}
