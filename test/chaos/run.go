package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sallyport.dev/api/sallyport/v1"
)

// run is one point, tried once.
type run struct {
	w     *world
	point *point
	token string
	how   int        // how the client asks again
	boxes []*sandbox // sessions, in turn: the last one is the client's

	mu      sync.Mutex
	failed  []string
	answers []string // what the client got, in turn
	waited  int      // how often it was told to wait
	slowest time.Duration
	named   atomic.Int64 // questions that were denied because they named a call that may have happened

	states  []string // of its calls in the journal, at the end
	effects int
	unsure  int // calls that ended uncertain
}

func (r *run) fail(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = append(r.failed, fmt.Sprintf(format, args...))
}

// try runs a point.
func try(ctx context.Context, w *world, p *point, how int) *run {
	var b [6]byte
	rand.Read(b[:])
	r := &run{w: w, point: p, how: how, token: "chaos-" + hex.EncodeToString(b[:])}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := r.all(ctx); err != nil {
		r.fail("%v", err)
	}
	for _, b := range r.boxes {
		b.close()
	}
	return r
}

func (r *run) all(ctx context.Context) error {
	if err := r.w.linked(ctx); err != nil {
		return err
	}
	if err := r.open(ctx); err != nil {
		return err
	}
	there, err := r.arm(ctx)
	if err != nil {
		return err
	}
	people, home := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() { r.person(people) })
	defer work.Wait()
	defer home()
	answer := make(chan said, 1)
	box := r.box()
	work.Go(func() { answer <- r.call(ctx, box, tool, r.arguments(sameID), r.useID(sameID)) })
	if err := there(ctx); err != nil {
		return fmt.Errorf("%s: %w", r.point.name, err)
	}
	if err := r.w.linked(ctx); err != nil {
		return err
	}
	r.finish(ctx, <-answer)
	if err := r.settled(ctx); err != nil {
		return err
	}
	return r.check(ctx)
}

// pid is the process of a part.
func (r *run) pid(part string) (int, error) {
	switch part {
	case guest:
		return r.box().guest()
	case supervisor:
		return r.box().PID(), nil
	case server:
		return r.w.upstream.PID(), nil
	}
	return r.w.rig.PID(part)
}

// arm sets the point up. What it returns waits until it is reached, does what is to be done there, and brings back who died.
func (r *run) arm(ctx context.Context) (func(context.Context) error, error) {
	p := r.point
	switch {
	case p.step != "":
		reached := make(chan error, 1)
		r.w.proxy.set(&trap{token: r.token, step: p.step, here: func() { reached <- r.strike(ctx) }})
		return func(ctx context.Context) error {
			defer r.w.proxy.set(nil)
			return r.struck(ctx, reached)
		}, nil
	case p.then != nil:
		return r.random, nil
	case p.hold != "":
		var hold struct{ ID int }
		err := r.w.upstream.Steer(ctx, http.MethodPost, "/holds", map[string]string{"tool": "create_issue", "where": string(p.hold)}, &hold)
		return func(ctx context.Context) error { return r.held(ctx) }, err
	}
	pid, err := r.pid(p.part)
	if err != nil {
		return nil, err
	}
	signal := "STOP"
	if p.part == p.victim && p.stop == 0 {
		signal = "KILL"
	}
	b, err := breakAt(ctx, r.w.programs.Path("stopper"), pid, signal, p.at)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		defer b.end()
		return r.broken(ctx, b, pid)
	}, nil
}

// strike kills or stops the victim where it is.
func (r *run) strike(ctx context.Context) error { return r.hit(ctx, r.point.victim, r.point.stop) }

