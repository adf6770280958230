package seal

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport.dev/errs"
	"sallyport.dev/intent"
)

func bound() Bound {
	return Bound{
		Org: "default", Connection: "tracker", Subject: "shared", Version: 4, Origin: "https://mcp.tracker.example.org", PathPrefix: "/mcp",
		Header: "X-Api-Key", Issuer: "", TokenEndpoint: "", ClientID: "", Account: "bot",
	}
}

func key(t testing.TB, first byte) PrivateKey {
	t.Helper()
	raw := make([]byte, 32)
	for i := range raw {
		raw[i] = first + byte(i)
	}
	k, err := kem().NewPrivateKey(raw)
	if err != nil {
		t.Fatal(err)
	}
	return PrivateKey{k}
}

func TestSealOpen(t *testing.T) {
	k := key(t, 1)
	ad := bound().Bytes()
	secret := []byte("s3cret")
	sealed, err := Seal(k.Public(), Credential, ad, secret)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Seal(k.Public(), Credential, ad, secret)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(sealed, again) {
		t.Error("two seals of one secret are equal")
	}
	if bytes.Contains(sealed, secret) {
		t.Error("the secret is readable")
	}
	gotAD, got, err := k.Open(Credential, sealed)
	if err != nil || !bytes.Equal(got, secret) || !bytes.Equal(gotAD, ad) {
		t.Fatalf("%q %q %v", gotAD, got, err)
	}
	if readable, err := AssociatedData(sealed); err != nil || !bytes.Equal(readable, ad) {
		t.Fatalf("%q %v", readable, err)
	}
	if _, _, err := k.Open(Egress, sealed); !errs.Is(err, errs.NotAllowed) {
		t.Errorf("another purpose: %v", err)
	}
	if _, _, err := key(t, 2).Open(Credential, sealed); !errs.Is(err, errs.NotAllowed) {
		t.Errorf("another key: %v", err)
	}
	if _, _, err := (PrivateKey{}).Open(Credential, sealed); !errs.Is(err, errs.Invalid) {
		t.Errorf("no key: %v", err)
	}
	// Every single byte counts.
	for i := range sealed {
		changed := bytes.Clone(sealed)
		changed[i] ^= 1
		if _, _, err := k.Open(Credential, changed); err == nil {
			t.Errorf("opens with byte %d changed", i)
		}
		if _, _, err := k.Open(Credential, sealed[:i]); err == nil {
			t.Errorf("opens when cut at %d", i)
		}
	}
	if _, _, err := k.Open(Credential, append(bytes.Clone(sealed), 0)); err == nil {
		t.Error("opens with a byte appended")
	}
}

func TestDerive(t *testing.T) {
	a, err := key(t, 1).Derive("test key v1", 32)
	if err != nil {
		t.Fatal(err)
	}
	again, err := key(t, 1).Derive("test key v1", 32)
	if err != nil || !bytes.Equal(a, again) || len(a) != 32 {
		t.Errorf("%x %v", again, err)
	}
	for name, k := range map[string]PrivateKey{"another key": key(t, 2), "another use": key(t, 1)} {
		info := "test key v1"
		if name == "another use" {
			info = "test key v2"
		}
		if b, err := k.Derive(info, 32); err != nil || bytes.Equal(a, b) {
			t.Errorf("%s: the same bytes, or %v", name, err)
		}
	}
}

