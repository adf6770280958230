package hostside

import (
	"sallyport.dev/relay"
)

// Verdict is what a ledger says to a call record.
type Verdict int

// Verdicts. An id runs once per session for ever; control's row is the last word on ids that a ledger has forgotten.
const (
	Fresh         Verdict = iota // never seen: a new call
	Attached                     // the same bytes, unfinished: its result will come
	Answered                     // the same bytes, its result lies unread
	Finished                     // the same bytes, answered and read: control is asked for the recorded answer
	Conflicting                  // the same id with other bytes
	TooManyFlying                // over [relay.MaxInFlight]
	TooManyUnread                // over [relay.MaxUnacknowledged]
)

func (v Verdict) String() string {
	return [...]string{"fresh", "attached", "answered", "finished", "conflicting", "too many in flight", "too many unread"}[v]
}

// tombstones bounds what a ledger remembers of finished calls. A host forgets the oldest; control never does.
const tombstones = 16384

type phase uint8

const (
	flying   phase = iota // its result is owed
	unread                // published, not acknowledged
	finished              // acknowledged, or answered for good
)

type line struct {
	digest  relay.Digest
	unknown bool // recovered with its result: the digest is not known here
	phase   phase
}

// Ledger keeps a session's ids: which are in flight, which have a result that nobody read, which are over. It is for one caller at a time.
type Ledger struct {
	lines  map[string]line
	flying int
	unread int
	old    []string // finished ids, a ring from next
	next   int
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger { return &Ledger{lines: make(map[string]line)} }

// Flying returns how many calls are in flight.
func (l *Ledger) Flying() int { return l.flying }

// Unread returns how many results were not acknowledged.
func (l *Ledger) Unread() int { return l.unread }

// Admit judges a call record; only [Fresh] and [Finished] put it in flight.
func (l *Ledger) Admit(id string, digest relay.Digest) Verdict {
	known, ok := l.lines[id]
	switch {
	case ok && !known.unknown && known.digest != digest:
		return Conflicting
	case ok && known.phase == flying:
		return Attached
	case ok && known.phase == unread:
		return Answered
	case l.flying >= relay.MaxInFlight:
		return TooManyFlying
	case l.unread >= relay.MaxUnacknowledged:
		return TooManyUnread
	}
	l.set(id, line{digest: digest, phase: flying})
	if ok {
		return Finished
	}
	return Fresh
}

// Recover puts a call in flight that an earlier process had claimed.
func (l *Ledger) Recover(id string, digest relay.Digest) {
	l.set(id, line{digest: digest, phase: flying})
}

// RecoverPublished notes a result that an earlier process had published.
func (l *Ledger) RecoverPublished(id string) { l.set(id, line{unknown: true, phase: unread}) }

// Published notes that id has a result now. It reports whether the call was in flight.
func (l *Ledger) Published(id string) bool { return l.move(id, flying, unread) }

// Refused notes a result of the host's own for a record that was not put in flight: its id is spent, and the result waits to be read. What an
// id meant before stays what it means.
func (l *Ledger) Refused(id string, digest relay.Digest) {
	to := line{digest: digest, phase: unread}
	if known, ok := l.lines[id]; ok {
		to.digest, to.unknown = known.digest, known.unknown
	}
	l.set(id, to)
}

// MayRefuse reports whether there is room for a refusal of id: one more unread result, within twice the bound, and none of its own yet.
func (l *Ledger) MayRefuse(id string) bool {
	known, ok := l.lines[id]
	return l.unread < 2*relay.MaxUnacknowledged && (!ok || known.phase == finished)
}

// Acknowledged notes that id's result was read. It reports whether there was one to read.
func (l *Ledger) Acknowledged(id string) bool { return l.move(id, unread, finished) }

// Waiting reports whether id is in flight.
func (l *Ledger) Waiting(id string) bool {
	known, ok := l.lines[id]
	return ok && known.phase == flying
}

func (l *Ledger) move(id string, from, to phase) bool {
	known, ok := l.lines[id]
	if !ok || known.phase != from {
		return false
	}
	known.phase = to
	l.set(id, known)
	return true
}

func (l *Ledger) set(id string, to line) {
	if known, ok := l.lines[id]; ok {
		l.count(known.phase, -1)
	}
	l.lines[id] = to
	l.count(to.phase, 1)
	if to.phase == finished {
		l.bury(id)
	}
}

func (l *Ledger) count(p phase, n int) {
	switch p {
	case flying:
		l.flying += n
	case unread:
		l.unread += n
	case finished:
	}
}

// bury remembers id among the finished ones and forgets the oldest of them where there are too many.
func (l *Ledger) bury(id string) {
	if len(l.old) < tombstones {
		l.old = append(l.old, id)
		return
	}
	oldest := l.old[l.next]
	if known, ok := l.lines[oldest]; ok && known.phase == finished {
		delete(l.lines, oldest)
	}
	l.old[l.next] = id
	l.next = (l.next + 1) % tombstones
}
