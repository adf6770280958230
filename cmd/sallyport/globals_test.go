package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
)

func TestDirectories(t *testing.T) {
	root := os.Geteuid() == 0
	home := t.TempDir()
	t.Setenv("HOME", home)
	for _, c := range []struct{ state, xdgState, xdgRun, wantState, wantRun string }{
		{"/srv/s", "", "", "/srv/s", "/srv/s/run"},
		{"/srv/s", "/x", "/r", "/srv/s", "/srv/s/run"}, // two installations never share a socket
		{"", "/x", "/r", "/x/sallyport", "/r/sallyport"},
		{"", "/x", "", "/x/sallyport", "/x/sallyport/run"},
		{"", "", "", home + "/.local/state/sallyport", home + "/.local/state/sallyport/run"},
	} {
		t.Setenv("XDG_STATE_HOME", c.xdgState)
		t.Setenv("XDG_RUNTIME_DIR", c.xdgRun)
		if root && c.state == "" {
			c.wantState = "/var/lib/sallyport"
			if c.xdgRun == "" {
				c.wantRun = "/run/sallyport"
			}
		}
		g := &Globals{State: c.state}
		state, err := g.stateDir()
		run, rerr := g.runDir()
		if state != c.wantState || run != c.wantRun || err != nil || rerr != nil {
			t.Errorf("%+v: %s %s %v %v", c, state, run, err, rerr)
		}
	}
	t.Chdir(home)
	if s, err := (&Globals{State: "here"}).stateDir(); err != nil || !filepath.IsAbs(s) || filepath.Base(s) != "here" {
		t.Errorf("a relative --state: %s %v", s, err)
	}
}

// failure is an error as control sends it.
func failure(t *testing.T, code errs.Code, c connect.Code) error {
	t.Helper()
	d, err := connectproto.NewErrorDetail(&sallyportv1.Failure{Code: string(code)})
	if err != nil {
		t.Fatal(err)
	}
	return connect.NewError(c, "the sentence").WithDetail(d)
}

func TestExitCodesAndErrors(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		code int
		text string
	}{
		"invalid":            {errs.New(errs.Invalid, "what is wrong"), exitUsage, "sallyport: what is wrong (invalid)\n"},
		"not found":          {errs.New(errs.NotFound, "nothing"), exitFailed, "sallyport: nothing (not_found)\n"},
		"unreachable":        {errs.New(errs.Unreachable, "nobody"), exitUnreachable, "sallyport: nobody (unreachable)\n"},
		"not allowed":        {errs.New(errs.NotAllowed, "no"), exitNotAllowed, "sallyport: no (not_allowed)\n"},
		"conflict":           {errs.New(errs.Conflict, "taken"), exitFailed, "sallyport: taken (conflict)\n"},
		"decided":            {decided(errs.New(errs.Conflict, "too late")), exitDecided, "sallyport: too late (conflict)\n"},
		"decided otherwise":  {decided(errs.New(errs.NotFound, "none")), exitFailed, "sallyport: none (not_found)\n"},
		"uncertain":          {errs.New(errs.OutcomeUncertain, "nobody knows"), exitUncertain, "sallyport: nobody knows (outcome_uncertain)\n"},
		"an agent's code":    {exitError{code: 42}, 42, ""},
		"before it ran":      {exitError{code: exitRun, err: errs.New(errs.NotFound, "no agent")}, exitRun, "sallyport: no agent (not_found)\n"},
		"not ours":           {errors.New("disk on fire"), exitFailed, "sallyport: disk on fire (internal)\n"},
		"foreign text":       {errs.New(errs.Internal, "a\x1b[2Jb"), exitFailed, "sallyport: a\\u{001b}[2Jb (internal)\n"},
		"of control":         {apiError(failure(t, errs.StoreFull, connect.CodeResourceExhausted)), exitFailed, "sallyport: the sentence (store_full)\n"},
		"of control, denied": {apiError(failure(t, errs.NotAllowed, connect.CodePermissionDenied)), exitNotAllowed, "sallyport: the sentence (not_allowed)\n"},
		"no control":         {apiError(connect.NewError(connect.CodeUnavailable, "dial")), exitUnreachable, "sallyport: control does not answer; is it up? Start it with: sallyport up (unreachable)\n"},
		"broken connection":  {apiError(connect.NewError(connect.CodeCanceled, "reset")), exitUnreachable, "sallyport: control ended before it answered; look whether it was done before you do it again (unreachable)\n"},
		"interrupted":        {apiError(connect.NewError(connect.CodeCanceled, "x").WithCause(context.Canceled)), exitFailed, "sallyport: interrupted (cancelled)\n"},
		"older control":      {apiError(connect.NewError(connect.CodeUnimplemented, "x")), exitFailed, "sallyport: this control does not have that: not built (unavailable)\n"},
		"socket not ours":    {apiError(connect.NewError(connect.CodeUnknown, "x").WithCause(os.ErrPermission)), exitNotAllowed, "sallyport: this user may not talk to control: use the account that started it (not_allowed)\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			g := &Globals{out: &out, err: &errOut}
			if code := g.fail(c.err); code != c.code || errOut.String() != c.text || out.Len() > 0 {
				t.Errorf("%d %q %q, want %d %q", code, errOut.String(), out.String(), c.code, c.text)
			}
			if c.text == "" {
				return
			}
			// As JSON: the same message and code, on standard error, and nothing else.
			errOut.Reset()
			g.JSON = true
			g.fail(c.err)
			var got struct{ Error, Code string }
			if err := json.Unmarshal(errOut.Bytes(), &got); err != nil || out.Len() > 0 {
				t.Fatalf("%q %q: %v", errOut.String(), out.String(), err)
			}
			if want := "sallyport: " + visible(got.Error) + " (" + got.Code + ")\n"; want != c.text {
				t.Errorf("%q, want %q", want, c.text)
			}
		})
	}
	if apiError(nil) != nil {
		t.Error("no error became one")
	}
}

