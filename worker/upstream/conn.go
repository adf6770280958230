package upstream

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"sallyport.dev/identity/rawio"
	"sallyport.dev/worker/netguard"
)

// meter counts the bytes that the kernel took. Beneath TLS these are records; above zero of them no claim of "not sent" stands.
type meter struct {
	net.Conn
	wrote atomic.Int64
}

// Write counts what the kernel took.
func (m *meter) Write(b []byte) (int, error) {
	n, err := m.Conn.Write(b)
	m.wrote.Add(int64(n))
	return n, err
}

// Bounds of an answer's bytes on the wire.
const (
	headBytes  = 64 << 10
	bufferSize = 8 << 10
)

var errOversize = errors.New("over a bound")

// source reads from a connection within a budget of bytes and two deadlines: one for the whole answer, one for silence.
type source struct {
	stream net.Conn

	mu        sync.Mutex
	budget    int64
	deadline  time.Time     // of the whole; zero: idle, no deadline
	silence   time.Duration // 0: none
	paused    int           // questions to a person are open: the server waits for us
	answer    int           // counts the answers that were awaited here
	quiet     bool          // the deadline that is set is that of silence
	cancelled bool
	err       error // the last read's
}

// Read fails with errOversize beyond the budget.
func (s *source) Read(p []byte) (int, error) {
	s.mu.Lock()
	left := s.budget
	s.mu.Unlock()
	if left <= 0 {
		return 0, errOversize
	}
	if int64(len(p)) > left {
		p = p[:left]
	}
	n, err := s.stream.Read(p)
	s.mu.Lock()
	s.budget -= int64(n)
	s.err = err
	if n > 0 {
		s.setDeadline()
	}
	s.mu.Unlock()
	return n, err
}

// setDeadline sets the nearer of both deadlines; the caller holds mu.
func (s *source) setDeadline() {
	if s.cancelled || s.deadline.IsZero() {
		return
	}
	d := s.deadline
	s.quiet = false
	if s.silence > 0 && s.paused == 0 {
		if quiet := time.Now().Add(s.silence); quiet.Before(d) {
			d, s.quiet = quiet, true
		}
	}
	_ = s.stream.SetReadDeadline(d) // a dead connection says so on the next read
}

// arm starts the clocks of one answer whose head may have headBytes.
func (s *source) arm(deadline time.Time, silence time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer++
	s.budget, s.deadline, s.silence, s.paused, s.cancelled, s.err = headBytes, deadline, silence, 0, false, nil
	_ = s.stream.SetWriteDeadline(deadline)
	s.setDeadline()
}

// rest stops the clocks: the connection is idle.
func (s *source) rest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer++
	s.budget, s.deadline = headBytes, time.Time{}
	_ = s.stream.SetDeadline(time.Time{})
}

// allow adds to the budget.
func (s *source) allow(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.budget += bytes
}

// pause stops the clock of silence until the returned function is called; afterwards, or once the answer is over, that does nothing.
func (s *source) pause() func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused++
	s.setDeadline()
	answer := s.answer
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.answer == answer {
			s.paused--
			s.setDeadline()
		}
	})
}

// cancel ends a read or write that is under way, and all later ones.
func (s *source) cancel() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancelled = true
	_ = s.stream.SetDeadline(time.Unix(1, 0))
}

// ended is the error with which the last read failed, or nil.
func (s *source) ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// late says which clock a read that missed its deadline ran into.
func (s *source) late() Failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.cancelled:
		return FailCancelled
	case s.quiet:
		return FailSilence
	}
	return FailTimeout
}

// conn is one connection to an origin. It belongs to one goroutine at a time, or to the pool.
type conn struct {
	key     string // of the pool
	addr    netip.AddrPort
	meter   *meter
	stream  net.Conn // meter, or TLS over it
	src     *source
	in      *bufio.Reader
	opened  time.Time
	used    bool          // a request was written, or begun
	ready   chan struct{} // closed when the first byte of whatever comes next is here, or the connection ended
	err     error         // why it ended, once ready is closed
	writing atomic.Bool
	resting atomic.Bool // in the pool
	expiry  *time.Timer // while it rests
}

