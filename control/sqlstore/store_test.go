package sqlstore

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport.dev/control"
	"sallyport.dev/control/journalkey"
	"sallyport.dev/control/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testOptions are those of a store in a directory of the test.
func testOptions(t testing.TB, dir string) Options {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return Options{Dir: dir, Key: freshKey(t), Audit: key, Node: "test", Reserve: 1 << 20, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
}

func freshKey(t testing.TB) *journalkey.Ring {
	r, err := journalkey.New()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func openTest(t testing.TB, opts Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// putCredential stores a credential as it is, whatever its version. As every change of a credential it makes the next generation.
func (s *Store) putCredential(c control.Credential) error {
	return s.do(context.Background(), durable, func(t *tx) error {
		if _, err := t.exec("DELETE FROM credentials WHERE connection = ? AND subject = ?", c.Connection, c.Subject); err != nil {
			return err
		}
		t.bump()
		return t.insertCredential(&c)
	})
}

func stores(s *Store) storetest.Stores {
	return storetest.Stores{Call: s, Inbox: s, Grant: s, Session: s, Revocation: s, People: s, PutCredential: s.putCredential}
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Stores { return stores(openTest(t, testOptions(t, t.TempDir()))) })
}

func TestNowNeverGoesBack(t *testing.T) {
	opts := testOptions(t, t.TempDir())
	clock := time.Unix(1000, 0)
	opts.Now = func() time.Time { return clock }
	s := openTest(t, opts)
	first := s.Now()
	clock = clock.Add(-time.Hour)
	if got := s.Now(); got.Before(first) {
		t.Fatalf("%v after %v", got, first)
	}
	clock = clock.Add(2 * time.Hour)
	if got := s.Now(); !got.Equal(clock) {
		t.Fatalf("%v, the clock says %v", got, clock)
	}
}
