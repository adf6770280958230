// Package signin tests sign-ins through the real programs: the command line, control, a worker and a session, against a strict authorization server.
package signin

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sallyport.dev/test/fixture/mcpserver"
	"sallyport.dev/test/fixture/oauth"
	"sallyport.dev/test/rig"
)

const profiles = `profiles:
  work:
    attached: allow
    sandbox: {driver: process, closed: "no"}
    grants:
      - {tools: [tracker/echo], rule: allow}
`

// world is an installation, and a server that wants tokens of an authorization server.
type world struct {
	*testing.T
	r     *rig.Rig
	as    *oauth.Server
	mcp   *mcpserver.Server
	short atomic.Bool // the next token lives for a second, as its server says
}

func newWorld(t *testing.T) *world {
	w := &world{T: t}
	programs, err := rig.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w.as = oauth.Start(t, oauth.Options{OpenID: true, Scopes: []string{"openid", "tools", "more"}, Answer: func(m map[string]any) {
		if w.short.CompareAndSwap(true, false) {
			m["expires_in"] = 1
		}
	}})
	resource := &oauth.Resource{Server: w.as, Scopes: []string{"openid", "tools"}, URL: func() string { return w.mcp.URL() }}
	w.mcp = mcpserver.Start(t, mcpserver.Options{Auth: mcpserver.Auth{Kind: mcpserver.Checked, Check: resource.Check}, Elsewhere: resource.Elsewhere})
	if w.r, err = rig.Start(t.Context(), rig.Options{Programs: programs}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s\nrefused by the authorization server: %q", w.r.Log(), w.as.Refusals())
		}
		if err := w.r.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// signIn runs a command that signs in, and is its person: it opens the address that is printed. paste takes where the browser ends from its hands;
// otherwise it comes back by itself.
func (w *world) signIn(paste bool, args ...string) (string, error) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), 2*time.Minute)
	defer cancel()
	cmd := w.r.Command(ctx, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		w.Fatal(err)
	}
	said, err := cmd.StderrPipe()
	if err != nil {
		w.Fatal(err)
	}
	var out, log bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		log.WriteString(lines.Text() + "\n")
		if strings.HasPrefix(lines.Text(), "http://") {
			w.browse(lines.Text(), in, paste)
		}
	}
	err = cmd.Wait()
	return log.String() + out.String(), err
}

func (w *world) browse(address string, in io.Writer, paste bool) {
	w.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if paste {
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	req, err := http.NewRequestWithContext(w.Context(), http.MethodGet, address, nil)
	if err != nil {
		w.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		w.Fatal(err)
	}
	resp.Body.Close()
	if paste {
		fmt.Fprintln(in, resp.Header.Get("Location"))
	} else if resp.StatusCode != http.StatusOK {
		w.Errorf("the browser ends with %d", resp.StatusCode)
	}
}

type credential struct {
	Version        int64
	State, Account string
}

// credential is the connection's shared one.
func (w *world) credential() credential {
	w.Helper()
	got, err := w.r.CLI(w.Context(), "", "credentials", "list")
	if err != nil {
		w.Fatal(err)
	}
	for line := range strings.Lines(got) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) >= 5 && f[0] == "tracker" && f[1] == "shared" {
			var v int64
			fmt.Sscan(f[2], &v)
			return credential{Version: v, State: f[3], Account: f[4]}
		}
	}
	return credential{}
}

func (w *world) says(s *rig.Session, text, want string, isError bool) {
	w.Helper()
	got, err := s.Call(w.Context(), "tracker_echo", fmt.Sprintf(`{"text":%q}`, text))
	if err != nil || got.IsError != isError || !strings.Contains(got.Text, want) {
		w.Fatalf("%+v, %v, want %q", got, err, want)
	}
}

func (w *world) open() *rig.Session {
	w.Helper()
	s, err := w.r.Open(w.Context(), rig.SessionOptions{Profile: "work"})
	if err != nil {
		w.Fatal(err)
	}
	return s
}

