package identity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"sallyport.dev/errs"
)

func token(t *testing.T, now time.Time) Token {
	t.Helper()
	tok, err := NewToken(Token{
		Role: Worker, Name: "w1", Pool: "default", Domain: "example.org", Control: mustID(t, Name{Role: Control, Name: "a"}),
		Address: "control.example.org:7443", CAKey: mustCA(t, now).KeyHash(),
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestToken(t *testing.T) {
	tok := token(t, day)
	text := tok.Text()
	if strings.ContainsAny(text, " \n\t") || !strings.HasPrefix(text, "spj1.") {
		t.Errorf("a token is one word that can be copied: %s", text)
	}
	got, err := ParseToken(" " + text + "\n")
	if err != nil {
		t.Fatal(err)
	}
	if got.Role != tok.Role || got.Name != tok.Name || got.Pool != tok.Pool || got.Control != tok.Control || got.Address != tok.Address ||
		got.CAKey != tok.CAKey || !got.Expires.Equal(tok.Expires) || !bytes.Equal(got.secret, tok.secret) {
		t.Errorf("%+v", got)
	}
	if TokenDigest(text) != TokenDigest(" "+text+"\n") || TokenDigest(text) == TokenDigest(token(t, day).Text()) {
		t.Error("the digest names one token")
	}
	if got.Expired(day.Add(TokenLife)) || !got.Expired(day.Add(TokenLife+time.Second)) {
		t.Error("a token lives 15 minutes")
	}
	secret := text[20:60]
	j, err := json.Marshal(tok)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{fmt.Sprint(tok), fmt.Sprintf("%+v", tok), fmt.Sprintf("%#v", tok), string(j)} {
		if strings.Contains(s, secret) {
			t.Errorf("a token prints itself: %s", s)
		}
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("token", "token", tok)
	slog.New(slog.NewTextHandler(&log, nil)).Info("token", "token", tok)
	if strings.Contains(log.String(), secret) {
		t.Errorf("a token logs itself: %s", log.String())
	}
	for _, bad := range []string{"", "x", "spj1.", "spj1.AAAA", text[:len(text)-4], text + "A", text[:30] + "B" + text[31:], "spj2." + text[5:], text + text, "spj1." + strings.Repeat("A", 5000)} {
		if got, err := ParseToken(bad); err == nil && got.Text() == bad && TokenDigest(bad) == TokenDigest(text) {
			t.Errorf("%.40s… is taken as the token", bad)
		} else if err != nil && !errs.Is(err, errs.Invalid) {
			t.Errorf("%.40s…: %v", bad, err)
		}
	}
}

func TestNewTokenRefuses(t *testing.T) {
	good := token(t, day)
	for name, change := range map[string]func(*Token){
		"control":                 func(k *Token) { k.Role, k.Pool = Control, "" },
		"host with a pool":        func(k *Token) { k.Role = Host },
		"bad name":                func(k *Token) { k.Name = "../x" },
		"no address":              func(k *Token) { k.Address = "" },
		"no CA key":               func(k *Token) { k.CAKey = "" },
		"control of no role":      func(k *Token) { k.Control = mustID(t, Name{Role: Host, Name: "a"}) },
		"control of other domain": func(k *Token) { k.Control = spiffeid.RequireFromString("spiffe://other.example/control/a") },
		"no control":              func(k *Token) { k.Control = spiffeid.ID{} },
	} {
		k := good
		change(&k)
		if _, err := NewToken(k, day); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add("spj1.e30")
	f.Add("spj1.eyJyb2xlIjoiaG9zdCJ9")
	f.Fuzz(func(t *testing.T, text string) {
		tok, err := ParseToken(text)
		if err != nil {
			var e *errs.Error
			if !errors.As(err, &e) {
				t.Errorf("an error without a code: %v", err)
			}
			return
		}
		if _, err := tok.ID(); err != nil {
			t.Errorf("a token without an id: %v", err)
		}
	})
}
