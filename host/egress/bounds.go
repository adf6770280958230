package egress

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/semaphore"
)

// What a guest asks costs the host, and the host serves all sessions: bodies take memory, rulings the processor, refusals lines of the record.
const (
	bodyBytes     = 2 * MaxBody // of the bodies that one session has under way
	requestsBurst = 200
	requestsEvery = 20 * time.Millisecond // beyond the burst, a request is taken so often: the key is the host's
	refusalsBurst = 100
	refusalsEvery = 100 * time.Millisecond // the same for answering a refusal
	maxText       = 200                    // bytes of each text in a decision
)

// rulings bounds how many bodies are read as JSON at once, over all sessions.
var rulings = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))

// body reads a request's body into memory, once the session has room for it. free gives the room back, once. Errors: ctx's; what reading says, where
// the body is over [MaxBody] too.
func (g *Gateway) body(w http.ResponseWriter, r *http.Request) (body []byte, free func(), err error) {
	if r.ContentLength > MaxBody {
		return nil, nil, &http.MaxBytesError{Limit: MaxBody}
	}
	room := r.ContentLength
	if room < 0 { // it does not say
		room = MaxBody
	}
	if err := g.bodies.Acquire(r.Context(), room); err != nil {
		return nil, nil, err
	}
	if r.ContentLength >= 0 {
		body = make([]byte, r.ContentLength)
		_, err = io.ReadFull(r.Body, body)
	} else {
		body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	}
	if err != nil {
		g.bodies.Release(room)
		return nil, nil, err
	}
	if rest := room - int64(len(body)); rest > 0 {
		g.bodies.Release(rest)
	}
	size := int64(len(body))
	return body, sync.OnceFunc(func() { g.bodies.Release(size) }), nil
}

func newBodies() *semaphore.Weighted { return semaphore.NewWeighted(bodyBytes) }

// sending is a body on its way to the provider. Its room is free when it was sent, however long the answer takes.
type sending struct {
	*bytes.Reader
	free func()
}

// Close implements io.Closer.
func (s *sending) Close() error {
	s.free()
	return nil
}

// rule is [Rule] in its turn. Errors: ctx's.
func (g *Gateway) rule(ctx context.Context, prefix, method, path, query string, body []byte) (Ruling, error) {
	select {
	case rulings <- struct{}{}:
		defer func() { <-rulings }()
		return Rule(prefix, method, path, query, body, g.policy.Allow...), nil
	case <-ctx.Done():
		return Ruling{}, ctx.Err()
	}
}

// pace makes a guest wait that asks for one thing after the other: a burst is free, then each has its turn.
type pace struct {
	burst int
	every time.Duration

	mu   sync.Mutex
	next time.Time // when a full burst is there again
}

// turn is how long what is due at now has to wait.
func (p *pace) turn(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(p.every)
	return max(0, p.next.Sub(now)-time.Duration(p.burst)*p.every)
}

// wait waits for the turn, or for ctx.
func (p *pace) wait(ctx context.Context) {
	pause := p.turn(time.Now())
	if pause <= 0 {
		return
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// safe is a text that a guest chose, for the record: a bounded beginning of it, in valid UTF-8. A frame of the host's Link carries no other, and one
// that cannot be sent would end the Link of all sessions.
func safe(s string) string {
	if len(s) > maxText {
		s = s[:maxText]
		for len(s) > 0 && !utf8.RuneStart(s[len(s)-1]) {
			s = s[:len(s)-1]
		}
		s = s[:len(s)-1] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}