func TestSealRefuses(t *testing.T) {
	pub := key(t, 1).Public()
	for name, c := range map[string]struct {
		to     PublicKey
		ad, in []byte
		want   errs.Code
	}{
		"no key":      {PublicKey{}, nil, []byte("x"), errs.Invalid},
		"empty":       {pub, nil, nil, errs.Invalid},
		"long secret": {pub, nil, make([]byte, MaxSecret+1), errs.Oversize},
		"long data":   {pub, make([]byte, MaxBound+1), []byte("x"), errs.Oversize},
	} {
		if _, err := Seal(c.to, Credential, c.ad, c.in); !errs.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, b := range [][]byte{nil, make([]byte, 31), make([]byte, 33), make([]byte, 65)} {
		if _, err := ParsePublicKey(b); !errs.Is(err, errs.Invalid) {
			t.Errorf("a public key of %d bytes: %v", len(b), err)
		}
	}
}

func TestKeyForms(t *testing.T) {
	k := key(t, 1)
	b, err := k.MarshalPEM()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParsePrivateKey(b)
	if err != nil || again.Public().Fingerprint() != k.Public().Fingerprint() {
		t.Fatalf("%v %v", again, err)
	}
	for _, bad := range [][]byte{nil, []byte("x"), append(bytes.Clone(b), b...), bytes.Replace(b, []byte("SEALING"), []byte("SIGNING"), 2)} {
		if _, err := ParsePrivateKey(bad); !errs.Is(err, errs.Invalid) {
			t.Errorf("%.40q: %v", bad, err)
		}
	}
	pub, err := ParsePublicKey(k.Public().Bytes())
	if err != nil || pub.Fingerprint() != k.Public().Fingerprint() {
		t.Fatalf("%v %v", pub, err)
	}
	if len(pub.Fingerprint()) != 49 || pub.Fingerprint() == key(t, 2).Public().Fingerprint() {
		t.Errorf("fingerprint %s", pub.Fingerprint())
	}
	raw, err := k.key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{fmt.Sprint(k), fmt.Sprintf("%#v", k), fmt.Sprintf("%+v", k)} {
		if strings.Contains(s, hex.EncodeToString(raw)) || !strings.Contains(s, pub.Fingerprint()) {
			t.Errorf("the key prints as %s", s)
		}
	}
}

func TestBoundRoundTrip(t *testing.T) {
	for _, b := range []Bound{{}, bound(), {Org: "sallyport", Version: -1, Account: "\x00\n"}} {
		got, err := ParseBound(b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(b, got); d != "" {
			t.Error(d)
		}
	}
	good := bound().Bytes()
	for i := range good {
		if _, err := ParseBound(good[:i]); !errs.Is(err, errs.Invalid) {
			t.Errorf("cut at %d: %v", i, err)
		}
	}
	if _, err := ParseBound(append(good, 0)); !errs.Is(err, errs.Invalid) {
		t.Errorf("a byte more: %v", err)
	}
}

func credentialIntent() intent.Intent {
	return intent.Intent{
		Org: "default", Connection: "tracker", Subject: "shared", Version: 4, Origin: "https://mcp.tracker.example.org", Path: "/mcp?v=1",
		AuthType: intent.AuthHeader, AuthHeader: "X-Api-Key", Account: "bot",
	}
}

// I3, I7: a credential serves exactly what it was sealed for. Every member of Bound that the intent knows is compared; the change of any is refused.
func TestCovers(t *testing.T) {
	in := credentialIntent()
	if err := bound().Covers(&in); err != nil {
		t.Fatal(err)
	}
	// What only the token endpoint sees is bound by the envelope, and no member of an intent.
	unknown := map[string]bool{"Issuer": true, "TokenEndpoint": true, "ClientID": true}
	for f := range reflect.TypeFor[Bound]().Fields() {
		b := bound()
		v := reflect.ValueOf(&b).Elem().FieldByIndex(f.Index)
		if f.Type.Kind() == reflect.Int64 {
			v.SetInt(v.Int() + 1)
		} else {
			v.SetString(v.String() + "x")
		}
		err := b.Covers(&in)
		if unknown[f.Name] != (err == nil) {
			t.Errorf("%s changed: %v", f.Name, err)
		}
		if err != nil && !errs.Is(err, errs.NotAllowed) {
			t.Errorf("%s: %v", f.Name, err)
		}
	}
	in.Account = ""
	if err := bound().Covers(&in); err != nil {
		t.Errorf("an intent that expects no account: %v", err)
	}
}

func TestPathPrefix(t *testing.T) {
	for _, c := range []struct {
		prefix, path string
		want         bool
	}{
		{"/mcp", "/mcp", true},
		{"/mcp", "/mcp?v=1", true},
		{"/mcp", "/mcp/v1", true},
		{"/mcp/", "/mcp/v1", true},
		{"/", "/anything", true},
		{"/a%2Fb", "/a%2Fb/c", true},
		{"/mcp", "/mcp2", false},
		{"/mcp", "/mc", false},
		{"/mcp", "/", false},
		{"/mcp/", "/mcp", false},
		{"", "/mcp", false},
		{"/mcp", "/mcp/../admin", false},
		{"/mcp", "/mcp/%2e%2E/admin", false},
		{"/mcp", "/mcp/..%2fadmin", false},
		{"/mcp", "/mcp/x%2F..%2Fadmin", false},
		{"/mcp", "/mcp/..%5cadmin", false},
		{"/mcp", `/mcp/..\admin`, false},
		{"/mcp", "/mcp/./x", false},
		{"/mcp", "/mcp/..x", true},
		{"/mcp", "/mcp?x=../y", true},
	} {
		if got := under(c.prefix, c.path); got != c.want {
			t.Errorf("%s under %s: %v", c.path, c.prefix, got)
		}
	}
}

type vector struct {
	Private     string `json:"private"`
	Public      string `json:"public"`
	Fingerprint string `json:"fingerprint"`
	Info        string `json:"info"`
	Bound       Bound  `json:"bound"`
	BoundBytes  string `json:"associated_data"`
	Secret      string `json:"secret"`
	Sealed      string `json:"sealed"`
}

// The vector holds one envelope: sealing is randomized, opening is not.
func TestVector(t *testing.T) {
	b, err := os.ReadFile("testdata/vector.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vector
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	raw, err := hex.DecodeString(v.Private)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := kem().NewPrivateKey(raw)
	if err != nil {
		t.Fatal(err)
	}
	k := PrivateKey{inner}
	sealed, err := base64.StdEncoding.DecodeString(v.Sealed)
	if err != nil {
		t.Fatal(err)
	}
	ad, secret, err := k.Open(Credential, sealed)
	if err != nil {
		t.Fatal(err)
	}
	if string(secret) != v.Secret || hex.EncodeToString(ad) != v.BoundBytes || hex.EncodeToString(v.Bound.Bytes()) != v.BoundBytes {
		t.Errorf("%s %x", secret, ad)
	}
	if hex.EncodeToString(k.Public().Bytes()) != v.Public || k.Public().Fingerprint() != v.Fingerprint || string(info(Credential)) != v.Info {
		t.Errorf("%x %s %q", k.Public().Bytes(), k.Public().Fingerprint(), info(Credential))
	}
	page, err := os.ReadFile("../../docs/keys.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{v.Private, v.Public, v.Fingerprint, v.BoundBytes, v.Sealed} {
		if !strings.Contains(string(page), s) {
			t.Errorf("docs/keys.md does not show %s", s)
		}
	}
}

func FuzzOpen(f *testing.F) {
	k := key(f, 1)
	sealed, err := Seal(k.Public(), Credential, bound().Bytes(), []byte("s3cret"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed)
	f.Add([]byte(magic))
	f.Add([]byte(magic + "\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		ad, secret, err := k.Open(Credential, b)
		if err != nil {
			return
		}
		// Whatever opens was sealed by somebody who knew the public key: it must still be a whole envelope of its own.
		if readable, err := AssociatedData(b); err != nil || !bytes.Equal(readable, ad) || len(secret) == 0 {
			t.Errorf("%q %q %v", ad, secret, err)
		}
	})
}

// FuzzChanged changes a sealed secret in one place, or cuts it: then it does not open, neither as it is nor for another purpose.
func FuzzChanged(f *testing.F) {
	k := key(f, 1)
	ad, secret := bound().Bytes(), []byte("s3cret")
	sealed, err := Seal(k.Public(), Credential, ad, secret)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint16(0), byte(0), uint16(0))
	f.Add(uint16(5), byte(1), uint16(0))
	f.Add(uint16(len(sealed)-1), byte(0x80), uint16(0))
	f.Add(uint16(0), byte(0), uint16(1))
	f.Fuzz(func(t *testing.T, at uint16, flip byte, cut uint16) {
		b := bytes.Clone(sealed)
		b[int(at)%len(b)] ^= flip
		b = b[:len(b)-int(cut)%len(b)]
		gotAD, got, err := k.Open(Credential, b)
		if whole := bytes.Equal(b, sealed); whole != (err == nil) {
			// X25519 ignores the last bit of a public key (RFC 7748, 5); the key schedule has it all the same, so it must not open either.
			t.Fatalf("byte %d changed by %#x, %d cut: whole %v, opened %v", int(at)%len(sealed), flip, cut, whole, err == nil)
		}
		if err == nil && (!bytes.Equal(got, secret) || !bytes.Equal(gotAD, ad)) {
			t.Fatalf("%q %q", got, gotAD)
		}
		if _, _, err := k.Open(Egress, b); err == nil {
			t.Fatal("it opens for another purpose")
		}
	})
}

func FuzzParseBound(f *testing.F) {
	f.Add(bound().Bytes())
	f.Add(Bound{}.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := ParseBound(data)
		if err == nil && !bytes.Equal(b.Bytes(), data) {
			t.Errorf("%q parses, but is written as %q", data, b.Bytes())
		}
	})
}

func BenchmarkOpen(b *testing.B) {
	k := key(b, 1)
	sealed, err := Seal(k.Public(), Credential, bound().Bytes(), []byte("s3cret"))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, _, err := k.Open(Credential, sealed); err != nil {
			b.Fatal(err)
		}
	}
}
