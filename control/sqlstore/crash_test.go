package sqlstore

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3/vfs"

	"sallyport.dev/control"
	"sallyport.dev/control/audit"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/control/journalkey"
)

// acknowledged is what a store said was done: a call, the least that it must be, and the counter that was told.
type acknowledged struct {
	call    string
	state   journal.State
	counter int64
}

// reached reports whether a call that stands at got has been where want was acknowledged.
func reached(got, want journal.State) bool {
	order := []journal.State{journal.Asking, journal.Approved, journal.Dispatching, journal.Answered}
	at := func(s journal.State) int {
		for i, o := range order {
			if o == s {
				return i
			}
		}
		return -1
	}
	return at(got) >= at(want)
}

// oneWrite drives a write to its end and tells each durable step when the store has acknowledged it.
func (w *world) oneWrite(tell func(acknowledged)) {
	said := func(c *control.Call, state journal.State) {
		tell(acknowledged{c.ID, state, w.HighWater().Counter})
	}
	c, q := w.approved()
	said(c, journal.Approved)
	r, err := w.Commit(w.t.Context(), w.barrier(c, q))
	w.no(err)
	if r != call.Done {
		w.t.Fatalf("barrier: %s", r)
	}
	said(c, journal.Dispatching)
	c.Attempt = 1
	w.advance(settle(c, true))
	said(c, journal.Answered)
}

// holds checks that a store that was opened after a crash has everything that was acknowledged.
func holds(t *testing.T, s *Store, acks []acknowledged) {
	t.Helper()
	counter := int64(0)
	for _, a := range acks {
		counter = max(counter, a.counter)
		c, err := s.Call(t.Context(), a.call)
		if err != nil || !reached(c.State, a.state) {
			t.Fatalf("call %s was acknowledged as %s: %v", a.call, a.state, err)
		}
		if c.State == journal.Answered && string(c.Body) != string(answer) {
			t.Fatalf("call %s lost its answer", a.call)
		}
	}
	if h := s.Health(); h.Counter < counter || h.Quarantine != "" {
		t.Fatalf("the store is at %d (%s), %d was told", h.Counter, h.Quarantine, counter)
	}
	verified(t, s)
}

// verified checks that the record is whole.
func verified(t *testing.T, s *Store) audit.Report {
	t.Helper()
	var b bytes.Buffer
	if err := s.Export(t.Context(), time.Time{}, &b); err != nil {
		t.Fatal(err)
	}
	rep, err := audit.Verify(&b, audit.Options{Keys: []ed25519.PublicKey{s.opts.Audit.Public().(ed25519.PublicKey)}})
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

const childEnv = "SALLYPORT_STORE_CRASH_CHILD"

// fileOptions are those of a store whose keys lie beside it, for more than one process.
func fileOptions(t *testing.T, dir string) Options {
	opts := testOptions(t, filepath.Join(dir, "control"))
	key := filepath.Join(dir, "journal.key")
	var err error
	if opts.Key, err = journalkey.Read(key); err != nil {
		if opts.Key, err = journalkey.Create(key); err != nil {
			t.Fatal(err)
		}
	}
	akey := filepath.Join(dir, "audit.key")
	if opts.Audit, err = audit.ReadKey(akey); err != nil {
		if opts.Audit, err = audit.CreateKey(akey); err != nil {
			t.Fatal(err)
		}
	}
	opts.pages = 64 // checkpoints come often
	return opts
}

// TestCrashChild is the process that TestKilledStore kills. It prints what was acknowledged.
func TestCrashChild(t *testing.T) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		t.Skip("this is the other process of TestKilledStore")
	}
	w := newWorldAgain(t, openTest(t, fileOptions(t, dir)))
	var mu sync.Mutex
	tell := func(a acknowledged) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf("ACK %s %s %d\n", a.call, a.state, a.counter)
	}
	var wg sync.WaitGroup
	w.t = elsewhere{t}
	for range 4 {
		wg.Go(func() {
			for {
				w.oneWrite(tell)
				w.no(w.oneRead())
			}
		})
	}
	wg.Wait()
}

