package gate

import (
	"bufio"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox/proc"
)

// Version is the version of the protocol between a supervisor and its host. A supervisor outlives its host's upgrade, so the one before is
// served too.
const Version = 1

// maxMessage bounds one line.
const maxMessage = 64 << 10

// message kinds: the host speaks first.
//
//	host        challenge
//	supervisor  proof
//	host        refused, and closes; or open (at once for a sandbox whose gate is open already)
//	host        stop
//	supervisor  ended, and closes
type envelope struct {
	V         int          `json:"v"`
	Challenge []byte       `json:"challenge,omitzero"`
	Statement []byte       `json:"statement,omitzero"`
	Signature []byte       `json:"signature,omitzero"`
	Open      bool         `json:"open,omitzero"`
	Refused   *Refusal     `json:"refused,omitzero"`
	Stop      *stopMessage `json:"stop,omitzero"`
	Ended     *Ended       `json:"ended,omitzero"`
}

// Refusal is why a gate stays shut.
type Refusal struct {
	Code    errs.Code `json:"code"`
	Reason  Reason    `json:"reason"`
	Message string    `json:"message"`
}

// StopReason asks a supervisor to end its sandbox.
type StopReason struct {
	Message string        // what a person at its terminal reads
	Grace   time.Duration // how long the agent may take to end by itself
	Park    bool
}

// stopMessage is a StopReason on the wire.
type stopMessage struct {
	Message string `json:"message"`
	GraceMS int64  `json:"grace_ms"`
	Park    bool   `json:"park"`
}

func (r StopReason) wire() *stopMessage {
	return &stopMessage{r.Message, r.Grace.Milliseconds(), r.Park}
}

// maxGrace bounds what a supervisor waits for its agent, whatever the host says.
const maxGrace = time.Hour

func (m *stopMessage) reason() StopReason {
	return StopReason{m.Message, time.Duration(min(max(m.GraceMS, 0), maxGrace.Milliseconds())) * time.Millisecond, m.Park}
}

// Ended is what a supervisor says last.
type Ended struct {
	Ran     bool     `json:"ran"` // the agent was started
	Code    int      `json:"code"`
	Absent  bool     `json:"absent"`  // no process of the sandbox is left, proven
	Remarks []string `json:"remarks"` // what a person should look at
}

// conn speaks the protocol. Writing may happen beside reading.
type conn struct {
	net.Conn
	r  *bufio.Reader
	mu sync.Mutex
}

// usualMessage is the buffer of a connection, which lives as long as its sandbox and is nearly always silent.
const usualMessage = 512

func newConn(c net.Conn) *conn { return &conn{Conn: c, r: bufio.NewReaderSize(c, usualMessage)} }

func (c *conn) send(e envelope) error {
	e.V = Version
	line, err := json.Marshal(e)
	if err != nil {
		return errs.Wrap(errs.Internal, "a message cannot be written", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
	_, err = c.Write(append(line, '\n'))
	return err
}

// receive reads one message: strict, and bounded.
func (c *conn) receive() (envelope, error) {
	var e envelope
	var line []byte
	for {
		piece, err := c.r.ReadSlice('\n')
		if len(line)+len(piece) > maxMessage {
			return e, errs.New(errs.Oversize, "a message is too long")
		}
		line = append(line, piece...)
		if err == nil {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return e, err
		}
	}
	if err := json.Unmarshal(line, &e, json.RejectUnknownMembers(true)); err != nil {
		return e, errs.Wrap(errs.Invalid, "a message cannot be read", err)
	}
	if e.V != Version {
		return e, errs.Newf(errs.TooOld, "the other side speaks version %d; restart the sandbox", e.V)
	}
	return e, nil
}

// Peer returns the process at the other end of a Unix socket, as the kernel recorded it when the connection was made.
func Peer(c net.Conn) (proc.ID, int, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return proc.ID{}, 0, errs.New(errs.Internal, "not a Unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return proc.ID{}, 0, err
	}
	var cred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return proc.ID{}, 0, err
	}
	if failed != nil {
		return proc.ID{}, 0, failed
	}
	s, err := proc.Read(int(cred.Pid))
	if err != nil {
		return proc.ID{}, 0, err
	}
	return s.ID, int(cred.Uid), nil
}
