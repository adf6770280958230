package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.uber.org/goleak"

	"sallyport.dev/errs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var day = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func mustCA(t *testing.T, now time.Time) *CA {
	t.Helper()
	ca, err := NewCA("example.org", now)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func mustID(t *testing.T, n Name) spiffeid.ID {
	t.Helper()
	if n.Domain == "" {
		n.Domain = "example.org"
	}
	id, err := n.ID()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func issue(t *testing.T, ca *CA, id spiffeid.ID, now time.Time) Material {
	t.Helper()
	req, err := NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := ca.Issue(req.CSR, id, now)
	if err != nil {
		t.Fatal(err)
	}
	m, err := req.Accept(chain, ca.Bundle(), id, now)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestNames(t *testing.T) {
	for _, c := range []struct {
		name Name
		want string
	}{
		{Name{"example.org", Control, "", "a"}, "spiffe://example.org/control/a"},
		{Name{"example.org", Host, "", "laptop-1.lan"}, "spiffe://example.org/host/laptop-1.lan"},
		{Name{"example.org", Worker, "default", "w_1"}, "spiffe://example.org/worker/default/w_1"},
	} {
		id, err := c.name.ID()
		if err != nil || id.String() != c.want {
			t.Fatalf("%v %v", id, err)
		}
		back, err := ParseID(id)
		if err != nil || back != c.name {
			t.Errorf("%v %v", back, err)
		}
	}
	for _, n := range []Name{
		{"", Host, "", "a"},
		{"Example.org", Host, "", "a"},
		{"example.org/x", Host, "", "a"},
		{"example.org", "guest", "", "a"},
		{"example.org", Host, "", ""},
		{"example.org", Host, "", "A"},
		{"example.org", Host, "", ".."},
		{"example.org", Host, "", "a/b"},
		{"example.org", Host, "", "-a"},
		{"example.org", Host, "", "a-"},
		{"example.org", Host, "", strings.Repeat("a", 64)},
		{"example.org", Host, "pool", "a"},
		{"example.org", Worker, "", "a"},
		{"example.org", Worker, "../x", "a"},
	} {
		if id, err := n.ID(); !errs.Is(err, errs.Invalid) {
			t.Errorf("%+v: %v %v", n, id, err)
		}
	}
	for _, s := range []string{
		"spiffe://example.org", "spiffe://example.org/host", "spiffe://example.org/worker/a", "spiffe://example.org/control/a/b",
		"spiffe://example.org/guest/a", "spiffe://example.org/host/A", "spiffe://example.org/worker/a/b/c",
	} {
		if n, err := ParseID(spiffeid.RequireFromString(s)); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %+v %v", s, n, err)
		}
	}
}

func TestIssue(t *testing.T) {
	ca := mustCA(t, day)
	id := mustID(t, Name{Role: Worker, Pool: "default", Name: "w1"})
	m := issue(t, ca, id, day)
	certs, err := parseChain(m.Chain)
	if err != nil {
		t.Fatal(err)
	}
	leaf := certs[0]
	if leaf.IsCA || len(leaf.URIs) != 1 || len(leaf.DNSNames)+len(leaf.IPAddresses)+len(leaf.EmailAddresses) != 0 || leaf.Subject.CommonName != "" {
		t.Errorf("the certificate has names beyond its id: %+v", leaf)
	}
	if !leaf.NotAfter.Equal(day.Add(CertificateLife)) || leaf.KeyUsage != x509.KeyUsageDigitalSignature {
		t.Errorf("until %v, usage %v", leaf.NotAfter, leaf.KeyUsage)
	}
	if !strings.Contains(string(m.Key), "PRIVATE KEY") || strings.Contains(fmt.Sprintf("%v %+v %#v", m, m, m), "PRIVATE") {
		t.Error("material prints its key")
	}
	// Another domain, and ids that are none of ours.
	req, err := NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	for s, want := range map[string]errs.Code{
		"spiffe://other.example/host/a": errs.NotAllowed, "spiffe://example.org/guest/a": errs.Invalid, "spiffe://example.org": errs.Invalid,
	} {
		if _, err := ca.Issue(req.CSR, spiffeid.RequireFromString(s), day); !errs.Is(err, want) {
			t.Errorf("%s: %v", s, err)
		}
	}
	// Names in the request mean nothing.
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse("spiffe://example.org/control/evil")
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: []*url.URL{u}, DNSNames: []string{"evil.example"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := ca.Issue(csr, id, day)
	if err != nil {
		t.Fatal(err)
	}
	if certs, err = parseChain(chain); err != nil || certs[0].URIs[0].String() != id.String() || len(certs[0].DNSNames) != 0 {
		t.Errorf("the request's names were taken: %v %v", certs, err)
	}
}

func TestDomains(t *testing.T) {
	for _, domain := range []string{DefaultDomain, "local", "my_domain.example", "a-1.b"} {
		ca, err := NewCA(domain, day)
		if err != nil {
			t.Fatalf("%s: %v", domain, err)
		}
		issue(t, ca, mustID(t, Name{Domain: domain, Role: Host, Name: "a"}), day)
	}
	for _, domain := range []string{"", "Example.org", "a b", "a/b", "10.0.0.1", "spiffe://a/b"} {
		if _, err := NewCA(domain, day); !errs.Is(err, errs.Invalid) {
			t.Errorf("%q: %v", domain, err)
		}
	}
}

func TestCheckRequestRefuses(t *testing.T) {
	good, err := NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	broken := bytes.Clone(good.CSR)
	broken[len(broken)-1] ^= 1
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ed, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, edKey)
	if err != nil {
		t.Fatal(err)
	}
	p224, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, p224)
	if err != nil {
		t.Fatal(err)
	}
	for name, csr := range map[string][]byte{
		"empty": nil, "noise": []byte("x"), "signature": broken, "Ed25519": ed, "P-384": other, "long": make([]byte, 20<<10),
	} {
		if _, err := CheckRequest(csr); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAcceptRefuses(t *testing.T) {
	ca, other := mustCA(t, day), mustCA(t, day)
	id := mustID(t, Name{Role: Host, Name: "a"})
	req, err := NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := ca.Issue(req.CSR, id, day)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := issue(t, ca, id, day)
	for name, c := range map[string]struct {
		chain, ca []byte
		want      spiffeid.ID
		now       time.Time
		code      errs.Code
	}{
		"another root": {chain, other.Bundle(), id, day, errs.NotAllowed},
		"another id":   {chain, ca.Bundle(), mustID(t, Name{Role: Host, Name: "b"}), day, errs.NotAllowed},
		"another key":  {elsewhere.Chain, ca.Bundle(), id, day, errs.Invalid},
		"expired":      {chain, ca.Bundle(), id, day.Add(CertificateLife + time.Second), errs.NotAllowed},
		"no chain":     {nil, ca.Bundle(), id, day, errs.Invalid},
		"no root":      {chain, nil, id, day, errs.Invalid},
	} {
		if _, err := req.Accept(c.chain, c.ca, c.want, c.now); !errs.Is(err, c.code) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSourceReplace(t *testing.T) {
	ca := mustCA(t, day)
	id := mustID(t, Name{Role: Host, Name: "a"})
	src, err := NewSource(issue(t, ca, id, day), day)
	if err != nil {
		t.Fatal(err)
	}
	before, _ := src.GetX509SVID()
	if err := src.Replace(issue(t, ca, mustID(t, Name{Role: Host, Name: "b"}), day), day); !errs.Is(err, errs.NotAllowed) {
		t.Errorf("another id: %v", err)
	}
	if err := src.Replace(issue(t, ca, id, day), day.Add(25*time.Hour)); !errs.Is(err, errs.NotAllowed) {
		t.Errorf("expired: %v", err)
	}
	if now, _ := src.GetX509SVID(); now != before {
		t.Error("a refused identity replaced the good one")
	}
	if err := src.Replace(issue(t, ca, id, day.Add(time.Hour)), day.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if now, _ := src.GetX509SVID(); now == before || src.ID() != id {
		t.Error("a renewed identity is not used")
	}
	if _, err := src.GetX509BundleForTrustDomain(spiffeid.RequireTrustDomainFromString("other.example")); err == nil {
		t.Error("roots for another domain")
	}
}

// memory is a directory as strict as a real one: what is not there is NotFound.
type memory map[string][]byte

func (m memory) Read(name string) ([]byte, error) {
	b, ok := m[name]
	if !ok {
		return nil, errs.New(errs.NotFound, "there is no "+name)
	}
	return b, nil
}

func (m memory) Write(name string, b []byte) error {
	m[name] = b
	return nil
}

func TestOpenCA(t *testing.T) {
	m := memory{}
	ca, err := OpenCA(m, "example.org", day)
	if err != nil {
		t.Fatal(err)
	}
	again, err := OpenCA(m, "example.org", day)
	if err != nil || again.KeyHash() != ca.KeyHash() {
		t.Fatalf("%v %v", again, err)
	}
	if _, err := OpenCA(m, "other.example", day); !errs.Is(err, errs.Conflict) {
		t.Errorf("another domain: %v", err)
	}
	if _, err := OpenCA(m, "example.org", day.Add(RootLife+time.Hour)); !errs.Is(err, errs.NotAllowed) {
		t.Errorf("expired: %v", err)
	}
	// A start that was cut short after the key begins again; a key without its certificate's mate does not.
	if _, err := OpenCA(memory{caKeyFile: m[caKeyFile]}, "example.org", day); err != nil {
		t.Errorf("key only: %v", err)
	}
	if _, err := OpenCA(memory{caCertFile: m[caCertFile]}, "example.org", day); !errs.Is(err, errs.NotFound) {
		t.Errorf("certificate only: %v", err)
	}
	foreign := memory{}
	if _, err := OpenCA(foreign, "example.org", day); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCA(memory{caKeyFile: foreign[caKeyFile], caCertFile: m[caCertFile]}, "example.org", day); !errs.Is(err, errs.Invalid) {
		t.Errorf("another key: %v", err)
	}
	if _, err := OpenCA(memory{}, "Not A Domain", day); !errs.Is(err, errs.Invalid) {
		t.Errorf("a bad domain: %v", err)
	}
	if s := fmt.Sprintf("%v %#v", ca, ca); strings.Contains(s, "D:") || !strings.Contains(s, "example.org") {
		t.Errorf("the CA prints as %s", s)
	}
}
