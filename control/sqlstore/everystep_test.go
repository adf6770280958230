package sqlstore

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3/vfs"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/journal"
)

// film is a file system that, while it runs, keeps the store's files as they are before each write and each sync: what a process that is killed there
// leaves.
type film struct {
	vfs.VFSFilename
	dir string

	mu    sync.Mutex
	runs  bool
	shots []shot
}

// shot is the database and its log at one moment.
type shot struct{ db, wal []byte }

func (f *film) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	file, out, err := f.VFSFilename.OpenFilename(name, flags)
	if err != nil || name == nil {
		return file, out, err
	}
	return &filmFile{diskFile{File: file, d: unlimited()}, f}, out, nil
}

type filmFile struct {
	diskFile
	f *film
}

func (f *filmFile) WriteAt(p []byte, off int64) (int, error) {
	f.f.take()
	return f.diskFile.WriteAt(p, off)
}

func (f *filmFile) Sync(flags vfs.SyncFlag) error {
	f.f.take()
	return f.diskFile.Sync(flags)
}

// take keeps the files, unless they are as they were.
func (f *film) take() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.runs {
		return
	}
	db, err := os.ReadFile(filepath.Join(f.dir, "store.db"))
	wal, err2 := os.ReadFile(filepath.Join(f.dir, "store.db-wal"))
	if err != nil || err2 != nil {
		return // it is being made
	}
	if n := len(f.shots); n > 0 && bytes.Equal(f.shots[n-1].wal, wal) && bytes.Equal(f.shots[n-1].db, db) {
		return
	}
	f.shots = append(f.shots, shot{db, wal})
}

// of films what do does, and returns moments of it, in order.
func (f *film) of(do func()) []shot {
	f.mu.Lock()
	f.runs, f.shots = true, nil
	f.mu.Unlock()
	f.take()
	do()
	f.take()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.runs = false
	// The first moment, the last, and one of those in between: a run looks at another one than the run before.
	n := len(f.shots)
	if n <= 3 {
		return f.shots
	}
	return []shot{f.shots[0], f.shots[1+rand.IntN(n-2)], f.shots[n-1]}
}

// TestKilledAtEveryTransition is made from the journal's table: whatever row of it a store is killed in, before any of its writes and syncs, it comes back
// with the call where it was, or where it was going, and never behind what an earlier moment had; once the step was answered, it stands. A new row
// without a way to bring a call there is red.
func TestKilledAtEveryTransition(t *testing.T) {
	root := inMemory(t)
	f := &film{VFSFilename: vfs.Find("").(vfs.VFSFilename), dir: filepath.Join(root, "control")}
	vfs.Register(t.Name(), walVFS{f})
	t.Cleanup(func() { vfs.Unregister(t.Name()) })
	opts := fileOptions(t, root)
	opts.vfs = t.Name()
	w := newWorld(t, openTest(t, opts))
	moments := 0
	var quarantined []string
	for _, row := range journal.Table {
		effect := control.Write
		if row.Guard == journal.OfRead {
			effect = control.Read
		}
		c, q := w.bring(row.From, effect)
		if row.Event == journal.OnQuarantine {
			quarantined = append(quarantined, c.ID+" "+string(row.From)+" "+string(row.To)) // all at once, below
			continue
		}
		name := fmt.Sprintf("%s %s %s", row.From, row.Event, row.To)
		shots := f.of(func() { w.take(c, q, row) })
		moments += len(shots)
		w.back(root, name, shots, []string{c.ID + " " + string(row.From) + " " + string(row.To)})
	}
	shots := f.of(func() {
		if _, err := w.Quarantine(t.Context(), "a test"); err != nil {
			t.Fatal(err)
		}
	})
	moments += len(shots)
	w.back(root, "quarantine", shots, quarantined)
	t.Logf("%d rows, %d moments", len(journal.Table), moments)
}

// inMemory is a directory whose syncs cost nothing, where the machine has one: what a killed process leaves is what it wrote, synced or not.
func inMemory(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "sallyport-store-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) }) //nolint:errcheck // the next start of the machine removes it
	return dir
}

// back opens the store as each moment left it. calls: id, state before, state after.
func (w *world) back(root, name string, shots []shot, calls []string) {
	w.t.Helper()
	arrived := false
	for n, s := range shots {
		dir := filepath.Join(root, "after")
		w.no(os.RemoveAll(dir))
		w.no(os.MkdirAll(filepath.Join(dir, "control"), 0o700))
		w.no(os.WriteFile(filepath.Join(dir, "control", "store.db"), s.db, 0o600))
		w.no(os.WriteFile(filepath.Join(dir, "control", "store.db-wal"), s.wal, 0o600))
		for _, key := range []string{"journal.key", "audit.key"} {
			w.no(copyFile(filepath.Join(root, key), filepath.Join(dir, key)))
		}
		back, err := Open(w.t.Context(), fileOptions(w.t.(*testing.T), dir))
		if err != nil {
			w.t.Fatalf("%s, moment %d of %d: %v", name, n, len(shots), err)
		}
		var all []bool
		for _, one := range calls {
			var id, from, to string
			if _, err := fmt.Sscan(one, &id, &from, &to); err != nil { // from none
				from, to = "", from
			}
			got := journal.None
			if c, err := back.Call(w.t.Context(), id); err == nil {
				got = c.State
			}
			if got != journal.State(from) && got != journal.State(to) {
				w.t.Errorf("%s, moment %d of %d: the call is %q", name, n, len(shots), got)
			}
			all = append(all, got == journal.State(to))
		}
		for _, there := range all {
			if there != all[0] || arrived && !there || n == len(shots)-1 && !there {
				w.t.Errorf("%s, moment %d of %d: arrived %v, before it %v", name, n, len(shots), all, arrived)
				break
			}
		}
		arrived = all[0]
		verified(w.t.(*testing.T), back)
		w.no(back.Close())
	}
	if len(shots) < 2 || !arrived {
		w.t.Errorf("%s: %d moments, arrived %v", name, len(shots), arrived)
	}
}

