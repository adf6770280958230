package hostside

import (
	"math/rand/v2"
	"sync"
	"time"

	"sallyport.dev/errs"
)

// How often a session is listed, beside being listed when its watch wakes the host.
const (
	listActive = time.Second           // while a call of it is in flight
	listIdle   = time.Minute           // else, spread by a quarter to either side
	listPolled = 50 * time.Millisecond // without a watch
	retryWatch = 10 * time.Second      // where none was to be had
)

// A session's events are paid for from a bucket; an event that brought a record is paid back. A session that keeps waking the host for nothing
// runs dry and loses its watch, for longer each time.
const (
	wakesPerSecond = 200
	wakesBurst     = 1024 // what a shim may legitimately do at once: acknowledge all that it has read
	stormLeast     = 5 * time.Second
	stormMost      = 5 * time.Minute
)

// What a listing found for nothing puts off the next one, so that it costs a bounded share of a processor: each entry that had to be skipped
// again, and each that was taken and meant nothing.
const (
	junkPause   = 50 * time.Microsecond
	wastedPause = time.Millisecond
)

// Wake says why a session should be looked at; reasons add up.
type Wake uint8

// Reasons to look at a session.
const (
	WakeEvent Wake = 1 << iota // something was published, or may have been
	WakeCheck                  // the directory itself may have changed, or it is time to ask
)

// Watcher notices new records of many sessions: one inotify instance for 64 of them. It is safe for concurrent use.
type Watcher struct {
	polls  bool
	mu     sync.Mutex
	shards []*shard
	closed bool
}

// NewWatcher returns a watcher without sessions. It holds nothing until the first one is added.
func NewWatcher() *Watcher { return new(Watcher) }

// NewPoller returns a watcher that polls every session 20 times a second: for a host whose file system has no events, and for tests of time.
func NewPoller() *Watcher { return &Watcher{polls: true} }

// Watch is one session's watch. [Watch.Before] and [Watch.After] are called around each listing, by the one that lists.
type Watch struct {
	watcher *Watcher
	box     *Box
	wake    func(Wake)

	mu       sync.Mutex
	shard    *shard // nil without a watch
	wd       int32
	tokens   float64
	filled   time.Time
	until    time.Time     // a new attempt to arm
	penalty  time.Duration // of the next storm
	calmed   time.Time     // when the last storm ended
	active   bool
	due      time.Time // when the timer fires
	timer    *time.Timer
	notYet   time.Time // no listing before
	deferred Wake
	closed   bool
}

// Add starts to watch a box and wakes at once, since records may lie there. Wake must not block; it may be called from several goroutines,
// and a last time during Close.
func (w *Watcher) Add(box *Box, wake func(Wake)) *Watch {
	now := time.Now()
	s := &Watch{watcher: w, box: box, wake: wake, wd: -1, tokens: wakesBurst, filled: now, penalty: stormLeast}
	s.mu.Lock()
	s.due = now.Add(listActive)
	s.timer = time.AfterFunc(listActive, s.fired)
	s.mu.Unlock()
	wake(WakeCheck)
	return s
}

// Close ends all watches.
func (w *Watcher) Close() {
	w.mu.Lock()
	w.closed = true
	shards := w.shards
	w.shards = nil
	w.mu.Unlock()
	for _, s := range shards {
		s.close()
	}
}

// Before prepares a listing: it opens new/ again where the guest replaced it, and arms the watch where it is not armed and may be. Arming comes
// before listing, so that nothing falls between. Errors: those of [Box.Fresh]; there is nothing to list then.
func (s *Watch) Before(reason Wake) error {
	replaced := false
	if reason&WakeCheck != 0 {
		changed, err := s.box.Fresh()
		if err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.disarm() // it watches what is gone; polling notices what comes
			return err
		}
		replaced = changed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if replaced {
		s.disarm()
	}
	if s.shard == nil && !s.closed && !time.Now().Before(s.until) {
		s.arm()
	}
	return nil
}

