package runner

import (
	"bytes"
	"os"
	"strconv"
	"time"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/relay/hostside"
)

const (
	healthEvery = 5 * time.Second
	auditEvery  = time.Second
	auditIdle   = 30  // audits until a session is measured that shows no activity: it may write without publishing
	auditSweep  = 600 // audits between two sweeps of a session
)

// reportHealth queues the host's health; the newest replaces one that was not sent.
func (r *Runner) reportHealth() {
	h := r.Health()
	r.otherMu.Lock()
	r.health = &sallyportv1.HostFrame{Frame: &sallyportv1.HostFrame_Health{Health: h}}
	r.otherMu.Unlock()
	r.ready.wake()
}

// Health returns what this host reports of itself.
func (r *Runner) Health() *sallyportv1.Health {
	h := &sallyportv1.Health{RssBytes: residentBytes(), Counters: map[string]int64{"late_results": r.late.Load(), "held_bytes": r.held.Load()}}
	for _, s := range r.all() {
		h.Sessions++
		s.mu.Lock()
		h.InFlight += int64(len(s.calls))
		h.Counters["unread"] += int64(s.ledger.Unread())
		h.Counters["undelivered"] += int64(s.undelivered)
		if s.watch != nil && !s.watch.Armed() {
			h.Counters["polled_sessions"]++
		}
		s.mu.Unlock()
		for why, n := range s.box.Counts() {
			if why := hostside.Refusal(why); n > 0 && why != hostside.Taken {
				h.Counters["refused_"+why.String()] += n
			}
		}
	}
	return h
}

// Linked reports whether there is a link to control.
func (r *Runner) Linked() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.up
}

// audit measures the directories that no tmpfs bounds: of sessions that did something since the last time at once, of the others in turn.
func (r *Runner) audit() {
	r.audits++
	for _, s := range r.all() {
		if (r.audits+s.turn)%auditSweep == 0 {
			s.sweep()
		}
		if s.tmpfs || (!s.active.Swap(false) && (r.audits+s.turn)%auditIdle != 0) {
			continue
		}
		s.serving.Lock()
		usage, err := s.box.Usage()
		s.serving.Unlock()
		s.mu.Lock()
		closed := s.closed
		s.mu.Unlock()
		switch {
		case closed:
		case err != nil:
			s.log("the guest's directory cannot be measured", err)
		case usage.Exceeded != "":
			s.exceed(usage.Exceeded)
		}
	}
}

// sweep removes what dead processes of the guest left behind.
func (s *session) sweep() {
	if _, err := s.box.Sweep(time.Now()); err != nil {
		s.missing.Do(func() { s.log("the guest's directory cannot be swept", err) })
	}
}

func residentBytes() int64 {
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(statm)
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
