package relay

import (
	"maps"
	"slices"
	"syscall"
	"time"

	"sallyport.dev/errs"
)

// Polling beside the watch: quick at first, where watches hear nothing; slow once the watch has proven itself.
const (
	pollLeast = 2 * time.Millisecond
	pollMost  = 50 * time.Millisecond
)

// expect registers p before its call is published, so that no answer can be missed, and sees to it that somebody looks.
func (g *Guest) expect(p *Pending) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errs.New(errs.Unavailable, "the relay was closed")
	}
	if _, taken := g.waiting[p.id]; taken {
		return errs.New(errs.Conflict, "a call of this id waits already")
	}
	g.waiting[p.id] = p
	if g.watch == nil {
		g.watch = newWatch(g.in+"/"+ResultsDir, g.in+"/"+ProgressDir, g.announced)
	}
	if p.progress != nil {
		g.watch.progress()
	}
	g.interval = pollLeast
	if g.trusted {
		g.interval = pollMost
	}
	switch {
	case g.poll == nil:
		g.poll = time.AfterFunc(g.interval, g.polled)
	case len(g.waiting) == 1 || !g.trusted:
		g.poll.Reset(g.interval)
	}
	return nil
}

// announced is called by the watch with the name of a new file in results/ or progress/; "" means any of them.
func (g *Guest) announced(name string, progress bool) {
	if name == "" {
		g.look(true)
		return
	}
	id, err := ParseResultName(name)
	if err != nil {
		return
	}
	g.mu.Lock()
	p := g.waiting[id]
	g.mu.Unlock()
	switch {
	case p == nil:
	case progress:
		g.takeProgress(p)
	default:
		g.take(p, true)
	}
}

// polled is called by the timer, which runs only while a call waits.
func (g *Guest) polled() {
	g.look(false)
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 || g.closed {
		return
	}
	g.interval = min(g.interval*3/2, pollMost)
	g.poll.Reset(g.interval)
}

// look asks the directory for everything that is waited for.
func (g *Guest) look(announced bool) {
	g.mu.Lock()
	all := slices.Collect(maps.Values(g.waiting))
	g.mu.Unlock()
	for _, p := range all {
		if p.progress != nil {
			g.takeProgress(p)
		}
		g.take(p, announced)
	}
}

// take reads p's result and hands it over, where it is there; announced says whether the watch said so, or polling found it. The file is read
// without the lock: a long result must not keep another call from being published.
func (g *Guest) take(p *Pending, announced bool) {
	data, err := Read(g.in+"/"+ResultsDir+"/"+ResultName(p.id), MaxResult)
	if errs.Is(err, errs.NotFound) || errs.Is(err, errs.Unavailable) {
		return // not there yet, or the file system is away: the next look tells
	}
	var r Result
	if err == nil {
		r, err = ParseResult(data)
	}
	if err == nil && (r.ID != p.id || r.Call != p.digest) {
		err = errs.New(errs.Conflict, "the result answers another call of the same id")
	}
	if err != nil {
		r = Result{}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting[p.id] == p {
		g.trusted = announced
		p.finish(r, err)
	}
}

// finish hands over the outcome; g.mu is held.
func (p *Pending) finish(r Result, err error) {
	delete(p.guest.waiting, p.id)
	p.result, p.err = r, err
	close(p.done)
}

// takeProgress hands over p's newest progress. A broken one is left out: it says nothing about the call.
func (g *Guest) takeProgress(p *Pending) {
	data, err := Read(g.in+"/"+ProgressDir+"/"+ResultName(p.id), MaxProgress)
	if err != nil {
		return
	}
	progress, err := ParseProgress(data)
	if err != nil || progress.ID != p.id {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if progress.N <= p.seen {
		return
	}
	p.seen = progress.N
	select {
	case <-p.progress:
	default:
	}
	p.progress <- progress // the only sender, under g.mu: there is room
}

func link(old, final string) error {
	return retry(func() error { return syscall.Link(old, final) })
}
