package netguard

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/test/fixture/wire"
)

// serveTLS answers with the name of the client's certificate.
func serveTLS(t *testing.T, a *wire.Authority) (port string) {
	t.Helper()
	leaf, err := a.Leaf("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{leaf}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: a.Pool(), MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := "nobody"
		if len(r.TLS.PeerCertificates) > 0 {
			who = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		_, _ = io.WriteString(w, who)
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close() })
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}

func TestTrust(t *testing.T) {
	known, own, other := authority(t), authority(t), authority(t)
	pem, err := own.Client("sallyport", time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	trust, err := ParseTrust(string(own.PEM()), pem, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	policy := mustPolicy(t, false, "127.0.0.0/8")
	guard := &Guard{RootCAs: known.Pool()}
	for name, c := range map[string]struct {
		signed *wire.Authority
		own    bool // the address is the connection's own
		trust  Trust
		want   string // whom the server saw; "" for not trusted
	}{
		"its own authority, at its own address":    {own, true, trust, "sallyport"},
		"its own authority, elsewhere":             {own, false, trust, "nobody"},
		"a known authority, elsewhere":             {known, false, trust, "nobody"},
		"a known authority, at its own address":    {known, true, trust, ""},
		"another authority, elsewhere":             {other, false, trust, ""},
		"its own authority, named by no one":       {own, true, Trust{}, ""},
		"a known authority, where nothing is said": {known, true, Trust{}, "nobody"},
	} {
		t.Run(name, func(t *testing.T) {
			at := "https://127.0.0.1:" + serveTLS(t, c.signed)
			home := mustOrigin(t, "https://home.example.org")
			if c.own {
				home = mustOrigin(t, at)
			}
			resp, err := guard.HTTPClient(policy, home, c.trust).Get(at)
			if c.want == "" {
				var e *Error
				if !errors.As(err, &e) || e.Step != StepTLS || !strings.Contains(errs.Message(e), "not trusted") {
					t.Fatalf("not refused: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if b, _ := io.ReadAll(resp.Body); string(b) != c.want {
				t.Errorf("the server saw %s", b)
			}
		})
	}
}

func TestParseTrust(t *testing.T) {
	a := authority(t)
	good, err := a.Client("sallyport", time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	another, err := a.Client("sallyport", time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	cert, _, _ := strings.Cut(string(good), "-----BEGIN PRIVATE")
	_, key, _ := strings.Cut(string(another), "-----BEGIN PRIVATE")
	for name, c := range map[string]struct {
		authorities, certificate string
		at                       time.Time
		want                     string
	}{
		"text as authorities": {"hello", "", time.Now(), "not certificates in PEM"},
		"a key in them":       {string(good), "", time.Now(), "not certificates in PEM"},
		"no key":              {"", cert, time.Now(), "do not fit together"},
		"another key":         {"", cert + "-----BEGIN PRIVATE" + key, time.Now(), "do not fit together"},
		"out of date":         {"", string(good), time.Now().Add(2 * time.Hour), "is valid from"},
		"not yet":             {"", string(good), time.Now().Add(-48 * time.Hour), "is valid from"},
	} {
		if _, err := ParseTrust(c.authorities, []byte(c.certificate), c.at); errs.CodeOf(err) != errs.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	both, err := ParseTrust(string(a.PEM()), good, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	one, err := ParseTrust(string(a.PEM()), nil, time.Now())
	if err != nil || both.Key() == one.Key() || one.Key() == "" || (Trust{}).Key() != "" {
		t.Errorf("keys do not tell trust apart (%v)", err)
	}
	if s := fmt.Sprintf("%v %+v %#v", both, both, both); strings.Contains(s, "PrivateKey") {
		t.Errorf("it prints its key: %s", s)
	}
}

func authority(t *testing.T) *wire.Authority {
	t.Helper()
	a, err := wire.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	return a
}
