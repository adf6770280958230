package runner

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/relay"
	"sallyport.dev/relay/hostside"
)

// session is one served session.
type session struct {
	runner *Runner
	id     string
	epoch  int64
	box    *hostside.Box
	watch  *hostside.Watch
	tmpfs  bool
	wakes  atomic.Uint32 // reasons to look at the directory
	active atomic.Bool   // looked at since the last audit
	turn   uint64        // spreads the audits and sweeps of sessions

	serving sync.Mutex      // held by whoever looks at the directory
	early   map[string]bool // cancels whose call was not seen yet; under serving
	missing sync.Once       // says once that the directory cannot be listed

	mu          sync.Mutex
	closed      bool
	open        bool
	exceeded    bool
	ledger      *hostside.Ledger
	calls       map[string]*call // in flight
	local       map[string]bool  // unread results that the host wrote itself: control need not know that they were read
	out         []item           // frames to send, in order
	riding      bool             // a timer sees to those that ride
	said        []item           // the last acks and refusals sent: a lost stream may have lost them
	refusals    int              // in out
	telling     *relay.Allowance // of refusals: a guest fills no journal with them
	held        int              // bytes of records that control has not journaled
	starved     bool             // waits for room in held
	undelivered int              // calls whose result found no room in in/
	retry       *time.Timer      // tries them again
	gate        gate

	pace *rate.Limiter // of its calls beside other sessions
}

// call is one call in flight.
type call struct {
	id       string
	claimed  hostside.Claimed
	tool     string // "" where it was journaled before a restart
	seen     time.Time
	timeout  time.Duration
	progress bool // a token was given

	sent      bool // on any stream: it may have arrived
	journaled bool
	why       sallyportv1.CancelWhy // the last cancel, to be said again on a new stream
	timer     *time.Timer
	asked     bool

	n       int64                     // progress published
	waiting *sallyportv1.CallProgress // progress that came too soon after the last
	slow    *time.Timer

	result []byte // waits for room in in/
	local  bool   // the result is the host's own
}

// item is one frame to send. A call's frame is built when it is sent, so that it says how long the call has waited by then.
type item struct {
	what    what
	call    *call  // sendCall, sendAttach
	id      string // sendCancel, sendAck
	why     sallyportv1.CancelWhy
	refused *sallyportv1.HostRefused
}

type what uint8

const (
	sendCall what = iota
	sendAttach
	sendCancel
	sendAck
	sendRefused
	sendGate
)

// keptSaid is how many acks and refusals are said again on a new stream. What is said twice does nothing.
const keptSaid = 64

// maxRefusals is how many refusals of a session wait to be told to control. More are told to the guest alone.
const maxRefusals = 64

// Of refusals a session tells control so many at once, then one for each of these times: a guest that goes on and on gets one row that counts the rest.
const (
	refusalBurst = 64
	refusalEvery = 10 * time.Second
)

