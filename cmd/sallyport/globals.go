package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode/utf16"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/connect/v2/connectproto"
	"golang.org/x/term"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/errs"
	"sallyport.dev/identity/unixsock"
)

// Globals are the flags of every command, and where it reads and writes.
type Globals struct {
	State  string `help:"State directory." env:"SALLYPORT_STATE" placeholder:"DIR"`
	Server string `help:"Control to talk to: unix:PATH or https://HOST. Default: this machine's." env:"SALLYPORT_SERVER" placeholder:"URL"`
	JSON   bool   `help:"Print JSON."`
	Quiet  bool   `short:"q" help:"Print only what was asked for."`

	in       io.Reader
	out, err io.Writer
}

// stateDir is where everything that must outlive a restart lies.
func (g *Globals) stateDir() (string, error) {
	if g.State != "" {
		return filepath.Abs(g.State)
	}
	if os.Geteuid() == 0 {
		return "/var/lib/sallyport", nil
	}
	if x := os.Getenv("XDG_STATE_HOME"); x != "" {
		return filepath.Join(x, "sallyport"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", errs.Wrap(errs.Invalid, "no home directory: name the state directory with --state", err)
	}
	return filepath.Join(home, ".local", "state", "sallyport"), nil
}

// runDir is where sockets lie. With --state it lies inside: two installations on one machine never share a socket.
func (g *Globals) runDir() (string, error) {
	if g.State != "" {
		s, err := g.stateDir()
		return filepath.Join(s, "run"), err
	}
	if x := os.Getenv("XDG_RUNTIME_DIR"); x != "" {
		return filepath.Join(x, "sallyport"), nil
	}
	if os.Geteuid() == 0 {
		return "/run/sallyport", nil
	}
	s, err := g.stateDir()
	return filepath.Join(s, "run"), err
}

func (g *Globals) socket(name string) (string, error) {
	dir, err := g.runDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, name), nil
}

// client is the people's API. Errors of a call are [errs.Error]s: use [answer].
func (g *Globals) client() (sallyportv1connect.OperatorClient, error) {
	c, err := g.connect()
	if err != nil {
		return nil, err
	}
	return sallyportv1connect.NewOperatorClient(c), nil
}

// peopleClient is the API of who may come in.
func (g *Globals) peopleClient() (sallyportv1connect.PeopleClient, error) {
	c, err := g.connect()
	if err != nil {
		return nil, err
	}
	return sallyportv1connect.NewPeopleClient(c), nil
}

// tokenEnv holds the token that goes with requests over HTTPS: never an argument, which others can read.
const tokenEnv = "SALLYPORT_TOKEN"

// connect is the way to control: its socket, or HTTPS with a token.
func (g *Globals) connect() (*connect.Client, error) {
	path, isUnix := strings.CutPrefix(g.Server, "unix:")
	switch {
	case g.Server == "":
		var err error
		if path, err = g.socket("control.sock"); err != nil {
			return nil, err
		}
	case !isUnix && strings.HasPrefix(g.Server, "https://"):
		token := os.Getenv(tokenEnv)
		if token == "" {
			return nil, errs.New(errs.NotAllowed, "over HTTPS a token is needed: put one that sallyport people token made into "+tokenEnv)
		}
		return connect.NewClient(connecthttp.NewTransport(&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
			strings.TrimSuffix(g.Server, "/")), carry(token)), nil
	case !isUnix || path == "":
		return nil, errs.New(errs.Invalid, "--server is unix:PATH or https://HOST")
	}
	hc := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return unixsock.Dial(ctx, path)
		},
		DisableCompression: true,
	}}
	return connect.NewClient(connecthttp.NewTransport(hc, "http://control")), nil
}

// carry puts a token on every request.
func carry(token string) connect.ClientInterceptor {
	return func(next connect.ClientFunc) connect.ClientFunc {
		return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
			if info, ok := connect.CallInfoForClientContext(ctx); ok {
				info.RequestHeader().Set("Authorization", "Bearer "+token)
			}
			return next(ctx, spec)
		}
	}
}

// answer turns an API error into ours: its code, and a message that says what to do.
func answer[T any](v T, err error) (T, error) { return v, apiError(err) }