func newConn(key string, addr netip.AddrPort, m *meter, stream net.Conn) *conn {
	src := &source{stream: stream, budget: headBytes}
	return &conn{key: key, addr: addr, meter: m, stream: stream, src: src, in: bufio.NewReaderSize(src, bufferSize), opened: time.Now()}
}

// earlyGrace is how long a request may still be written once the server speaks before it was whole: a server that refuses by the head (413) and
// stops reading would hold the write until the end of its time.
const earlyGrace = time.Second

// watch waits in the background for the next byte, so that a connection which the server closes, or on which it speaks out of turn, is known
// before anything is written on it. onIdle is called when that happens while the connection rests.
func (k *conn) watch(wg *sync.WaitGroup, onIdle func(*conn)) {
	k.ready = make(chan struct{})
	ready := k.ready
	wg.Go(func() {
		_, err := k.in.Peek(1)
		k.err = err
		if k.writing.Load() {
			_ = k.stream.SetWriteDeadline(time.Now().Add(earlyGrace))
		}
		close(ready)
		if k.resting.Load() {
			onIdle(k)
		}
	})
}

// spoke reports whether the connection ended, or the server spoke, although nothing was asked.
func (k *conn) spoke() bool {
	select {
	case <-k.ready:
		return true
	default:
		return false
	}
}

func (k *conn) close() {
	if k.expiry != nil {
		k.expiry.Stop()
	}
	k.stream.Close()
}

// write hands b to the connection in one piece and returns how many application bytes may have left. Zero is proof: the kernel took nothing.
func (k *conn) write(b []byte) (int64, error) {
	k.used = true
	k.writing.Store(true)
	defer k.writing.Store(false)
	before := k.meter.wrote.Load()
	n, err := k.stream.Write(b)
	if k.meter.wrote.Load() == before {
		return 0, err
	}
	// A TLS record that left in part counts as a byte: the peer cannot open it, but proof must not rest on that.
	return max(int64(n), 1), err
}

// readFailure puts an error of reading an answer into a word. some says that a byte of the answer had come.
func (k *conn) readFailure(err error, some bool) Failure {
	switch {
	case errors.Is(err, errOversize):
		return FailOversize
	case errors.Is(err, os.ErrDeadlineExceeded):
		return k.src.late()
	case isReset(err), !some:
		return FailReset
	}
	return FailCut
}

// open resolves, checks, dials and, for https, does the handshake. Errors: *[Error].
func (c *Client) open(ctx context.Context, r *route) (*conn, error) {
	m, stream, addr, err := c.dial(ctx, r)
	if err != nil {
		return nil, opening(err)
	}
	k := newConn(r.key, addr, m, stream)
	k.watch(&c.background, c.pool.drop)
	return k, nil
}

// dialGuarded is [Client.dial]; tests put another in its place.
func (c *Client) dialGuarded(ctx context.Context, r *route) (*meter, net.Conn, netip.AddrPort, error) {
	step := func(f func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, r.limits.Connect)
		defer cancel()
		return f(ctx)
	}
	var (
		checked netguard.Checked
		m       *meter
		addr    netip.AddrPort
	)
	if err := step(func(ctx context.Context) (err error) {
		checked, err = c.guard.Resolve(ctx, r.origin, r.policy)
		return err
	}); err != nil {
		return nil, nil, addr, err
	}
	if err := step(func(ctx context.Context) (err error) {
		var raw net.Conn
		raw, addr, err = c.guard.Dial(ctx, checked)
		m = &meter{Conn: rawio.New(raw)}
		return err
	}); err != nil {
		return nil, nil, addr, err
	}
	if !r.origin.TLS {
		return m, m, addr, nil
	}
	var stream net.Conn
	err := step(func(ctx context.Context) error {
		t, err := c.guard.Handshake(ctx, m, r.origin, r.trust)
		stream = t
		return err
	})
	return m, stream, addr, err
}
