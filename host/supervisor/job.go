// Package supervisor is the parent of one sandbox: it prepares it, starts it shut, proves itself to the host, lends it a terminal that is not
// the caller's, and ends it. When the supervisor goes, by whatever way, the kernel ends the sandbox with it; no lost sandbox is adopted.
//
// It runs in the foreground inside "sallyport run", or in a process of its own that the host starts ([Main], [Spawn]).
package supervisor

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/host/gate"
	"sallyport.dev/host/harness"
	"sallyport.dev/host/sandbox"
)

// Job is what a supervisor runs. It is plain data.
type Job struct {
	Plan sandbox.Plan   `json:"plan"`
	Home []harness.File `json:"home,omitempty"` // written below HOME before each start
}

// Failed is the exit status of a run in which Sallyport failed before the agent started.
const Failed = 125

// Host is what a supervisor needs of the host; [gate.Client] is one.
type Host interface {
	// Open proves this process and its sandbox, and waits until the gate is open.
	Open(ctx context.Context, p gate.Proof) error
	// Stops gives what the host wants ended, at most once.
	Stops() <-chan gate.StopReason
	// Close says how the sandbox ended.
	Close(gate.Ended)
}

// Config is how a job is run.
type Config struct {
	Job    Job
	Driver sandbox.Driver
	Host   Host
	// Stdio are the caller's streams. None of them is given to the sandbox.
	Stdio Stdio
	// OpenTimeout bounds the time from the sandbox's start to its open gate; 0: a minute.
	OpenTimeout time.Duration
	// Grace is how long the agent may take to end by itself once it is told to; 0: 5 s.
	Grace time.Duration
	Log   *slog.Logger
	// Cancelled, when closed before the gate is open, ends the attempt: who told the caller to stop before [Run] took the signals over is heard. Later
	// it means nothing. nil: nobody can.
	Cancelled <-chan struct{}
	// Started is called once the gate is open.
	Started func(sandbox.Facts)
}

// Stdio are the streams of whoever runs an agent.
type Stdio struct {
	In, Out, Err *os.File
}

const (
	defaultOpen  = time.Minute
	defaultGrace = 5 * time.Second
)

// Outcome is how a run ended.
type Outcome struct {
	Code    int  // for the exit status: the agent's, or [Failed]
	Ran     bool // the agent was started
	Remarks []string
	// Stopped is the host's reason, where it ended the sandbox; "" otherwise.
	Stopped string
	// Parked: the sandbox was ended to be started again.
	Parked bool
}