// newWorldAgain opens a further session where the configuration stands already.
func newWorldAgain(t testing.TB, s *Store) *world {
	p, err := s.Policy(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Profiles) == 0 {
		return newWorld(t, s)
	}
	w := &world{Store: s, t: t, session: control.NewID()}
	w.open(w.session)
	return w
}

// A process that is killed at any moment has everything that it acknowledged when it comes back.
func TestKilledStore(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var all []acknowledged
	last := int64(0)
	for round := range 8 {
		cmd := exec.Command(exe, "-test.run=^TestCrashChild$", "-test.count=1")
		cmd.Env = append(os.Environ(), childEnv+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 5 + rand.IntN(150); n > 0 && lines.Scan(); n-- {
			all = append(all, parseAck(t, lines.Text())...)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // what it said before it died
			all = append(all, parseAck(t, lines.Text())...)
		}
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err == nil {
			t.Fatalf("round %d: the process ended by itself\n%s", round, stderr.String())
		}
		s, err := Open(t.Context(), fileOptions(t, dir))
		if err != nil {
			t.Fatalf("round %d: %v\n%s", round, err, stderr.String())
		}
		holds(t, s, all)
		if c := s.HighWater().Counter; c <= last {
			t.Fatalf("the counter is %d after %d", c, last)
		} else {
			last = c
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(all) < 40 {
		t.Fatalf("only %d steps were acknowledged", len(all))
	}
}

func parseAck(t *testing.T, line string) []acknowledged {
	f := strings.Fields(line)
	if len(f) != 4 || f[0] != "ACK" {
		return nil // the test binary's own lines, or a line that was cut
	}
	n, err := strconv.ParseInt(f[3], 10, 64)
	if err != nil {
		return nil
	}
	return []acknowledged{{f[1], journal.State(f[2]), n}}
}

// platter is a disk as a power failure leaves it: each file as it was when it was last synced.
type platter struct {
	vfs.VFSFilename
	mu    sync.Mutex
	image string // directory
}

func (p *platter) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	f, out, err := p.VFSFilename.OpenFilename(name, flags)
	if err != nil || name == nil {
		return f, out, err
	}
	return &platterFile{diskFile{File: f, d: unlimited()}, p, name.String()}, out, nil
}

func unlimited() *disk {
	d := &disk{}
	d.left.Store(1 << 60)
	return d
}

type platterFile struct {
	diskFile
	p    *platter
	path string
}

func (f *platterFile) Sync(flags vfs.SyncFlag) error {
	if err := f.p.sync(f.path); err != nil {
		return err
	}
	return f.diskFile.Sync(flags)
}

// sync keeps a file as it is now.
func (p *platter) sync(path string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return copyFile(path, filepath.Join(p.image, filepath.Base(path)))
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o600)
}

// A machine that loses power at any moment has everything that was acknowledged when it comes back: every file as it was last synced, the log with
// none, some or all of what came after.
func TestPowerLoss(t *testing.T) {
	root := t.TempDir()
	p := &platter{VFSFilename: vfs.Find("").(vfs.VFSFilename), image: filepath.Join(root, "image")}
	if err := os.Mkdir(p.image, 0o700); err != nil {
		t.Fatal(err)
	}
	vfs.Register(t.Name(), walVFS{p})
	t.Cleanup(func() { vfs.Unregister(t.Name()) })
	opts := fileOptions(t, root)
	opts.vfs, opts.fsync = t.Name(), p.fsync(opts.Dir)
	s := openTest(t, opts)
	w := newWorld(t, s)
	w.t = elsewhere{t}
	var mu sync.Mutex
	var acks []acknowledged
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	enough := make(chan struct{}, 1)
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				w.oneWrite(func(a acknowledged) {
					mu.Lock()
					defer mu.Unlock()
					if acks = append(acks, a); len(acks)%30 == 0 {
						select {
						case enough <- struct{}{}:
						default:
						}
					}
				})
			}
		})
	}
	over := make(chan struct{})
	go func() { wg.Wait(); close(over) }()
	for round := range 8 {
		select {
		case <-enough:
		case <-over:
			t.Fatal("nobody writes any more")
		}
		mu.Lock()
		told := append([]acknowledged(nil), acks...)
		mu.Unlock()
		p.restart(t, root, fmt.Sprint("after", round), round%3, told)
	}
}