// bring makes a call that stands at a state, with the question that it waits for; at none, one that is not stored.
func (w *world) bring(at journal.State, effect control.Effect) (*control.Call, *control.Question) {
	w.t.Helper()
	c := w.row(effect, []byte(`{"title":"x"}`))
	if at == journal.None {
		return c, nil
	}
	if at == journal.Asking || at == journal.Approved {
		q := w.asked(c)
		c.State, c.ExpiresAt = journal.Asking, q.ExpiresAt
		w.admit(&call.Admission{Call: c, Guard: w.guard(1), Question: q, Durable: true, Steps: []control.Step{
			{Event: journal.OnRecord, To: journal.Admitted, Actor: theHost}, {From: journal.Admitted, Event: journal.OnAsk, To: journal.Asking, Actor: theRun},
		}})
		if at == journal.Approved {
			w.take(c, q, journal.Transition{From: journal.Asking, Event: journal.OnApprove, To: at})
		}
		return c, q
	}
	w.take(c, nil, journal.Transition{Event: journal.OnRecord, To: journal.Admitted})
	way := map[journal.State]journal.Event{
		journal.Retrying: journal.OnRetry, journal.InputWanted: journal.OnInput, journal.Working: journal.OnTask, journal.Uncertain: journal.OnLost,
	}
	event, further := way[at]
	if further || at == journal.Dispatching {
		w.take(c, nil, journal.Transition{From: journal.Admitted, Event: journal.OnCommit, To: journal.Dispatching})
	}
	if further {
		w.take(c, nil, journal.Transition{From: journal.Dispatching, Event: event, To: at})
	}
	if c.State != at {
		w.t.Fatalf("nobody brings a call to %s", at)
	}
	return c, nil
}

func (w *world) asked(c *control.Call) *control.Question {
	return &control.Question{
		Org: control.Org, ID: control.NewID(), Kind: control.AskApproval, Call: c.ID, Session: w.session, Owner: ada, Profile: "dev", Local: true,
		Binding: c.Binding, State: control.QuestionOpen, ExpiresAt: w.Now().Add(time.Hour),
	}
}

// take takes one step of a call, by the operation that takes it.
func (w *world) take(c *control.Call, q *control.Question, row journal.Transition) {
	w.t.Helper()
	ctx := w.t.Context()
	step := control.Step{From: row.From, Event: row.Event, To: row.To, Attempt: c.Attempt, Actor: theRun}
	got := call.Done
	var err error
	switch row.Event {
	case journal.OnRecord:
		c.State = row.To
		w.admit(&call.Admission{Call: c, Guard: w.guard(1), Durable: c.Effect == control.Write, Steps: []control.Step{step}})
	case journal.OnCommit:
		b := w.barrier(c, &control.Question{})
		b.Authority = control.Authority{Kind: control.ByRule}
		if got, err = w.Commit(ctx, b); err == nil {
			c.Attempt++
		}
	case journal.OnApprove, journal.OnDeny:
		verdict := control.Approve
		if row.Event == journal.OnDeny {
			verdict = control.Refuse
		}
		d, failed := w.Decide(ctx, &inbox.Decide{
			Question: q.ID, Decision: control.Decision{Verdict: verdict, By: ada, Binding: q.Binding, Reason: "because"}, Actor: inbox.Actor{Person: ada, Local: true}, Grace: time.Minute,
		})
		if err = failed; err == nil && d.Outcome != inbox.Closes {
			w.t.Fatalf("%+v: %s", row, d.Outcome)
		}
	case journal.OnResolveDone, journal.OnResolveNotDone, journal.OnResolveRetry:
		r := &call.Resolution{Call: c.ID, Attempt: c.Attempt, By: ada, Note: "looked", Step: step}
		if row.Event == journal.OnResolveRetry {
			again := w.row(c.Effect, c.Arguments)
			again.State = journal.Admitted
			r.Retry = &call.Admission{Call: again, Guard: w.guard(1), Durable: true, Steps: []control.Step{{Event: journal.OnRecord, To: journal.Admitted, Actor: theHost}}}
		}
		got, err = w.Resolve(ctx, r)
	default:
		a := &call.Advance{Call: c.ID, From: row.From, Attempt: c.Attempt, Lease: c.Lease, Durable: c.Effect == control.Write, Step: step}
		if row.Event == journal.OnAsk {
			a.Question, a.MaxOpen = w.asked(c), 1000
		}
		got, err = w.Advance(ctx, a)
	}
	w.no(err)
	if got != call.Done {
		w.t.Fatalf("%+v: %s", row, got)
	}
	c.State = row.To
}