func TestPrintJSON(t *testing.T) {
	var first string
	for range 20 { // protojson varies its white space on purpose; ours must not
		var out bytes.Buffer
		g := &Globals{out: &out}
		g.printJSON(&sallyportv1.ListCallsResponse{Calls: []*sallyportv1.CallRow{{Id: "x", Reason: "a<b> & \u202e"}}})
		if first == "" {
			first = out.String()
		}
		if out.String() != first {
			t.Fatalf("%s\n%s", first, out.String())
		}
		out.Reset()
		g.printJSONLine(&sallyportv1.WatchResponse{Kind: "call", Detail: "two\nlines"})
		if s := out.String(); strings.Count(s, "\n") != 1 || !json.Valid([]byte(s)) {
			t.Fatalf("%q", s)
		}
	}
	if !strings.Contains(first, `"reason": "a<b> & `) {
		t.Error(first)
	}
}

// What a terminal could obey stands in JSON as escapes, and means the same.
func TestJSONIsSafeForATerminal(t *testing.T) {
	const foreign = "\x1b]0;x\a\u009b31m \u202eabc\u2066 \u2028 \u00ad \x7f \U000e0041 \r\n\t é 世 🙂 <&>"
	var out bytes.Buffer
	g := &Globals{out: &out}
	for name, print := range map[string]func(){
		"value": func() { g.printJSON(map[string]string{"reason": foreign}) },
		"rows":  func() { g.printJSON(&sallyportv1.CallRow{Reason: foreign}) },
		"line":  func() { g.printJSONLine(&sallyportv1.CallRow{Reason: foreign}) },
	} {
		out.Reset()
		print()
		if i := strings.IndexFunc(out.String(), hidden); i >= 0 {
			t.Errorf("%s: %q at %d", name, out.String(), i)
		}
		var got struct{ Reason string }
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.Reason != foreign {
			t.Errorf("%s: %q, %v", name, got.Reason, err)
		}
	}
}

func TestNotes(t *testing.T) {
	for _, c := range []struct {
		quiet, json bool
		want        string
	}{{want: "note 1\n"}, {quiet: true}, {json: true}, {quiet: true, json: true}} {
		var errOut bytes.Buffer
		g := &Globals{err: &errOut, Quiet: c.quiet, JSON: c.json}
		if g.note("note %d", 1); errOut.String() != c.want {
			t.Errorf("%+v: %q", c, errOut.String())
		}
	}
}

func TestConfirmWithoutTerminal(t *testing.T) {
	g := &Globals{in: strings.NewReader("y\n"), out: io.Discard, err: io.Discard}
	if err := g.confirm(t.Context(), true, "?"); err != nil {
		t.Error(err)
	}
	if err := g.confirm(t.Context(), false, "?"); !errs.Is(err, errs.Invalid) {
		t.Error("a pipe is no person:", err)
	}
}

// failing is an input that breaks.
type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("broken") }

func TestReadLine(t *testing.T) {
	in := strings.NewReader("first\nsecond\n\nlast")
	for _, want := range []string{"first", "second", "", "last", ""} {
		if got, err := readLine(t.Context(), in); got != want || err != nil {
			t.Errorf("%q %v, want %q", got, err, want)
		}
	}
	if got, err := readLine(t.Context(), strings.NewReader(strings.Repeat("x", 1<<20))); len(got) != 1<<16 || err != nil {
		t.Errorf("%d bytes: %v", len(got), err)
	}
	if _, err := readLine(t.Context(), failing{}); !errs.Is(err, errs.Invalid) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, w := io.Pipe()
	defer w.Close() // the reader of an interrupted question ends with its input
	if _, err := readLine(ctx, r); !errs.Is(err, errs.Cancelled) {
		t.Error(err)
	}
}

// Every code of errs has a text for people, and no text is for a code that is gone.
func TestEveryCodeIsExplained(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../errs/errs.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	codes := map[errs.Code]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := v.Type.(*ast.Ident); !ok || id.Name != "Code" {
			return true
		}
		for _, e := range v.Values {
			text, err := strconv.Unquote(e.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			codes[errs.Code(text)] = true
		}
		return true
	})
	if len(codes) < 30 {
		t.Fatalf("only %d codes were found", len(codes))
	}
	for c := range codes {
		if explainCodes[c] == "" {
			t.Errorf("%s has no explanation", c)
		}
	}
	for c, text := range explainCodes {
		if !codes[c] {
			t.Errorf("%s is explained and is no code", c)
		}
		if !strings.HasSuffix(text, ".") {
			t.Errorf("%s: %q is no sentence", c, text)
		}
	}
}
