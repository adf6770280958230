package call

import (
	"context"
	"sync"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

// Sessions is what the pipeline needs of sessions.
type Sessions interface {
	// Session returns one session whole. Errors: [errs.NotFound].
	Session(ctx context.Context, id string) (*control.Session, error)
}

// sessionState is what this process keeps of a session: its frozen binding by name, and the calls that are not over and read.
type sessionState struct {
	mu       sync.Mutex
	row      *control.Session
	tools    map[string]*control.BoundTool
	inFlight int
	used     time.Time
	open     map[string]*openCall
	harness  map[string]string   // the harness's id: the newest call that bore it
	out      map[string]outgoing // by the record's call id: what was handed over and not acknowledged
	upstream map[string][]byte   // sealed upstream sessions, by connection
	large    chan struct{}       // one large record at a time is taken up
}

// largeRecord is from which size on, in bytes, the records of a session are taken up one by one: judging them costs the processor of all sessions.
const largeRecord = 64 << 10

// maxOpen bounds what is kept of a session: what is beyond is refused as busy, and costs nothing here.
const maxOpen = relay.MaxUnacknowledged + relay.MaxInFlight

// openCall is a call that is unfinished, or ended and unread.
type openCall struct {
	tool    string
	args    control.Digest
	state   journal.State
	settled time.Time
	harness string
}

// outgoing is a result on its way into the sandbox.
type outgoing struct {
	call  string
	final bool // the call's own end, no "pending"
	of    *sessionState
}

// session returns a session at an epoch. A cached one of another epoch, or one that is not open, is read again.
func (p *Pipeline) session(ctx context.Context, id string, epoch int64) (*sessionState, error) {
	p.sessionsMu.Lock()
	s := p.sessions[id]
	p.sessionsMu.Unlock()
	if s != nil {
		s.mu.Lock()
		current := s.row.Epoch == epoch && s.row.State == control.SessionOpen
		s.mu.Unlock()
		if current || epoch == 0 {
			return s, nil
		}
		return s, p.reloadSession(ctx, s)
	}
	row, err := p.cfg.Sessions.Session(ctx, id)
	if err != nil {
		return nil, err
	}
	open, err := p.cfg.Store.OpenCalls(ctx, id)
	if err != nil {
		return nil, err
	}
	s = &sessionState{open: map[string]*openCall{}, harness: map[string]string{}, out: map[string]outgoing{}, upstream: map[string][]byte{}, large: make(chan struct{}, 1)}
	s.set(row)
	s.used = time.Now()
	for _, c := range open {
		s.open[c.ID] = &openCall{tool: c.Name, args: c.ArgsDigest, state: c.State, settled: c.SettledAt, harness: c.HarnessCall}
		if c.HarnessCall != "" {
			s.harness[c.HarnessCall] = c.ID
		}
	}
	p.sessionsMu.Lock()
	defer p.sessionsMu.Unlock()
	if got := p.sessions[id]; got != nil {
		return got, nil
	}
	p.sessions[id] = s
	return s, nil
}

func (p *Pipeline) reloadSession(ctx context.Context, s *sessionState) error {
	s.mu.Lock()
	id := s.row.ID
	s.mu.Unlock()
	row, err := p.cfg.Sessions.Session(ctx, id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(row)
	return nil
}

// set is called with the lock, or before anybody else sees s.
func (s *sessionState) set(row *control.Session) {
	s.row = row
	s.tools = make(map[string]*control.BoundTool, len(row.Tools))
	for i := range row.Tools {
		s.tools[row.Tools[i].Name] = &row.Tools[i]
	}
}

func (s *sessionState) session() *control.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.row
}

func (s *sessionState) tool(name string) *control.BoundTool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tools[name]
}

// claim makes id the session's newest call of the record's harness id. It returns the earlier call that the record asks for again: one of the same
// harness id, tool and argument bytes that is unfinished, or answered and unread. mismatch is an earlier call of the same harness id that is
// another one.
func (s *sessionState) claim(id string, rec *relay.Call, args control.Digest) (earlier, mismatch string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rec.HarnessCall != "" {
		if at := s.harness[rec.HarnessCall]; at != "" && at != id {
			e := s.open[at]
			switch {
			case e == nil:
			case e.tool != rec.Tool || e.args != args:
				mismatch = at
			case e.state.Unfinished() || e.state == "" || e.state == journal.Answered:
				return at, ""
			}
		}
	}
	if len(s.open) < maxOpen {
		s.open[id] = &openCall{tool: rec.Tool, args: args, harness: rec.HarnessCall}
		if rec.HarnessCall != "" {
			s.harness[rec.HarnessCall] = id
		}
	}
	return "", mismatch
}

// moved records where a call of the session stands.
func (s *sessionState) moved(c *control.Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.open[c.ID]
	if e == nil {
		if len(s.open) >= maxOpen {
			return
		}
		e = &openCall{tool: c.Name, args: c.ArgsDigest, harness: c.HarnessCall}
		s.open[c.ID] = e
	}
	e.state, e.settled = c.State, c.SettledAt
}

// forget drops a call that is over and read, or that never was.
func (s *sessionState) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.open[id]; e != nil {
		delete(s.open, id)
		if s.harness[e.harness] == id {
			delete(s.harness, e.harness)
		}
	}
}

// enter counts a call in flight. Errors: [errs.Busy].
func (s *sessionState) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.inFlight >= relay.MaxInFlight:
		return errs.Newf(errs.Busy, "%d calls of this session are open", s.inFlight)
	case len(s.open) >= maxOpen:
		return errs.Newf(errs.Busy, "%d results of this session were never read", len(s.open))
	}
	s.inFlight++
	s.used = time.Now()
	return nil
}

func (s *sessionState) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight--
}

// handed records a result that goes into the sandbox; taken is its acknowledgment.
func (s *sessionState) handed(record string, o outgoing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.out) < 2*maxOpen { // a guest that acknowledges nothing costs no more; its acknowledgments are then looked up
		s.out[record] = o
	}
}

func (s *sessionState) taken(record string) (outgoing, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.out[record]
	delete(s.out, record)
	return o, ok
}

func (s *sessionState) unread(record string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.out[record]
	return ok
}

func (s *sessionState) upstreamOf(connection string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.upstream[connection]
	return b, ok
}

func (s *sessionState) setUpstream(connection string, sealed []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.upstream[connection] = sealed
}
