package keyring

import (
	"encoding/binary"
	"reflect"
	"testing"

	"sallyport.dev/errs"
	"sallyport.dev/intent"
	"sallyport.dev/intent/seal"
)

// TestEveryPartIsBound changes one part of what a credential is bound to at a time, in the envelope: whoever holds sealed bytes can change what stands
// readable in them, and must not get a credential that opens. For the parts that an intent names, an honest envelope for another value does not serve
// the intent either.
func TestEveryPartIsBound(t *testing.T) {
	k, _ := open(t, files(t))
	whole := bound()
	whole.Header, whole.Issuer, whole.TokenEndpoint, whole.ClientID, whole.Account = "X-Key", "https://as.example.org", "https://as.example.org/token", "client", "bot"
	in := sample()
	in.AuthType, in.AuthHeader, in.Account = intent.AuthHeader, "X-Key", "bot"
	env := sealed(t, k, whole)
	if s, err := k.Credential(&in, env); err != nil || s.Text() != canary {
		t.Fatalf("%q %v", s.Text(), err)
	}
	rest := env[8+len(whole.Bytes()):] // after the magic and the length
	for f := range reflect.TypeFor[seal.Bound]().Fields() {
		b := whole
		v := reflect.ValueOf(&b).Elem().FieldByIndex(f.Index)
		if f.Type.Kind() == reflect.Int64 {
			v.SetInt(v.Int() + 1)
		} else {
			v.SetString(v.String() + "x")
		}
		forged := append(binary.BigEndian.AppendUint32([]byte("SPS1"), uint32(len(b.Bytes()))), b.Bytes()...)
		if _, err := k.Credential(&in, append(forged, rest...)); !errs.Is(err, errs.NotAllowed) {
			t.Errorf("%s changed in the envelope: %v", f.Name, err)
		}
		switch f.Name {
		case "Issuer", "TokenEndpoint", "ClientID": // no intent names them: the worker goes where the envelope says
			continue
		}
		if _, err := k.Credential(&in, sealed(t, k, b)); !errs.Is(err, errs.NotAllowed) {
			t.Errorf("sealed for another %s: %v", f.Name, err)
		}
	}
}

// TestCertificate: what a connection shows in TLS opens for that connection and version only, whoever's credential the intent names.
func TestCertificate(t *testing.T) {
	k, _ := open(t, files(t))
	b := bound()
	b.Subject, b.Version = intent.CertificateSubject, 2
	env := sealed(t, k, b)
	in := sample()
	in.Account, in.Subject = "bot", "local:ada"
	if s, err := k.Certificate(&in, env, 2); err != nil || s.Text() != canary {
		t.Fatalf("%q %v", s.Text(), err)
	}
	other := in
	other.Connection = "deploys"
	for name, err := range map[string]error{
		"another version":            second(k.Certificate(&in, env, 3)),
		"another connection":         second(k.Certificate(&other, env, 2)),
		"the credential of a person": second(k.Certificate(&in, sealed(t, k, bound()), 4)),
		"it as the credential":       second(k.Credential(&in, env)),
	} {
		if !errs.Is(err, errs.NotAllowed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second(_ Secret, err error) error { return err }