// Each durable step is on the disk by its own sync before it is acknowledged: the power fails right after each one, nothing of the log beyond its
// last sync was written, and no checkpoint synced it by the way.
func TestEachDurableStepIsSynced(t *testing.T) {
	root := t.TempDir()
	p := &platter{VFSFilename: vfs.Find("").(vfs.VFSFilename), image: filepath.Join(root, "image")}
	if err := os.Mkdir(p.image, 0o700); err != nil {
		t.Fatal(err)
	}
	vfs.Register(t.Name(), walVFS{p})
	t.Cleanup(func() { vfs.Unregister(t.Name()) })
	opts := fileOptions(t, root)
	opts.vfs, opts.fsync, opts.pages = t.Name(), p.fsync(opts.Dir), 1<<30
	s := openTest(t, opts)
	w := newWorld(t, s)
	if err := s.checkpoints.once(); err != nil { // the files as they are before the first step
		t.Fatal(err)
	}
	var acks []acknowledged
	for range 2 {
		w.oneWrite(func(a acknowledged) {
			acks = append(acks, a)
			p.restart(t, root, fmt.Sprint("after", len(acks)), 0, acks)
		})
	}
	if len(acks) != 6 {
		t.Fatalf("%d steps were acknowledged", len(acks))
	}
}

// fsync keeps the log as it is when the store syncs it.
func (p *platter) fsync(dir string) func(func() error) func() error {
	return func(next func() error) func() error {
		return func() error {
			if err := p.sync(filepath.Join(dir, "store.db-wal")); err != nil {
				return err
			}
			return next()
		}
	}
}

// restart opens what a power failure leaves of the store below root, and checks that everything that was acknowledged is there.
func (p *platter) restart(t *testing.T, root, name string, tail int, told []acknowledged) {
	t.Helper()
	after := filepath.Join(root, name)
	p.power(t, filepath.Join(root, "control"), filepath.Join(after, "control"), tail)
	for _, key := range []string{"journal.key", "audit.key"} {
		if err := copyFile(filepath.Join(root, key), filepath.Join(after, key)); err != nil {
			t.Fatal(err)
		}
	}
	back, err := Open(t.Context(), fileOptions(t, after))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	holds(t, back, told)
	if err := back.Close(); err != nil {
		t.Fatal(err)
	}
}

// power puts what a power failure leaves into a new directory. tail: what of the log after its last sync reached the disk: 0 nothing, 1 a part, 2 all.
func (p *platter) power(t *testing.T, live, to string, tail int) {
	t.Helper()
	if err := os.MkdirAll(to, 0o700); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// The highwater file is never synced: it may be there as new as it is.
	for _, err := range []error{
		copyFile(filepath.Join(p.image, "store.db"), filepath.Join(to, "store.db")),
		copyFile(filepath.Join(p.image, "store.db-wal"), filepath.Join(to, "store.db-wal")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if tail == 0 {
		return
	}
	synced, err := os.ReadFile(filepath.Join(to, "store.db-wal"))
	if err != nil {
		t.Fatal(err)
	}
	now, err := os.ReadFile(filepath.Join(live, "store.db-wal"))
	if err != nil {
		t.Fatal(err)
	}
	if len(synced) < 32 || len(now) < len(synced) || !bytes.Equal(now[:32], synced[:32]) {
		return // the log began anew since
	}
	cut := len(now)
	if tail == 1 {
		cut = len(synced) + rand.IntN(len(now)-len(synced)+1)
	}
	if err := os.WriteFile(filepath.Join(to, "store.db-wal"), append(synced, now[len(synced):cut]...), 0o600); err != nil {
		t.Fatal(err)
	}
}