// Listing is what came of one.
type Listing struct {
	Useful int           // records that were taken and meant something
	Wasted int           // records that were taken and meant nothing
	Junk   int           // entries that were refused before, and skipped
	More   bool          // it stopped before the end
	Wait   time.Duration // the next listing is put off so long at least; 0: as the rest says
	Active bool          // a call of the session is in flight
}

// After ends a listing. It reports whether the next one may follow at once; where there is more and it may not, the session is woken when it may.
func (s *Watch) After(l Listing) (again bool) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.tokens = min(s.tokens+float64(l.Useful), wakesBurst)
	s.active = l.Active
	if pause := max(l.Wait, time.Duration(l.Junk)*junkPause+time.Duration(l.Wasted)*wastedPause); pause > 0 {
		s.notYet = now.Add(pause)
	}
	next := now.Add(s.pause())
	again = l.More
	if again && now.Before(s.notYet) {
		s.deferred |= WakeEvent
		again, next = false, s.notYet
	}
	if next.Before(s.due) {
		s.schedule(now, next)
	}
	return again
}

// Armed reports whether the session has a watch; without one it is polled.
func (s *Watch) Armed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shard != nil
}

// Close ends the watch.
func (s *Watch) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.timer.Stop()
	s.disarm()
}

// pause is how long until the next listing, events aside.
func (s *Watch) pause() time.Duration {
	switch {
	case s.shard == nil:
		return listPolled
	case s.active:
		return listActive
	default:
		return listIdle*3/4 + rand.N(listIdle/2)
	}
}

func (s *Watch) schedule(now, at time.Time) {
	s.due = at
	s.timer.Reset(at.Sub(now))
}

// fired is called by the timer.
func (s *Watch) fired() {
	now := time.Now()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	if now.Before(s.notYet) {
		s.schedule(now, s.notYet)
		s.mu.Unlock()
		return
	}
	reason := s.deferred | WakeCheck
	s.deferred = 0
	s.schedule(now, now.Add(s.pause()))
	s.mu.Unlock()
	s.wake(reason)
}

// events is called by the shard with how many events of this session a read brought.
func (s *Watch) events(n int, reason Wake) {
	now := time.Now()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.tokens = min(s.tokens+now.Sub(s.filled).Seconds()*wakesPerSecond, wakesBurst) - float64(n)
	s.filled = now
	if s.tokens < 0 && s.shard != nil {
		s.storm(now)
	}
	if now.Before(s.notYet) {
		s.deferred |= reason
		if s.notYet.Before(s.due) {
			s.schedule(now, s.notYet)
		}
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	s.wake(reason)
}

// storm takes the watch away for a while.
func (s *Watch) storm(now time.Time) {
	s.disarm()
	if now.Sub(s.calmed) > s.penalty {
		s.penalty = stormLeast
	}
	s.until = now.Add(s.penalty)
	s.calmed = s.until
	s.penalty = min(2*s.penalty, stormMost)
	s.tokens = wakesBurst
	s.schedule(now, now.Add(listPolled))
}

func (s *Watch) arm() {
	if err := s.watcher.arm(s); err != nil {
		s.until = time.Now().Add(retryWatch)
	}
}

func (s *Watch) disarm() {
	if s.shard != nil {
		s.shard.remove(s.wd)
		s.shard, s.wd = nil, -1
	}
}

// arm finds a shard with room for s; s.mu is held.
func (w *Watcher) arm(s *Watch) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.polls {
		return errs.New(errs.Unavailable, "there are no watches to be had")
	}
	for _, shard := range w.shards {
		if ok, err := shard.add(s); ok || err != nil {
			return err
		}
	}
	shard, err := newShard()
	if err != nil {
		return err
	}
	if _, err := shard.add(s); err != nil {
		shard.close()
		return err
	}
	w.shards = append(w.shards, shard)
	return nil
}
