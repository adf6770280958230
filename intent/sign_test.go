package intent

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"sallyport.dev/errs"
)

func fixedKey(t testing.TB, first byte) SigningKey {
	t.Helper()
	seed := make([]byte, ed25519.SeedSize)
	for i := range seed {
		seed[i] = first + byte(i)
	}
	return newSigningKey(ed25519.NewKeyFromSeed(seed))
}

func TestRing(t *testing.T) {
	root, node, other := fixedKey(t, 0), fixedKey(t, 32), fixedKey(t, 64)
	cert := root.Certify(node.Public(), epoch.Add(time.Hour))
	ring := NewRing(root.Public())
	msg := encode(t, sample())
	sig := node.Sign(msg)
	if ring.Verify(node.ID(), msg, sig, epoch) {
		t.Fatal("an empty ring verified")
	}
	if err := ring.Replace("a", []NodeKey{cert}, epoch); err != nil {
		t.Fatal(err)
	}
	verify := func(want bool, why string, id string, msg, sig []byte, now time.Time) {
		t.Helper()
		if ring.Verify(id, msg, sig, now) != want {
			t.Errorf("%s: verify is not %v", why, want)
		}
	}
	verify(true, "signed", node.ID(), msg, sig, epoch)
	verify(false, "other id", other.ID(), msg, sig, epoch)
	verify(false, "other signer", node.ID(), msg, other.Sign(msg), epoch)
	verify(false, "expired key", node.ID(), msg, sig, epoch.Add(time.Hour+time.Second))
	verify(false, "changed byte", node.ID(), append([]byte{' '}, msg...), sig, epoch)
	verify(false, "short signature", node.ID(), msg, sig[:63], epoch)
	verify(false, "no domain", node.ID(), msg, ed25519.Sign(node.key, msg), epoch)

	// A bad list changes nothing; each control node's list is its own.
	bad := cert
	bad.NotAfter = bad.NotAfter.Add(time.Hour)
	if err := ring.Replace("a", []NodeKey{bad}, epoch); !errs.Is(err, errs.NotAllowed) {
		t.Fatal(err)
	}
	verify(true, "after a bad list", node.ID(), msg, sig, epoch)
	if err := ring.Replace("b", nil, epoch); err != nil {
		t.Fatal(err)
	}
	verify(true, "after another node's empty list", node.ID(), msg, sig, epoch)
	if err := ring.Replace("a", nil, epoch); err != nil {
		t.Fatal(err)
	}
	verify(false, "after its own empty list", node.ID(), msg, sig, epoch)
}

func TestVerifyNodeKeyRefuses(t *testing.T) {
	root, node, other := fixedKey(t, 0), fixedKey(t, 32), fixedKey(t, 64)
	good := root.Certify(node.Public(), epoch.Add(time.Hour))
	if err := VerifyNodeKey(root.Public(), good, epoch); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*NodeKey){
		"other id":      func(n *NodeKey) { n.ID = other.ID() },
		"other key":     func(n *NodeKey) { n.Public = other.Public() },
		"short key":     func(n *NodeKey) { n.Public = n.Public[:31] },
		"longer life":   func(n *NodeKey) { n.NotAfter = n.NotAfter.Add(time.Second) },
		"no signature":  func(n *NodeKey) { n.Signature = nil },
		"by itself":     func(n *NodeKey) { *n = node.Certify(node.Public(), n.NotAfter) },
		"by another":    func(n *NodeKey) { *n = other.Certify(node.Public(), n.NotAfter) },
		"for the other": func(n *NodeKey) { n.Public, n.ID = other.Public(), other.ID() },
	} {
		n := good
		change(&n)
		if err := VerifyNodeKey(root.Public(), n, epoch); !errs.Is(err, errs.NotAllowed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := VerifyNodeKey(nil, good, epoch); !errs.Is(err, errs.NotAllowed) {
		t.Errorf("no root: %v", err)
	}
	if err := VerifyNodeKey(root.Public(), good, epoch.Add(time.Hour+time.Millisecond)); !errs.Is(err, errs.NotAllowed) {
		t.Errorf("expired: %v", err)
	}
}

func TestKeysDoNotPrint(t *testing.T) {
	k := fixedKey(t, 0)
	link := LinkKey{key: []byte("exported-secret-bytes")}
	for _, s := range []string{fmt.Sprint(k), fmt.Sprintf("%#v %+v", k, k), fmt.Sprintf("%v %#v %+v", link, link, link)} {
		if strings.Contains(s, "exported") || strings.Contains(s, fmt.Sprint([]byte(k.key)[:8])[1:12]) {
			t.Errorf("a key printed itself: %s", s)
		}
	}
}

func TestSigningKeyPEM(t *testing.T) {
	k := fixedKey(t, 0)
	b, err := k.MarshalPEM()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseSigningKey(b)
	if err != nil || again.ID() != k.ID() {
		t.Fatalf("%v %v", again, err)
	}
	for _, bad := range [][]byte{nil, []byte("x"), append(b, b...), []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")} {
		if _, err := ParseSigningKey(bad); !errs.Is(err, errs.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// tlsPair returns the states of both ends of one TLS session.
func tlsPair(t *testing.T, version uint16, clientCert bool) (client, server tls.ConnectionState) {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	cert := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	sc := &tls.Config{Certificates: []tls.Certificate{cert}, MaxVersion: version, ClientAuth: tls.RequestClientCert}
	cc := &tls.Config{InsecureSkipVerify: true, MaxVersion: version}
	if clientCert {
		cc.Certificates = []tls.Certificate{cert}
	}
	a, b := net.Pipe()
	s, c := tls.Server(a, sc), tls.Client(b, cc)
	done := make(chan error, 1)
	go func() { done <- s.Handshake() }()
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = c.Read(make([]byte, 1)) }() // a TLS 1.3 server ends its handshake with a ticket that must be read
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return c.ConnectionState(), s.ConnectionState()
}

func TestLinkKey(t *testing.T) {
	client, server := tlsPair(t, tls.VersionTLS13, true)
	ck, err := ExportLinkKey(client)
	if err != nil {
		t.Fatal(err)
	}
	sk, err := ExportLinkKey(server)
	if err != nil {
		t.Fatal(err)
	}
	msg := encode(t, sample())
	mac := sk.MAC(msg)
	if !ck.VerifyMAC(msg, mac) {
		t.Fatal("the two ends do not agree")
	}
	other, _ := tlsPair(t, tls.VersionTLS13, true)
	ok, err := ExportLinkKey(other)
	if err != nil {
		t.Fatal(err)
	}
	if ok.VerifyMAC(msg, mac) {
		t.Error("another session verified")
	}
	if ck.VerifyMAC(msg[1:], mac) || ck.VerifyMAC(msg, mac[:31]) || ck.VerifyMAC(msg, nil) {
		t.Error("a changed message or MAC verified")
	}
	if (LinkKey{}).VerifyMAC(msg, LinkKey{}.MAC(msg)) {
		t.Error("a zero key verified")
	}
	// A server without a client certificate, and TLS 1.2, export nothing.
	_, anonymous := tlsPair(t, tls.VersionTLS13, false)
	old, _ := tlsPair(t, tls.VersionTLS12, true)
	for name, state := range map[string]tls.ConnectionState{"no client certificate": anonymous, "TLS 1.2": old, "no handshake": {}} {
		if _, err := ExportLinkKey(state); !errs.Is(err, errs.NotAllowed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