// review lets echo in, as a reviewer does.
func (w *world) review() {
	w.Helper()
	var pulled struct{ Digest string }
	if err := w.r.JSON(w.Context(), &pulled, "catalogs", "pull", "tracker"); err != nil {
		w.Fatal(err)
	}
	reviewed := fmt.Sprintf(`version: 1
connections:
  tracker:
    url: %s
    network: {allow: ['127.0.0.0/8'], http: true}
    auth: {type: oauth}
    catalog: {file: catalogs/tracker.json, digest: %q}
    tools:
      echo: {effect: read}
`, w.mcp.URL(), pulled.Digest) + profiles
	if err := os.WriteFile(w.r.Path("sallyport.yaml"), []byte(reviewed), 0o600); err != nil {
		w.Fatal(err)
	}
	if out, err := w.r.CLI(w.Context(), "", "apply", "--yes"); err != nil {
		w.Fatalf("%v\n%s", err, out)
	}
}

// From an address to a governed call; and everything that can happen to a sign-in afterwards, in one session's life.
func TestSignIn(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()

	// A guided flow: looked at, found to be OAuth, written down, signed in, tested, in service, its tools listed.
	w.short.Store(true)
	out, err := w.signIn(false, "connections", "add", w.mcp.URL(), "--name", "tracker", "--allow", "127.0.0.0/8", "--http", "--yes")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"One signs in at " + w.as.Issuer(), "auth: {type: oauth}", "tracker is connected as", "tracker: in service", "echo: {effect:"} {
		if !strings.Contains(out, want) {
			t.Errorf("the flow does not say %q:\n%s", want, out)
		}
	}
	w.review()
	s := w.open()

	// The token said that it lives for a second: by now it is over, or will be in a moment. Whoever comes first renews it, once.
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			text := fmt.Sprintf("call %d", i)
			if got, err := s.Call(ctx, "tracker_echo", fmt.Sprintf(`{"text":%q}`, text)); err != nil || got.IsError || got.Text != text {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	wg.Wait()
	if n, c := w.as.Count(oauth.Refreshing), w.credential(); n != 1 || c.Version != 2 || c.State != "good" || c.Account != "alice" {
		t.Fatalf("%d renewals, %+v", n, c)
	}

	// The server ends the sign-in. The call that finds it out is refused; its renewal is, too; then the model reads what to do.
	w.as.EndGrants()
	w.says(s, "a", "refused", true)
	w.broken()
	w.says(s, "b", "its server ended the sign-in", true)
	w.says(s, "b2", "sallyport credentials connect tracker", true)

	// Another account does not take its place by accident; the same one heals the session that is open.
	w.as.SignInAs("bob")
	if out, err := w.signIn(true, "credentials", "connect", "tracker"); err == nil || !strings.Contains(out, `"bob"`) || !strings.Contains(out, `"alice"`) {
		t.Fatalf("bob in alice's place: %v\n%s", err, out)
	}
	w.says(s, "c", "its server ended the sign-in", true)
	w.as.SignInAs("alice")
	if out, err := w.signIn(true, "credentials", "connect", "tracker"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	w.says(s, "d", "d", false)

	// Another account on purpose: the open session stays without it, a new one has it.
	w.as.SignInAs("bob")
	if out, err := w.signIn(false, "credentials", "connect", "tracker", "--another-account"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	w.says(s, "e", "a new session is needed", true)
	w.says(w.open(), "f", "f", false)

	// Nothing that the server gave lies anywhere in clear.
	w.nowhere(w.as.Secrets())

	// A connection that is removed ends its sign-in at the server.
	if err := os.WriteFile(w.r.Path("sallyport.yaml"), []byte("version: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := w.r.CLI(ctx, "", "apply", "--prune", "--yes"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if w.as.Count(oauth.Revoking) == 0 || w.as.Live() != 0 {
		t.Errorf("%d revocations, %d tokens are alive", w.as.Count(oauth.Revoking), w.as.Live())
	}
}

// broken waits until control knows that the sign-in is over.
func (w *world) broken() {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), rig.Patience)
	defer cancel()
	for w.credential().State != "broken" {
		if ctx.Err() != nil {
			w.Fatalf("%+v", w.credential())
		}
	}
}

// nowhere looks for secrets in everything that the installation wrote.
func (w *world) nowhere(secrets []string) {
	w.Helper()
	if len(secrets) == 0 {
		w.Fatal("the authorization server gave nothing")
	}
	files := 0
	err := filepath.WalkDir(w.r.Path("."), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // a session's files come and go
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil //nolint:nilerr // it went
		}
		files++
		for _, s := range secrets {
			if bytes.Contains(data, []byte(s)) {
				w.Errorf("a token lies in %s", path)
			}
		}
		return nil
	})
	if err != nil || files < 5 {
		w.Errorf("%d files were searched: %v", files, err)
	}
}