func (r *run) hit(ctx context.Context, victim string, stop time.Duration) error {
	pid, err := r.pid(victim)
	if err != nil {
		return err
	}
	if stop > 0 {
		return stopFor(ctx, pid, stop)
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// random goes through a random schedule.
func (r *run) random(ctx context.Context) error {
	for _, l := range r.point.then {
		pause(ctx, l.after)
		if err := r.hit(ctx, l.victim, l.stop); err != nil {
			return err
		}
		if l.stop > 0 {
			continue
		}
		if err := r.w.killed(ctx, l.victim); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) struck(ctx context.Context, reached <-chan error) error {
	select {
	case err := <-reached:
		if err != nil || r.point.stop > 0 {
			return err
		}
		return r.w.killed(ctx, r.point.victim)
	case <-time.After(reach):
		return errNotReached
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reach bounds the way to a point.
const reach = 25 * time.Second

// held waits until the upstream stands at the hold, strikes, and lets it go.
func (r *run) held(ctx context.Context) error {
	late, cancel := context.WithTimeout(ctx, reach)
	defer cancel()
	err := until(late, "the upstream", func() bool {
		var h struct{ Arrived int }
		return r.w.upstream.Steer(ctx, http.MethodGet, "/holds", nil, &h) == nil && h.Arrived > 0
	})
	if err != nil {
		return errors.Join(errNotReached, err)
	}
	if err := r.strike(ctx); err != nil {
		return err
	}
	if r.point.victim != server || r.point.stop > 0 {
		if err := r.w.upstream.Steer(ctx, http.MethodDelete, "/holds", nil, nil); err != nil {
			return err
		}
	}
	if r.point.stop > 0 {
		return nil
	}
	return r.w.killed(ctx, r.point.victim)
}

// broken waits until the process came to its breakpoint and was stopped there.
func (r *run) broken(ctx context.Context, b *breaker, pid int) error {
	p := r.point
	told := make(chan error, 1)
	go func() { told <- b.told("stopped") }()
	select {
	case err := <-told:
		if err != nil {
			return err
		}
	case <-time.After(reach):
		b.end()                                                                                        //nolint:errcheck // it returns nothing
		return errors.Join(errNotReached, syscall.Kill(pid, syscall.SIGKILL), r.w.killed(ctx, p.part)) // its breakpoints stand
	}
	switch {
	case p.part == p.victim && p.stop > 0:
		pause(ctx, p.stop)
		return syscall.Kill(pid, syscall.SIGCONT)
	case p.part == p.victim:
		return r.w.killed(ctx, p.victim)
	}
	// Another part dies while this one stands there.
	err := r.strike(ctx)
	err = errors.Join(err, syscall.Kill(pid, syscall.SIGCONT))
	if err != nil || p.stop > 0 {
		return err
	}
	return r.w.killed(ctx, p.victim)
}

// calls are the run's calls in the journal.
func (r *run) calls(ctx context.Context) ([]*sallyportv1.CallRow, error) {
	var all []*sallyportv1.CallRow
	for _, b := range r.boxes {
		list, err := r.w.rig.Operator().ListCalls(ctx, &sallyportv1.ListCallsRequest{Session: b.session, Tool: "create_issue", Limit: 100})
		if err != nil {
			return nil, err
		}
		all = append(all, list.GetCalls()...)
	}
	return all, nil
}

var unfinished = []string{"admitted", "asking", "approved", "dispatching", "retrying", "input_wanted", "working"}

// settled waits until no call of the run is unfinished.
func (r *run) settled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return until(ctx, "the journal to be settled", func() bool {
		all, err := r.calls(ctx)
		return err == nil && !slices.ContainsFunc(all, func(c *sallyportv1.CallRow) bool { return slices.Contains(unfinished, c.GetState()) })
	})
}

// check compares the journal with what the upstream counted.
func (r *run) check(ctx context.Context) error {
	all, err := r.calls(ctx)
	if err != nil {
		return err
	}
	answered := 0
	var lost []string
	for _, c := range all {
		r.states = append(r.states, c.GetState())
		switch c.GetState() {
		case "answered":
			answered++
		case "uncertain":
			r.unsure++
			lost = append(lost, c.GetId())
		}
	}
	slices.Sort(r.states)
	for _, arguments := range []string{r.arguments(sameID), r.arguments(inWords)} {
		n, err := r.w.count(ctx, arguments)
		if err != nil {
			return err
		}
		if n > 1 {
			r.fail("TWO EFFECTS of one write")
		}
		r.effects += n
	}
	switch {
	case r.effects > answered+r.unsure:
		r.fail("%d effects, and the journal knows of at most %d: something that was sent counts as not sent", r.effects, answered+r.unsure)
	case r.effects < answered:
		r.fail("%d effects, %d answers", r.effects, answered)
	case r.unsure > 0 && !r.point.mayBeLost():
		r.fail("needlessly uncertain")
	case answered+r.unsure == 0:
		r.fail("nothing ran, although a person agreed: %s", strings.Join(r.answers, ", "))
	}
	for _, id := range lost {
		resolution := "not-done"
		if r.effects > answered {
			resolution = "done"
		}
		if _, err := r.w.rig.Operator().Resolve(ctx, &sallyportv1.ResolveRequest{Call: id, Resolution: resolution, Note: "counted upstream"}); err != nil {
			r.fail("a person could not resolve it: %v", err)
		}
	}
	return nil
}