func newSession(r *Runner, cfg Session) (*session, error) {
	box, err := hostside.Open(cfg.Folder, cfg.Owners...)
	if err != nil {
		return nil, err
	}
	s := &session{
		runner: r, id: cfg.ID, epoch: cfg.Epoch, box: box, tmpfs: cfg.Folder.Tmpfs(), turn: rand.Uint64N(auditSweep), open: cfg.Open,
		early: make(map[string]bool), ledger: hostside.NewLedger(), calls: make(map[string]*call), local: make(map[string]bool),
		telling: relay.NewAllowance(refusalBurst, refusalEvery), gate: newGate(), pace: newPace(),
	}
	if err := s.recover(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// start is called once the session is known by its id.
func (s *session) start() {
	s.mu.Lock()
	if !s.closed {
		for _, c := range s.inOrder() {
			s.startClock(c)
		}
		s.resync()
		s.watch = s.runner.watcher.Add(s.box, s.wake)
	}
	s.mu.Unlock()
	s.runner.ready.push(s)
}

// recover takes up what an earlier process of the host left.
func (s *session) recover() error {
	left, err := s.box.Recover()
	if err != nil {
		return err
	}
	for _, p := range left.Published {
		s.ledger.RecoverPublished(p.ID)
		if p.Local {
			s.local[p.ID] = true
		}
	}
	now := time.Now()
	for _, claimed := range left.Calls {
		c := &call{id: claimed.ID, claimed: claimed, seen: now.Add(-claimed.Waited)}
		if claimed.Journaled() {
			c.sent, c.journaled, c.timeout = true, true, left.Timeouts[c.id]
			c.progress = true // not known any more: a record of it does no harm
		} else {
			record, err := s.parse(&claimed)
			if err != nil { // it was refused by then, or would be now; its writer is told by its own clock
				if err := s.box.Settle(&claimed); err != nil {
					return err
				}
				continue
			}
			c.tool, c.timeout, c.progress = record.Tool, time.Duration(record.TimeoutMS)*time.Millisecond, record.Progress
			c.sent = true // the earlier process may have
			s.hold(c)
		}
		s.ledger.Recover(c.id, claimed.Digest)
		s.calls[c.id] = c
	}
	return nil
}

// close stops everything of the session.
func (s *session) close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	held := s.held
	s.held = 0
	for _, c := range s.calls {
		c.stopClocks()
	}
	s.out = nil
	s.gate.close()
	if s.retry != nil {
		s.retry.Stop()
	}
	watch := s.watch
	s.mu.Unlock()
	if watch != nil {
		watch.Close()
	}
	s.serving.Lock() // nobody uses the descriptors any more
	defer s.serving.Unlock()
	s.box.Close()
	s.runner.release(held)
}

// wake has the session's directory looked at.
func (s *session) wake(reason hostside.Wake) {
	s.wakes.Or(uint32(reason))
	s.runner.work.push(s)
}

// send queues a frame; s.mu is held.
func (s *session) send(i item) {
	s.out = append(s.out, i)
	s.runner.ready.push(s)
}

// rideFor is how long a frame that nobody waits for stays for one to ride with.
const rideFor = 5 * time.Millisecond

// ride queues a frame for which nobody waits: it leaves with the session's next one, or after [rideFor]; s.mu is held.
func (s *session) ride(i item) {
	s.out = append(s.out, i)
	if s.riding {
		return
	}
	s.riding = true
	time.AfterFunc(rideFor, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.riding = false; len(s.out) > 0 && !s.closed {
			s.runner.ready.push(s)
		}
	})
}

// inOrder returns the calls in flight in the order in which they were first seen; s.mu is held.
func (s *session) inOrder() []*call {
	all := make([]*call, 0, len(s.calls))
	for _, c := range s.calls {
		all = append(all, c)
	}
	slices.SortFunc(all, func(x, y *call) int { return x.seen.Compare(y.seen) })
	return all
}

// hold counts the bytes of a record that is not journaled; s.mu is held, or s is not shared yet.
func (s *session) hold(c *call) {
	n := len(c.claimed.Record)
	s.held += n
	s.runner.held.Add(int64(n))
}

// letGo forgets the bytes of a record that control has; s.mu is held.
func (s *session) letGo(c *call) {
	n := len(c.claimed.Record)
	if c.claimed.Record == nil || s.closed {
		return
	}
	c.claimed.Record = nil
	s.held -= n
	s.runner.release(n)
	if s.starved && s.held < sessionHeld {
		s.starved = false
		s.wake(hostside.WakeEvent)
	}
}

// finish takes a call out of flight: it has its result. s.mu is held. Errors of the directory are the log's: the result is out.
func (s *session) finish(c *call) {
	c.stopClocks()
	delete(s.calls, c.id)
	s.ledger.Published(c.id)
	if tell := s.runner.cfg.Answered; tell != nil {
		tell(time.Since(c.seen))
	}
	if c.result != nil {
		c.result = nil
		s.undelivered--
	}
	if c.local {
		s.local[c.id] = true
	}
	if err := s.box.Settle(&c.claimed); err != nil {
		s.log("a claimed record cannot be removed", err)
	}
	if c.n > 0 {
		if err := s.box.RetractProgress(c.id); err != nil {
			s.log("progress cannot be removed", err)
		}
	}
	s.letGo(c)
}

func (s *session) log(what string, err error) {
	s.runner.cfg.Log.Warn(what, "session", s.id, "err", err)
}

// parse reads a call record and compares it with where it lay.
func (s *session) parse(claimed *hostside.Claimed) (relay.Call, error) {
	record, err := relay.ParseCall(claimed.Record)
	if err != nil {
		return record, err
	}
	return record, s.belongs(claimed.ID, record.ID, record.Session, record.Epoch)
}
