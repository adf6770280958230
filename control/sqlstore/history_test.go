package sqlstore

import (
	"os"
	"path/filepath"
	"testing"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/journal"
	"sallyport.dev/control/revocation"
	"sallyport.dev/errs"
)

// reopen opens the store of opts for a part of a test.
func reopen(t *testing.T, opts Options, f func(*Store)) {
	t.Helper()
	s, err := Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	f(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, opts Options, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.Remove(filepath.Join(opts.Dir, name)); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
}

// putBack puts a backup in the place of the database.
func putBack(t *testing.T, opts Options, backup string) {
	t.Helper()
	remove(t, opts, "store.db", "store.db-wal", "store.db-shm")
	if err := copyFile(backup, filepath.Join(opts.Dir, "store.db")); err != nil {
		t.Fatal(err)
	}
}

func TestAnOrdinaryRestartIsNoQuarantine(t *testing.T) {
	opts := testOptions(t, t.TempDir())
	var incarnation string
	for i := range 3 {
		reopen(t, opts, func(s *Store) {
			h := s.Health()
			if h.Quarantine != "" || i > 0 && h.Incarnation != incarnation {
				t.Fatalf("restart %d: %+v", i, h)
			}
			incarnation = h.Incarnation
			newWorldAgain(t, s).oneWrite(func(acknowledged) {})
		})
	}
}

func TestARestoredBackupIsFoundOut(t *testing.T) {
	opts := testOptions(t, t.TempDir())
	backup := filepath.Join(t.TempDir(), "backup.db")
	var decided, out *control.Call
	reopen(t, opts, func(s *Store) {
		w := newWorld(t, s)
		c, q := w.asking()
		sent, sentQ := w.approved()
		if r, err := s.Commit(t.Context(), w.barrier(sent, sentQ)); err != nil || r != call.Done {
			t.Fatal(r, err)
		}
		decided, out = c, sent
		if err := s.Backup(t.Context(), backup, ada); err != nil {
			t.Fatal(err)
		}
		// What the backup does not know: the decision, and that it ran.
		if _, err := s.Decide(t.Context(), &inbox.Decide{
			Question: q.ID, Decision: control.Decision{Verdict: control.Approve, By: ada, Binding: q.Binding}, Actor: inbox.Actor{Person: ada, Local: true},
		}); err != nil {
			t.Fatal(err)
		}
		c.State = journal.Approved
		if r, err := s.Commit(t.Context(), w.barrier(c, q)); err != nil || r != call.Done {
			t.Fatal(r, err)
		}
	})
	putBack(t, opts, backup)
	reopen(t, opts, func(s *Store) {
		if s.Health().Quarantine == "" {
			t.Fatal("nobody noticed")
		}
		for _, c := range []*control.Call{decided, out} {
			got, err := s.Call(t.Context(), c.ID)
			if err != nil || got.State != journal.Uncertain {
				t.Fatalf("a write that may have run in the lost history is %s, %v", got.State, err)
			}
		}
		open, err := s.Questions(t.Context(), inbox.Filter{})
		if err != nil || len(open) != 2 || open[0].Kind != control.AskUncertain {
			t.Fatalf("%d questions, %v", len(open), err)
		}
		verified(t, s)
	})
	var accepted string
	reopen(t, opts, func(s *Store) { // quarantine survives a restart
		if s.Health().Quarantine == "" {
			t.Fatal("a restart left quarantine")
		}
		before := s.Health().Mark
		h, err := s.AcceptRestore(t.Context(), ada, "we know")
		if err != nil || h.Incarnation == before.Incarnation || h.Quarantine != "" {
			t.Fatalf("%+v %v", h, err)
		}
		if got := s.HighWater(); got != (Mark{h.Incarnation, h.Counter}) {
			t.Fatalf("%+v was told, the store is at %+v", h, got)
		}
		accepted = h.Incarnation
	})
	reopen(t, opts, func(s *Store) {
		if h := s.Health(); h.Quarantine != "" || h.Incarnation != accepted {
			t.Fatalf("%+v", h)
		}
		if err := s.MarkCredential(t.Context(), "tracker", control.SubjectShared, 1, control.CredentialGood); err != nil {
			t.Fatal(err) // they were marked to be checked
		}
		newWorldAgain(t, s).oneWrite(func(acknowledged) {})
	})
}

func TestHostsRememberMore(t *testing.T) {
	opts := testOptions(t, t.TempDir())
	s := openTest(t, opts)
	newWorld(t, s)
	before := s.Health()
	if q, err := s.Remember(t.Context(), "host a", revocation.History{Incarnation: before.Incarnation, Counter: before.Counter + 100}); err != nil || !q {
		t.Fatalf("%v %v", q, err)
	}
	held := s.Health().Quarantine
	if i, err := s.Quarantine(t.Context(), "again"); err != nil || i.Calls+i.Sessions != 0 || s.Health().Quarantine != held {
		t.Fatalf("a second quarantine did something: %+v %v", i, err)
	}
}

func TestALostDatabaseIsFoundOut(t *testing.T) {
	opts := testOptions(t, t.TempDir())
	reopen(t, opts, func(s *Store) { newWorld(t, s) })
	remove(t, opts, "store.db", "store.db-wal", "store.db-shm")
	reopen(t, opts, func(s *Store) {
		if s.Health().Quarantine == "" {
			t.Fatal("a fresh database in the place of another is not found out")
		}
	})
}

func TestADamagedHighwaterFile(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "other": "hello", "changed": string(Mark{"a", 7}.line()[1:])} {
		t.Run(name, func(t *testing.T) {
			opts := testOptions(t, t.TempDir())
			reopen(t, opts, func(s *Store) { newWorld(t, s) })
			writeFile(t, opts.Dir, "highwater", text)
			reopen(t, opts, func(s *Store) {
				if s.Health().Quarantine == "" {
					t.Fatal("it is not found out")
				}
			})
			if _, err := readHighwater(filepath.Join(opts.Dir, "highwater")); err != nil {
				t.Fatal("it is not written anew")
			}
		})
	}
}

func TestHighwaterFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "highwater")
	if m, err := readHighwater(path); err != nil || m != (Mark{}) {
		t.Fatalf("%+v %v", m, err)
	}
	h, err := openHighwater(path, Mark{control.NewID(), 1})
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	for _, m := range []Mark{{control.NewID(), 1}, {control.NewID(), 1 << 60}, {"a", 0}} {
		if err := h.write(m); err != nil {
			t.Fatal(err)
		}
		if got, err := readHighwater(path); err != nil || got != m {
			t.Fatalf("%+v %v", got, err)
		}
		b := m.line()
		for i := range b {
			changed := append([]byte(nil), b...)
			changed[i] ^= 1
			if err := os.WriteFile(path+".bad", changed, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := readHighwater(path + ".bad"); !errs.Is(err, errs.Invalid) {
				t.Fatalf("byte %d changed: %v", i, err)
			}
		}
	}
}

func TestBackupNeverReplaces(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	newWorld(t, s)
	path := filepath.Join(t.TempDir(), "b.db")
	if err := s.Backup(t.Context(), path, ada); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 || info.Size() == 0 {
		t.Fatalf("%v %v", info, err)
	}
	if err := s.Backup(t.Context(), path, ada); !errs.Is(err, errs.Conflict) {
		t.Fatal(err)
	}
	if err := s.Backup(t.Context(), filepath.Join(t.TempDir(), "no", "where"), ada); !errs.Is(err, errs.Unavailable) {
		t.Fatal(err)
	}
}
