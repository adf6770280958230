package shim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

// Config says what a server speaks with.
type Config struct {
	In  io.Reader // the harness's lines
	Out io.Writer // whole JSON-RPC lines and nothing else
	Log io.Writer // lines for a person, where something is wrong; never a message's content

	RelayIn, RelayOut string // the two halves of the relay directory
	Build             string // stands in serverInfo
}

// Server serves one pipe.
type Server struct {
	build     string
	log       io.Writer
	out       *lineWriter
	in        *lineReader
	dir       *directory
	open      *openRequests
	unclaimed time.Duration // how long a record may lie unclaimed
	serving   sync.WaitGroup
	telling   *relay.Allowance // of what was refused here; only the reading goroutine touches it

	// What a handshake agreed on. Only the reading goroutine touches it.
	handshake bool
	version   string
	client    string
	spoken    bool // a modern request was served
}

// New returns a server. Nothing is read, written or opened before [Server.Run].
func New(c Config) *Server {
	return &Server{
		build:     c.Build,
		log:       c.Log,
		out:       &lineWriter{w: c.Out},
		in:        newLineReader(c.In, relay.MaxLine),
		dir:       newDirectory(c.RelayIn, c.RelayOut),
		open:      newOpenRequests(),
		unclaimed: unclaimedPatience,
		telling:   relay.NewAllowance(tellBurst, tellEvery),
	}
}

// Run serves until the harness closes its pipe, its end of ours is gone, or ctx ends: in each case the harness is leaving. What then waits is
// detached: it lives on at the host, and a new server's harness may wait for it again. Run returns nil, or the error of reading the pipe. In
// may still be blocked in a Read when it returns because of ctx.
func (s *Server) Run(ctx context.Context) error {
	read := make(chan error, 1)
	broken := make(chan struct{})
	s.out.broken = sync.OnceFunc(func() { close(broken) })
	go func() { read <- s.readAll() }()
	var err error
	select {
	case err = <-read:
	case <-broken:
	case <-ctx.Done():
	}
	ended := s.detach()
	s.dir.guest.Close() //nolint:errcheck // the directory outlives us whatever it says
	farewell := make(chan struct{})
	go func() {
		defer close(farewell)
		for _, r := range ended {
			s.out.try(appendSubscriptionEnd(nil, r.id, s.build))
		}
		s.serving.Wait()
	}()
	select {
	case <-farewell:
	case <-time.After(farewellPatience): // the harness holds its end and does not read
	}
	return err
}

// farewellPatience is how long a harness that leaves may take to read what is still being written.
const farewellPatience = 200 * time.Millisecond

// readAll serves lines until the pipe ends.
func (s *Server) readAll() error {
	for {
		line, err := s.in.next()
		var long errTooLong
		switch {
		case errors.As(err, &long):
			s.tell(errs.Oversize, "")
			s.refuse(long.id, newError(codeInvalidRequest, fmt.Sprintf("the line is longer than %d bytes; nothing of it was served", relay.MaxLine)))
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		default:
			s.serveLine(line)
		}
	}
}

// detach tells the host that nobody waits any more, for every open call. It returns the open subscriptions, which it ended.
func (s *Server) detach() (subscriptions []*openRequest) {
	for _, r := range s.open.close() {
		if r.subscription {
			subscriptions = append(subscriptions, r)
			continue
		}
		s.cancel(r.pending, relay.WhyClosed)
		r.stop()
	}
	return subscriptions
}

func (s *Server) cancel(p *relay.Pending, why relay.Why) {
	if err := p.Cancel(why); err != nil {
		s.logf("the host was not told that nobody waits for call %s: %v", p.ID(), err)
	}
}

func (s *Server) logf(format string, args ...any) {
	fmt.Fprintf(s.log, "sallyport-guest shim: "+format+"\n", args...)
}

// serveLine serves the messages of one line.
func (s *Server) serveLine(line []byte) {
	all, batch, fatal := parseLine(line)
	if fatal != nil {
		s.tell(errs.Invalid, "")
		s.refuse(nil, fatal)
		return
	}
	if !batch {
		for _, m := range all {
			s.serve(m, s.out)
		}
		return
	}
	if !s.handshake || !batches(s.version) {
		s.refuse(nil, newError(codeInvalidRequest, "batches exist in revision "+batchVersion+" only; send one message a line"))
		return
	}
	b := newBatch(s.out, len(all))
	for _, m := range all {
		if m.err == nil && m.method == "initialize" {
			m.err = newError(codeInvalidRequest, "initialize is never part of a batch")
		}
		s.serve(m, b)
	}
}

// serve serves one message; exactly one answer or skip goes to the answers, now or later.
func (s *Server) serve(m parsed, to answers) {
	if m.err != nil && m.err.code == codeParse {
		s.tell(errs.Invalid, "")
	}
	switch {
	case m.err != nil && m.id == nil && m.method != "":
		to.skip() // a broken notification: there is nobody to answer
	case m.err != nil:
		to.answer(appendError(nil, s.errorID(m.id), m.err), nil)
	case m.method == "":
		to.skip() // a response: this server never asks
	case m.id == nil:
		to.skip()
		s.notified(m.message)
	default:
		s.request(m.message, to)
	}
}

// Of what it refuses by itself a shim tells the host so many at once, then one for each of these times.
const (
	tellBurst = 16
	tellEvery = time.Second
)

// tell has it journaled that something was refused here. Where no host listens nothing can be: the agent is answered all the same.
func (s *Server) tell(code errs.Code, tool string) {
	session, err := s.dir.now()
	if err != nil {
		return
	}
	more, ok := s.telling.Take(time.Now(), 0)
	if !ok {
		return // the next that is told counts it
	}
	if len(tool) > relay.MaxToolName {
		tool = ""
	}
	if err := s.dir.guest.Refused(&relay.Refused{Session: session.Session, Epoch: session.Epoch, Code: code, Tool: tool, More: more}); err != nil {
		s.logf("the host was not told what was refused: %v", err)
	}
}

// refuse answers a line, or a part of it, that is no request that could be served.
func (s *Server) refuse(id []byte, e *rpcError) {
	s.out.answer(appendError(nil, s.errorID(id), e), nil)
}

// errorID returns what stands as the id of an error: the request's, or what the revision spoken says where it could not be read. JSON-RPC 2.0
// says null; the schemas from 2025-11-25 on leave it out.
func (s *Server) errorID(id []byte) []byte {
	if id != nil || s.spoken || s.handshake && s.version >= idOptionalVersion {
		return id
	}
	return []byte("null")
}

// notified serves a notification. Unknown ones are ignored, as JSON-RPC has it: among them those that name a request.
func (s *Server) notified(m message) {
	if m.method == "notifications/cancelled" {
		s.cancelled(m.params)
	}
}
