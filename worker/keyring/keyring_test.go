package keyring

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"sallyport.dev/errs"
	"sallyport.dev/identity/statefile"
	"sallyport.dev/intent"
	"sallyport.dev/intent/seal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const canary = "canary-5f3c9a"

func files(t *testing.T) *statefile.Dir {
	t.Helper()
	d, err := statefile.Open(filepath.Join(t.TempDir(), "worker"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func open(t *testing.T, f Files) (*Keyring, bool) {
	t.Helper()
	k, created, err := Open(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k, created
}

func sample() intent.Intent {
	return intent.Intent{
		Org: "default", Connection: "tracker", Subject: "shared", Version: 4, Session: "sessionaaaaaaaaaaaaaaaaaaa", Origin: "https://mcp.tracker.example.org",
		Path: "/mcp", AuthType: intent.AuthBearer,
	}
}

func bound() seal.Bound {
	return seal.Bound{Org: "default", Connection: "tracker", Subject: "shared", Version: 4, Origin: "https://mcp.tracker.example.org", PathPrefix: "/mcp"}
}

func sealed(t *testing.T, k *Keyring, b seal.Bound) []byte {
	t.Helper()
	s, err := seal.Seal(k.Public(), seal.Credential, b.Bytes(), []byte(canary))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOpenMakesTheKeyOnce(t *testing.T) {
	f := files(t)
	k, created := open(t, f)
	if !created {
		t.Error("the first start makes the key")
	}
	again, created := open(t, f)
	if created || again.Public().Fingerprint() != k.Public().Fingerprint() {
		t.Error("the second start has the same key")
	}
	if err := f.Write(keyFile, []byte("damage")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(f); !errs.Is(err, errs.Invalid) {
		t.Errorf("a damaged key: %v", err)
	}
}

func TestCredential(t *testing.T) {
	k, _ := open(t, files(t))
	other, _ := open(t, files(t))
	in := sample()
	env := sealed(t, k, bound())
	for range 3 { // opened, and twice from memory
		s, err := k.Credential(&in, env)
		if err != nil || s.Text() != canary {
			t.Fatalf("%q %v", s.Text(), err)
		}
		s.Wipe()
		if strings.Contains(s.Text(), "canary") {
			t.Error("a wiped secret reads")
		}
	}
	for name, c := range map[string]struct {
		change func(*intent.Intent)
		sealed []byte
		code   errs.Code
	}{
		"another connection":                {func(in *intent.Intent) { in.Connection = "deploys" }, env, errs.NotAllowed},
		"another version":                   {func(in *intent.Intent) { in.Version++ }, env, errs.NotAllowed},
		"another origin":                    {func(in *intent.Intent) { in.Origin = "https://evil.example" }, env, errs.NotAllowed},
		"another path":                      {func(in *intent.Intent) { in.Path = "/mcp2" }, env, errs.NotAllowed},
		"an account that it is not":         {func(in *intent.Intent) { in.Account = "bot" }, env, errs.NotAllowed},
		"another pool's key":                {func(*intent.Intent) {}, sealed(t, other, bound()), errs.NotAllowed},
		"none, where one is needed":         {func(*intent.Intent) {}, nil, errs.Invalid},
		"one, where none is needed":         {func(in *intent.Intent) { in.AuthType, in.Subject, in.Version = intent.AuthNone, "", 0 }, env, errs.Invalid},
		"noise":                             {func(*intent.Intent) {}, []byte("noise"), errs.Invalid},
		"bound to noise":                    {func(*intent.Intent) {}, mustSeal(t, k, seal.Credential, []byte("noise")), errs.Invalid},
		"an egress credential in its place": {func(*intent.Intent) {}, mustSeal(t, k, seal.Egress, bound().Bytes()), errs.NotAllowed},
	} {
		in := sample()
		c.change(&in)
		if s, err := k.Credential(&in, c.sealed); !errs.Is(err, c.code) || !s.Empty() {
			t.Errorf("%s: %v", name, err)
		}
	}
	in.AuthType, in.Subject, in.Version = intent.AuthNone, "", 0
	if s, err := k.Credential(&in, nil); err != nil || !s.Empty() {
		t.Errorf("no authentication: %v", err)
	}
}

func mustSeal(t *testing.T, k *Keyring, p seal.Purpose, ad []byte) []byte {
	t.Helper()
	s, err := seal.Seal(k.Public(), p, ad, []byte(canary))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOpenedCredentialsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, _ := open(t, files(t))
		in := sample()
		var first *opened
		for i := range keepMost + 10 {
			b := bound()
			b.Account = fmt.Sprint(i)
			if _, err := k.Credential(&in, sealed(t, k, b)); err != nil {
				t.Fatal(err)
			}
		}
		k.mu.Lock()
		n := len(k.opened)
		for _, o := range k.opened {
			first = o
			break
		}
		k.mu.Unlock()
		if n != keepMost {
			t.Fatalf("%d are kept", n)
		}
		<-time.After(keep + time.Second)
		synctest.Wait()
		k.mu.Lock()
		defer k.mu.Unlock()
		if len(k.opened) != 0 || bytes.Contains(first.secret, []byte("canary")) {
			t.Errorf("%d are kept, and one reads %q", len(k.opened), first.secret)
		}
	})
}

func TestUpstreamSession(t *testing.T) {
	k, _ := open(t, files(t))
	in := sample()
	s, err := k.SealSession(&in, []byte("exported"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := k.Session(&in, s)
	if err != nil || string(got) != "exported" {
		t.Fatalf("%q %v", got, err)
	}
	for name, change := range map[string]func(*intent.Intent){
		"session":    func(in *intent.Intent) { in.Session = "another" },
		"connection": func(in *intent.Intent) { in.Connection = "another" },
		"origin":     func(in *intent.Intent) { in.Origin = "another" },
		"path":       func(in *intent.Intent) { in.Path = "another" },
		"subject":    func(in *intent.Intent) { in.Subject = "another" },
		"version":    func(in *intent.Intent) { in.Version++ },
	} {
		other := sample()
		change(&other)
		if got, err := k.Session(&other, s); !errs.Is(err, errs.NotAllowed) || got != nil {
			t.Errorf("another %s: %q %v", name, got, err)
		}
	}
	for i := range s {
		changed := bytes.Clone(s)
		changed[i] ^= 1
		if got, err := k.Session(&in, changed); err == nil || got != nil {
			t.Errorf("byte %d changed: %q %v", i, got, err)
		}
		if got, err := k.Session(&in, s[:i]); i > 0 && (err == nil || got != nil) {
			t.Errorf("cut at %d: %q %v", i, got, err)
		}
	}
	if again, err := k.SealSession(&in, []byte("exported")); err != nil || bytes.Equal(again, s) {
		t.Errorf("two seals of one session are equal: %v", err)
	}
	if _, err := k.SealSession(&in, make([]byte, maxSession+1)); !errs.Is(err, errs.Oversize) {
		t.Errorf("a long session: %v", err)
	}
	other, _ := open(t, files(t))
	if got, err := other.Session(&in, s); !errs.Is(err, errs.NotAllowed) || got != nil {
		t.Errorf("another pool: %q %v", got, err)
	}
	if s, err := k.SealSession(&in, nil); err != nil || s != nil {
		t.Errorf("nothing to seal: %q %v", s, err)
	}
	if s, err := k.Session(&in, nil); err != nil || s != nil {
		t.Errorf("nothing to open: %q %v", s, err)
	}
}

func TestNothingPrints(t *testing.T) {
	s := Secret{[]byte(canary)}
	k, _ := open(t, files(t))
	pem, err := k.key.MarshalPEM()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "%v %+v %#v %s %q %x", s, s, s, s, s, s)
	fmt.Fprintf(&out, "%v %+v %#v", k, k, k)
	j, err := json.Marshal(map[string]any{"s": s})
	if err != nil {
		t.Fatal(err)
	}
	out.Write(j)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "s", s, "in", []any{s})
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "s", s)
	for _, bad := range []string{canary, fmt.Sprintf("%x", canary), string(pem[40:60])} {
		if strings.Contains(out.String(), bad) {
			t.Errorf("%q in %s", bad, out.String())
		}
	}
}
