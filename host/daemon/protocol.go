package daemon

import (
	"bufio"
	"context"
	"errors"
	"io"
	"time"

	"github.com/go-json-experiment/json"

	"sallyport.dev/errs"
	"sallyport.dev/identity/unixsock"
)

// host.sock takes one request a connection: open a session, or end one ([Remove]). The process at the other end, as the kernel names it, becomes the session's only parent:
// it alone can open the gate (package gate), and when it is gone the session ends.
const (
	maxProtocolLine = 1 << 20
	requestTime     = 10 * time.Second
	replyTime       = 60 * time.Second
)

// Ops of a request; opening is the empty one.
const opRemove = "remove"

// Request asks for a session.
type Request struct {
	V        int    `json:"v"`
	Op       string `json:"op,omitempty"`
	Session  string `json:"session,omitempty"` // of what is removed
	Profile  string `json:"profile"`
	Ticket   string `json:"ticket"` // the owner's
	Attended bool   `json:"attended"`
	Harness  string `json:"harness"`
	Driver   string `json:"driver"`
	Insecure bool   `json:"insecure"` // the user's word that no sandbox is wanted
}

// Opened is a session that the host has made ready: its directories, the guest's programs, its bridge. Nothing runs yet.
type Opened struct {
	Session   string   `json:"session"`
	Epoch     int64    `json:"epoch"`
	Dir       string   `json:"dir"`
	In        string   `json:"in"`
	Out       string   `json:"out"`
	UID       int      `json:"uid"` // owns what the guest writes
	GID       int      `json:"gid"`
	Owner     string   `json:"owner"`
	Server    string   `json:"server"`   // the MCP server's name in the harness
	Provider  string   `json:"provider"` // of the model; none without one
	Closed    string   `json:"closed"`   // what the profile demands
	Workspace string   `json:"workspace"`
	Protected []string `json:"protected,omitempty"`
	EnvFiles  bool     `json:"env_files,omitempty"`
	Memory    int64    `json:"memory"`
	PIDs      int64    `json:"pids"`
	CPU       float64  `json:"cpu"`
	HoldMS    int64    `json:"hold_ms"`
	Gate      string   `json:"gate"`           // the socket at which the supervisor proves itself
	Note      string   `json:"note,omitempty"` // what the person should know before the agent starts
}

// reply is the daemon's one line.
type reply struct {
	Code    errs.Code `json:"code,omitempty"` // not empty: it failed
	Message string    `json:"message,omitempty"`
	Opened  *Opened   `json:"opened,omitempty"`
	Removed bool      `json:"removed,omitempty"` // and nothing of it was found afterwards
}

const protocolVersion = 1

func readLine(r io.Reader, into any) error {
	lines := bufio.NewReader(io.LimitReader(r, maxProtocolLine))
	line, err := lines.ReadBytes('\n')
	if err != nil {
		if errors.Is(err, io.EOF) {
			return errs.New(errs.Invalid, "a line of the host's socket was cut or is too long")
		}
		return err
	}
	if err := json.Unmarshal(line, into, json.RejectUnknownMembers(true)); err != nil {
		return errs.Wrap(errs.Invalid, "a line of the host's socket is not of its protocol", err)
	}
	return nil
}

func writeLine(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// Open asks the daemon at path for a session; this process becomes its parent. Errors: [errs.Unreachable], and what the daemon or control say.
func Open(ctx context.Context, path string, r Request) (*Opened, error) {
	got, err := ask(ctx, path, r)
	if err == nil && got.Opened == nil {
		err = errs.New(errs.Internal, "the host opened nothing")
	}
	return got.Opened, err
}

// Remove has the host on path end a session's sandbox, and returns once nothing of it is left on the machine. Errors: [errs.Unreachable] where
// no host answers, [errs.NotFound], what the host says.
func Remove(ctx context.Context, path, session string) error {
	got, err := ask(ctx, path, Request{Op: opRemove, Session: session})
	if err == nil && !got.Removed {
		err = errs.New(errs.Internal, "the host removed nothing")
	}
	return err
}

// ask makes one request.
func ask(ctx context.Context, path string, r Request) (reply, error) {
	dialing, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	c, err := unixsock.Dial(dialing, path)
	if err != nil {
		return reply{}, errs.Wrap(errs.Unreachable, "this machine's host does not answer; is it up? Start it with: sallyport up", err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	r.V = protocolVersion
	var got reply
	err = c.SetDeadline(time.Now().Add(replyTime))
	if err == nil {
		err = writeLine(c, r)
	}
	if err == nil {
		err = readLine(c, &got)
	}
	switch {
	case ctx.Err() != nil:
		return reply{}, ctx.Err()
	case err != nil:
		return reply{}, errs.Wrap(errs.Unreachable, "the host went away while it worked", err)
	case got.Code != "":
		return reply{}, errs.New(got.Code, got.Message)
	}
	return got, nil
}