// Run runs a job to its end. The error says why the agent did not run, or why its sandbox's absence could not be proven; the outcome stands in
// either case. A ctx that ends, and the signals SIGTERM and SIGHUP, end the sandbox; SIGINT, SIGQUIT, SIGUSR1 and SIGUSR2 go to the agent.
func Run(ctx context.Context, c Config) (Outcome, error) {
	if c.OpenTimeout == 0 {
		c.OpenTimeout = defaultOpen
	}
	if c.Grace == 0 {
		c.Grace = defaultGrace
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	r := &run{Config: c, outcome: Outcome{Code: Failed}}
	err := r.whole(ctx)
	r.Host.Close(gate.Ended{Ran: r.outcome.Ran, Code: r.outcome.Code, Absent: r.absent, Remarks: r.outcome.Remarks})
	return r.outcome, err
}

// run is one run.
type run struct {
	Config
	outcome Outcome
	absent  bool // nothing was started, or its end is proven
	in      sandbox.Instance
}

func (r *run) whole(ctx context.Context) (err error) {
	r.absent = true
	signals := catch()
	defer signals.release()
	if r.in, err = r.Driver.Prepare(ctx, r.Job.Plan); err != nil {
		return err
	}
	defer func() {
		// What was made outside the session's folder is taken back in reverse, whatever happened.
		if destroyed := r.in.Destroy(context.WithoutCancel(ctx)); destroyed != nil {
			r.absent = false
			if err == nil {
				err = destroyed
			}
			r.Log.Error("the sandbox could not be taken back", "err", destroyed)
		}
	}()
	facts := r.in.Facts()
	if err := harness.Write(r.home(), r.Job.Home, facts.GuestUID, facts.GuestGID); err != nil {
		return err
	}
	kept, err := newRotated(filepath.Join(r.Job.Plan.Dir, OutputName))
	if err != nil {
		return err
	}
	defer func() {
		if lost := kept.Close(); lost != nil {
			r.Log.Error("the agent's output was not kept whole", "err", lost)
		}
	}()
	streams, err := openStreams(r.Stdio, kept)
	if err != nil {
		return err
	}
	defer streams.close()
	r.absent = false
	process, err := r.in.Start(ctx, streams.inside())
	streams.handOver()
	if err != nil {
		if r.absent = r.in.Stop(context.WithoutCancel(ctx), 0) == nil; r.absent {
			streams.drain()
		}
		return err
	}
	ended := make(chan ending, 1)
	go func() {
		exit, err := r.in.Wait()
		ended <- ending{exit, err}
	}()
	err = r.open(ctx, process, signals, ended)
	if err == nil {
		err = r.attend(ctx, streams, signals, ended)
	}
	grace := r.Grace
	if !r.outcome.Ran {
		grace = 0 // there is no agent to be polite to
	}
	stopped := r.in.Stop(context.WithoutCancel(ctx), grace)
	if r.absent = stopped == nil; r.absent {
		streams.drain()
	}
	streams.close() // the terminal is the caller's again before anything is said on it
	r.outcome.Remarks = r.in.Remarks()
	if err == nil {
		err = stopped
	}
	return err
}

// ending is what Wait returned.
type ending struct {
	exit sandbox.Exit
	err  error
}

// open waits for the gate. Until it is open, every signal ends the attempt, and so does the end of the sandbox.
func (r *run) open(ctx context.Context, p sandbox.Process, signals *signalled, ended chan ending) error {
	ctx, cancel := context.WithTimeout(ctx, r.OpenTimeout)
	defer cancel()
	opened := make(chan error, 1)
	go func() {
		opened <- r.Host.Open(ctx, gate.Proof{Session: r.Job.Plan.Session, Epoch: r.Job.Plan.Epoch, Sandbox: p})
	}()
	var failed error
	select {
	case err := <-opened:
		if err == nil {
			select {
			case <-r.Cancelled:
				return r.stoppedEarly()
			default:
				return nil
			}
		}
		if ctx.Err() != nil && errs.CodeOf(err) == errs.Internal {
			err = errs.New(errs.Unavailable, "the host did not open the sandbox's gate in time; its log says why")
		}
		return err
	case e := <-ended:
		r.outcome.Code = Failed
		r.Log.Error("the sandbox ended before its gate was open", "code", e.exit.Code, "err", e.err)
		failed = errs.New(errs.Unavailable, "the sandbox ended before its gate was open; its message stands above")
	case <-r.Cancelled:
		failed = r.stoppedEarly()
	case s := <-signals.all:
		failed = errs.Newf(errs.Cancelled, "stopped by %v before the agent ran", s)
		r.outcome.Code = 128 + number(s)
	}
	cancel()
	if err := <-opened; err != nil {
		r.Log.Debug("the gate was given up", "err", err)
	}
	return failed
}

func (r *run) stoppedEarly() error {
	r.outcome.Code = Failed
	return errs.New(errs.Cancelled, "stopped before the agent ran")
}

// attend is the agent's life: its output, its terminal, signals both ways, and whatever ends it.
func (r *run) attend(ctx context.Context, streams *streams, signals *signalled, ended chan ending) error {
	r.outcome.Ran = true
	if r.Started != nil {
		r.Started(r.in.Facts())
	}
	if err := streams.connect(); err != nil {
		return err
	}
	var force <-chan time.Time
	end := func() {
		if force != nil {
			return
		}
		_ = r.in.Signal(terminate)
		timer := time.NewTimer(r.Grace)
		force = timer.C
	}
	done := ctx.Done()
	for {
		select {
		case e := <-ended:
			r.outcome.Code = e.exit.Code
			if force != nil || e.exit.Code > 128 {
				streams.untidy = true
			}
			return e.err
		case <-force:
			if err := r.in.Stop(context.WithoutCancel(ctx), 0); err != nil {
				return err
			}
			force = nil
		case <-done:
			done = nil
			end()
		case why := <-r.Host.Stops():
			r.outcome.Stopped, r.outcome.Parked = why.Message, why.Park
			if why.Grace > 0 {
				r.Grace = why.Grace
			}
			end()
		case s := <-signals.all:
			switch {
			case ends(s):
				end()
			case suspends(s):
				streams.suspend()
			case resizes(s):
				streams.resize()
			default:
				_ = r.in.Signal(s)
			}
		}
	}
}

func (r *run) home() string { return filepath.Join(r.Job.Plan.Dir, "home") }
