package upstream

import (
	"context"
	"maps"
	"strconv"
	"sync"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

// session is what an old-era server agreed to at initialize. Its id is as good as a login on some servers: it shows itself nowhere.
type session struct {
	revision string
	id       string // "": the server keeps no sessions
	elicit   bool   // it was told that forms can be answered
	checked  time.Time
}

// sessionFresh is how long a session counts as alive without asking. A call on an expired one would be refused, and for a write that refusal is
// final; a ping before it is not.
const sessionFresh = 30 * time.Second

// export is the session as bytes, for the caller to seal.
func (s *session) export() []byte {
	if s == nil {
		return nil
	}
	b := appendText([]byte(`{"v":1,`), "protocol", s.revision)
	b = appendText(b, "id", s.id)
	b = appendMember(b, "elicit", strconv.AppendBool(nil, s.elicit))
	b[len(b)-1] = '}'
	return b
}

// importSession reads what export wrote. Errors: *[Error] of FailRequest; the text never quotes the session.
func importSession(b []byte) (*session, error) {
	m, err := strictjson.Object(b, nil)
	if err != nil || len(m) != 4 || text(b, "protocol") == "" {
		return nil, badRequest("the stored session of the server cannot be read", nil)
	}
	s := &session{revision: text(b, "protocol"), id: text(b, "id")}
	raw, _ := strictjson.Lookup(b, "elicit")
	elicit, ok := strictjson.Bool(raw)
	s.elicit = elicit
	if v, _ := strictjson.Lookup(b, "v"); string(v) != "1" || !ok || !knownOld(s.revision) || !validSessionID(s.id) {
		return nil, badRequest("the stored session of the server cannot be read", nil)
	}
	return s, nil
}

// validSessionID accepts visible ASCII (2025-11-25, "Session Management"), or none.
func validSessionID(id string) bool {
	for i := range len(id) {
		if id[i] < 0x21 || id[i] > 0x7e {
			return false
		}
	}
	return len(id) <= 4<<10
}

// sessions are the old-era sessions in memory, one slot per owner and what was declared. The slot is locked while a session is opened, so that calls that start
// together share it.
type sessions struct {
	mu    sync.Mutex
	slots map[string]*slot
}

type slot struct {
	turn chan struct{} // holds one token; whoever has it may look and change
	s    *session
	dead string // the id that the server forgot, so that an older export does not bring it back
	used time.Time
}

// maxSessions bounds the slots; the ones that were not used for sessionIdle go first.
const (
	maxSessions = 4096
	sessionIdle = 10 * time.Minute
)

// lock waits for the slot of owner.
func (t *sessions) lock(ctx context.Context, owner string) (*slot, error) {
	t.mu.Lock()
	if t.slots == nil {
		t.slots = map[string]*slot{}
	}
	s := t.slots[owner]
	if s == nil {
		if len(t.slots) >= maxSessions {
			maps.DeleteFunc(t.slots, func(_ string, s *slot) bool { return time.Since(s.used) > sessionIdle && len(s.turn) == 1 })
		}
		s = &slot{turn: make(chan struct{}, 1)}
		s.turn <- struct{}{}
		if len(t.slots) < maxSessions {
			t.slots[owner] = s
		}
	}
	s.used = time.Now()
	t.mu.Unlock()
	select {
	case <-s.turn:
		return s, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func slotOf(owner string, elicit bool) string { return owner + "\n" + strconv.FormatBool(elicit) }

func (s *slot) unlock() { s.turn <- struct{}{} }

// forget drops the session of owner, if it still is this one.
func (c *Client) forget(ctx context.Context, owner string, old *session) {
	if owner == "" || old == nil {
		return
	}
	s, err := c.sessions.lock(ctx, slotOf(owner, old.elicit))
	if err != nil {
		return
	}
	defer s.unlock()
	if s.s != nil && s.s.id == old.id {
		s.s, s.dead = nil, old.id
	}
}

// alive notes that a call on this session was answered. Where somebody is busy with the slot it is left alone.
func (c *Client) alive(owner string, s *session) {
	if owner == "" || s == nil {
		return
	}
	c.sessions.mu.Lock()
	defer c.sessions.mu.Unlock()
	slot := c.sessions.slots[slotOf(owner, s.elicit)]
	if slot == nil {
		return
	}
	select {
	case <-slot.turn:
		if slot.s != nil && slot.s.id == s.id {
			slot.s.checked = time.Now()
		}
		slot.unlock()
	default:
	}
}

// session settles the session of a call on an old-era server: the one in memory, or the caller's, checked when it is not fresh; else a new one.
func (c *Client) session(ctx context.Context, r *route, revision string, elicit bool, stored []byte) (*session, error) {
	var given *session
	if stored != nil {
		var err error
		if given, err = importSession(stored); err != nil {
			return nil, err
		}
		if given.elicit != elicit { // what was agreed on is not what this call may do
			given = nil
		}
	}
	if r.owner == "" {
		return c.settleSession(ctx, r, revision, elicit, given)
	}
	s, err := c.sessions.lock(ctx, slotOf(r.owner, elicit))
	if err != nil {
		return nil, &Error{Failure: FailInitialize, err: errs.Wrap(errs.Unreachable, "no session of the server in time", err)}
	}
	defer s.unlock()
	if s.s == nil && given != nil && given.id != s.dead {
		s.s = given
	}
	fresh, err := c.settleSession(ctx, r, revision, elicit, s.s)
	if err != nil {
		return nil, err
	}
	if s.s != nil && fresh.id != s.s.id {
		s.dead = s.s.id
	}
	s.s = fresh
	return fresh, nil
}

func (c *Client) settleSession(ctx context.Context, r *route, revision string, elicit bool, s *session) (*session, error) {
	if s == nil {
		return c.initialize(ctx, r, revision, elicit)
	}
	if s.id == "" || time.Since(s.checked) < sessionFresh {
		return s, nil
	}
	alive, err := c.ping(ctx, r, s)
	if err != nil {
		return nil, err
	}
	if !alive {
		return c.initialize(ctx, r, revision, elicit)
	}
	checked := *s
	checked.checked = time.Now()
	return &checked, nil
}

// ping asks whether the server still knows the session. Any complete answer but those that mean an unknown session (404, and 400 on some
// servers) says that it does.
func (c *Client) ping(ctx context.Context, r *route, s *session) (bool, error) {
	q := &rpc{version: c.version, id: askID("ping"), method: "ping"}
	rep, err := c.ask(ctx, r, c.newExchange(r, q, s.revision, s.id, "", nil))
	switch {
	case err != nil:
		return false, err
	case rep.failure == "":
		return true, nil
	case rep.failure == FailStatus && (rep.status == 404 || rep.status == 400):
		return false, nil
	}
	return false, asking("ping", &rep)
}

// initialize opens a session: initialize, then notifications/initialized.
func (c *Client) initialize(ctx context.Context, r *route, revision string, elicit bool) (*session, error) {
	s, _, err := c.initializeFully(ctx, r, revision, elicit)
	return s, err
}

// initializeFully is initialize that also returns the server's result.
func (c *Client) initializeFully(ctx context.Context, r *route, revision string, elicit bool) (*session, []byte, error) {
	if !knownOld(revision) {
		revision = latestOld
	}
	q := &rpc{version: c.version, id: askID("initialize"), method: "initialize"}
	q.params = appendText(q.params, "protocolVersion", revision)
	q.params = appendMember(q.params, "capabilities", oldCapabilities(elicit))
	q.params = appendMember(q.params, "clientInfo", clientInfo(c.version))
	rep, err := c.ask(ctx, r, c.newExchange(r, q, "", "", "", nil))
	if err != nil {
		return nil, nil, err
	}
	if rep.failure != "" || rep.message.fault != nil {
		return nil, nil, asking("initialize", &rep)
	}
	s := &session{revision: text(rep.message.result, "protocolVersion"), id: rep.session, elicit: elicit, checked: time.Now()}
	if !knownOld(s.revision) || !validSessionID(s.id) {
		return nil, nil, &Error{Failure: FailInitialize, Status: rep.status, err: errs.New(errs.Unreachable, "the server speaks no revision of the protocol that is known here")}
	}
	q = &rpc{version: c.version, method: "notifications/initialized"}
	note, err := c.ask(ctx, r, c.newExchange(r, q, s.revision, s.id, "", nil))
	if err != nil {
		return nil, nil, err
	}
	if note.failure != "" {
		return nil, nil, asking("notifications/initialized", &note)
	}
	return s, rep.message.result, nil
}

// EndSession tells an old-era server that an exported session is not needed any more. A server may refuse; that is no error. Errors: *[Error] of
// FailRequest, or of opening a connection.
func (c *Client) EndSession(ctx context.Context, t *Target, stored []byte) error {
	r, err := newRoute(t)
	if err != nil {
		return err
	}
	s, err := importSession(stored)
	if err != nil {
		return err
	}
	c.forget(ctx, r.owner, s)
	return c.endSession(ctx, r, s)
}

func (c *Client) endSession(ctx context.Context, r *route, s *session) error {
	if s == nil || s.id == "" {
		return nil
	}
	head := appendHead(nil, "DELETE", r, "application/json")
	if s.revision >= headerSince {
		head = appendHeader(head, "MCP-Protocol-Version", s.revision)
	}
	head = appendHeader(head, "Mcp-Session-Id", s.id)
	x := &exchange{wire: append(head, "\r\n"...), kind: kindNotice, answer: r.limits.Answer, silence: r.limits.Silence, result: r.limits.Result, secret: r.credential}
	_, err := c.ask(ctx, r, x)
	return err
}
