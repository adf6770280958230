// Command chaos stops every part of a real installation dead at every step of a write, brings it back, lets every retry happen that real clients and
// models make, and counts effects upstream. Parts are killed (SIGKILL) and stopped for a while (SIGSTOP, SIGCONT) at breakpoints in the programs that
// ship, at each transition of the journal's table, and at each step on the wire; then at random, by a seed that is printed. Each point is one line:
// what was stopped where and how, what the journal says of the calls, what the client was told, and how often the upstream did it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"sallyport.dev/test/rig"
)

type options struct {
	only    string
	seed    uint64
	random  int
	worlds  int
	bin     string
	verbose bool
}

func main() {
	var o options
	flag.StringVar(&o.only, "only", "", "try the points whose lines match this pattern")
	flag.Uint64Var(&o.seed, "seed", 0, "of the random schedules; 0: a new one")
	flag.IntVar(&o.random, "random", 40, "how many random schedules")
	flag.IntVar(&o.worlds, "worlds", 3, "installations side by side")
	flag.StringVar(&o.bin, "bin", "", "where the programs are built; bin of the checkout by default")
	flag.BoolVar(&o.verbose, "v", false, "print the log of an installation in which a point failed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := chaos(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		stop()
		os.Exit(1)
	}
}

func chaos(ctx context.Context, o options) error {
	began := time.Now()
	only, err := regexp.Compile(o.only)
	if err != nil {
		return err
	}
	programs, err := rig.Build(ctx, o.bin)
	if err != nil {
		return err
	}
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	all := append(points(), schedules(o.seed, o.random)...)
	fmt.Printf("seed %d\n", o.seed)
	fmt.Printf("%-52s  %-10s  %-8s  %-34s  %-34s  %7s\n", "point", "part", "signal", "journal", "told", "effects")
	t := &tally{verbose: o.verbose}
	var chosen []*point
	for _, p := range all {
		if only.MatchString(p.name + " " + p.victim + " " + p.signal()) {
			chosen = append(chosen, p)
		}
	}
	if err := t.tryAll(ctx, programs, chosen, o.worlds); err != nil {
		return err
	}
	fmt.Printf("%d points: %d ok, %d failed; %d effects, never two of one write; %d calls uncertain, %d of them needlessly; %d times a client was told to wait; slowest answer %.1f s; seed %d; %.0f s\n",
		t.points, t.points-t.bad, t.bad, t.effects, t.unsure, t.needless, t.waited, t.slowest.Seconds(), o.seed, time.Since(began).Seconds())
	if t.bad > 0 {
		return fmt.Errorf("%d of %d points failed", t.bad, t.points)
	}
	return nil
}

// tally counts what came out.
type tally struct {
	verbose bool

	mu       sync.Mutex
	points   int
	bad      int
	effects  int
	unsure   int
	needless int
	waited   int
	slowest  time.Duration
}

// tryAll tries points in several worlds side by side. A world in which one failed is replaced.
func (t *tally) tryAll(ctx context.Context, programs rig.Programs, all []*point, worlds int) error {
	queue := make(chan int, len(all))
	for i := range all {
		queue <- i
	}
	close(queue)
	var work sync.WaitGroup
	failed := make([]error, min(worlds, len(all)))
	for n := range failed {
		work.Go(func() { failed[n] = t.inOne(ctx, programs, all, queue) })
	}
	work.Wait()
	return errors.Join(failed...)
}

func (t *tally) inOne(ctx context.Context, programs rig.Programs, all []*point, queue <-chan int) (err error) {
	var w *world
	defer func() {
		if w != nil {
			err = errors.Join(err, w.close())
		}
	}()
	for i := range queue {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if w == nil {
			fresh, err := newWorld(ctx, programs)
			if err != nil {
				return err
			}
			w = fresh
		}
		r := try(ctx, w, all[i], i%manyTries)
		t.line(r)
		if len(r.failed) > 0 {
			if t.verbose {
				fmt.Println(w.rig.Log())
			}
			if err := w.close(); err != nil {
				fmt.Println("      an installation did not end well:", err)
			}
			w = nil
		}
	}
	return nil
}

// line prints one point.
func (t *tally) line(r *run) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.points++
	t.effects += r.effects
	t.unsure += r.unsure
	t.waited += r.waited
	t.slowest = max(t.slowest, r.slowest)
	if r.unsure > 0 && !r.point.mayBeLost() {
		t.needless += r.unsure
	}
	verdict := "ok"
	if len(r.failed) > 0 {
		verdict = "FAIL"
		t.bad++
	}
	fmt.Printf("%-52s  %-10s  %-8s  %-34s  %-34s  %7d  %s\n", r.point.name, r.point.victim, r.point.signal(), strings.Join(r.states, " "), strings.Join(r.answers, " "), r.effects, verdict)
	for _, why := range r.failed {
		fmt.Println("      " + why)
	}
}