func apiError(err error) error {
	if err == nil {
		return nil
	}
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return errs.Wrap(errs.Unreachable, "control does not answer; is it up? Start it with: sallyport up", err)
	}
	for _, d := range ce.Details() {
		m, derr := connectproto.UnmarshalErrorDetail(d)
		if f, ok := m.(*sallyportv1.Failure); derr == nil && ok {
			return errs.New(errs.Code(f.GetCode()), ce.Message())
		}
	}
	switch {
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EACCES):
		return errs.Wrap(errs.NotAllowed, "this user may not talk to control: use the account that started it", err)
	case errors.Is(err, context.Canceled):
		return errs.Wrap(errs.Cancelled, "interrupted", err)
	case ce.Code() == connect.CodeUnavailable, errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
		return errs.Wrap(errs.Unreachable, "control does not answer; is it up? Start it with: sallyport up", err)
	case ce.Code() == connect.CodeCanceled, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // the connection was broken
		return errs.Wrap(errs.Unreachable, "control ended before it answered; look whether it was done before you do it again", err)
	case ce.Code() == connect.CodeUnimplemented:
		return errs.Wrap(errs.Unavailable, "this control does not have that: not built", err)
	}
	return errs.Wrap(errs.Internal, ce.Message(), err)
}

// printJSON prints a value for machines, on standard output.
func (g *Globals) printJSON(v any) { printJSON(g.out, v) }

// printJSONLine prints one event of a stream, on one line.
func (g *Globals) printJSONLine(m proto.Message) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(m)
	var line bytes.Buffer
	if err == nil {
		err = json.Compact(&line, raw)
	}
	if err != nil {
		return // bad UTF-8, which control never sends
	}
	fmt.Fprintln(g.out, armoured(line.String()))
}

// armoured writes the characters of JSON that a terminal could obey, or a person could not see, as JSON's own escapes: the values stay the same.
func armoured(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return r > '~' && hidden(r) }) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case r <= '~' || !hidden(r):
			b.WriteRune(r)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, "\\u%04x\\u%04x", high, low)
		default:
			fmt.Fprintf(&b, "\\u%04x", r)
		}
	}
	return b.String()
}

func printJSON(w io.Writer, v any) {
	if m, ok := v.(proto.Message); ok {
		raw, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(m)
		if err != nil {
			raw = nil // bad UTF-8, which control never sends
		}
		// protojson's white space is random on purpose; scripts and diffs want it stable.
		v = json.RawMessage(raw)
	}
	var text strings.Builder
	out := json.NewEncoder(&text)
	out.SetEscapeHTML(false) // what a program reads needs no armour for web pages
	out.SetIndent("", "  ")
	if err := out.Encode(v); err != nil {
		fmt.Fprintln(w, "null")
		return
	}
	fmt.Fprint(w, armoured(text.String()))
}

// note prints a line for people, on standard error, unless --quiet or --json.
func (g *Globals) note(format string, args ...any) {
	if !g.Quiet && !g.JSON {
		fmt.Fprintf(g.err, format+"\n", args...)
	}
}

// terminal reports whether a person reads and types here.
func (g *Globals) terminal() bool {
	in, ok1 := g.in.(*os.File)
	out, ok2 := g.out.(*os.File)
	return ok1 && ok2 && term.IsTerminal(int(in.Fd())) && term.IsTerminal(int(out.Fd()))
}

func (g *Globals) isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// confirm asks before something that cannot be undone. Without a terminal it needs --yes.
func (g *Globals) confirm(ctx context.Context, yes bool, question string) error {
	if yes {
		return nil
	}
	if !g.terminal() {
		return errs.New(errs.Invalid, "without a terminal this needs --yes")
	}
	fmt.Fprintf(g.err, "%s [y/N] ", question)
	line, err := readLine(ctx, g.in)
	if err != nil {
		return err
	}
	if a := strings.ToLower(strings.TrimSpace(line)); a != "y" && a != "yes" {
		return errs.New(errs.Cancelled, "nothing was done")
	}
	return nil
}

// readLine reads one line, a byte at a time: what follows belongs to somebody else. Ctrl-C ends it, though the read itself cannot be ended: the
// program ends soon after. Errors: [errs.Cancelled].
func readLine(ctx context.Context, r io.Reader) (string, error) {
	type read struct {
		line string
		err  error
	}
	done := make(chan read, 1)
	go func() {
		var line []byte
		b := make([]byte, 1)
		for len(line) < 1<<16 {
			n, err := r.Read(b)
			if n == 1 && b[0] == '\n' || errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				done <- read{"", errs.Wrap(errs.Invalid, "the answer cannot be read", err)}
				return
			}
			line = append(line, b[:n]...)
		}
		done <- read{string(line), nil}
	}()
	select {
	case got := <-done:
		return got.line, got.err
	case <-ctx.Done():
		return "", errs.New(errs.Cancelled, "interrupted; nothing was done")
	}
}

// count writes a number of things: 1 call, 2 calls.
func count(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

func ago(unixMS int64) string {
	if unixMS == 0 {
		return "-"
	}
	d := time.Since(time.UnixMilli(unixMS))
	switch {
	case d < 0:
		return "in " + short(-d)
	case d < time.Second:
		return "now"
	default:
		return short(d) + " ago"
	}
}

func short(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}
