package hostside

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

// Claimed is a record that the guest can no longer take back or change.
type Claimed struct {
	Kind   relay.Kind
	ID     string // of the name; that in the record is the reader's to compare
	Record []byte // nil where it was journaled before a restart: its bytes are control's by then
	Digest relay.Digest
	Waited time.Duration // since the host first saw it; 0 unless recovered
	seen   time.Duration // since boot
	name   string        // in claimed/
}

// Journaled reports whether the record was journaled before a restart.
func (c *Claimed) Journaled() bool { return c.Record == nil }

func bound(kind relay.Kind) int64 {
	switch kind {
	case relay.KindCall:
		return relay.MaxCall
	case relay.KindGate:
		return relay.MaxGate
	default:
		return relay.MaxNote
	}
}

// Claim takes the record of that name out of the guest's reach and reads it, once. Anything but a small regular file of the guest's own is
// counted and left. An ack is not read: its name says everything. Errors are the host's own ([errs.Unavailable]); the record is then in
// new/ again and will be found by a later listing.
func (b *Box) Claim(kind relay.Kind, name, id string) (Claimed, Refusal, error) {
	if err := b.use(); err != nil {
		return Claimed{}, 0, err
	}
	defer b.unuse()
	if kind == relay.KindAck {
		return b.claimAck(name, id)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(b.new, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return b.left(name, Gone)
		}
		return Claimed{}, 0, unavailable(err)
	}
	if why := b.judge(&st, kind); why != Taken {
		return b.left(name, why)
	}
	c := Claimed{Kind: kind, ID: id, seen: sinceBoot()}
	c.name = b.claimedName(kind, id, c.seen)
	if err := unix.Renameat(b.new, name, b.root, claimedDir+"/"+c.name); err != nil { // a name of its own: it replaces nothing
		if errors.Is(err, unix.ENOENT) {
			return b.left(name, Gone)
		}
		return Claimed{}, 0, unavailable(err)
	}
	why, err := b.read(&c)
	if err != nil {
		_ = unix.Renameat2(b.root, claimedDir+"/"+c.name, b.new, name, unix.RENAME_NOREPLACE)
		return Claimed{}, 0, err
	}
	if why != Taken {
		// Another file took the name between the look and the move. It is ours now, and goes.
		b.counts[why].Add(1)
		if err := b.throwAway(c.name); err != nil {
			return Claimed{}, 0, err
		}
		return Claimed{}, why, nil
	}
	return c, Taken, nil
}

func (b *Box) claimAck(name, id string) (Claimed, Refusal, error) {
	switch err := unix.Unlinkat(b.new, name, 0); {
	case err == nil:
		return Claimed{Kind: relay.KindAck, ID: id}, Taken, nil
	case errors.Is(err, unix.ENOENT):
		return b.left(name, Gone)
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.EPERM):
		return b.left(name, RefusedType)
	default:
		return Claimed{}, 0, unavailable(err)
	}
}

func (b *Box) left(name string, why Refusal) (Claimed, Refusal, error) {
	b.refuse(name, why)
	return Claimed{}, why, nil
}

// judge decides on what fstat says. A file has two links between the publisher's link and its unlink; more are a guest's game.
func (b *Box) judge(st *unix.Stat_t, kind relay.Kind) Refusal {
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return RefusedType
	case !slices.Contains(b.owners, st.Uid):
		return RefusedOwner
	case st.Size > bound(kind):
		return RefusedSize
	case st.Nlink > 2:
		return RefusedLinks
	default:
		return Taken
	}
}

// read opens the claimed file without following a link or waiting for a writer, judges it again, and reads it once.
func (b *Box) read(c *Claimed) (Refusal, error) {
	fd, err := unix.Openat(b.root, claimedDir+"/"+c.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO), errors.Is(err, unix.EACCES), errors.Is(err, unix.EAGAIN):
		return RefusedType, nil // a link, a socket, a file whose permissions its owner took away, or on which it holds a lease
	case err != nil:
		return 0, unavailable(err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, unavailable(err)
	}
	if why := b.judge(&st, c.Kind); why != Taken {
		return why, nil
	}
	record := make([]byte, st.Size)
	total := 0
	for total < len(record) {
		n, err := ignoringEINTR(func() (int, error) { return unix.Read(fd, record[total:]) })
		if err != nil {
			return 0, unavailable(err)
		}
		if n == 0 { // its writer cut it short meanwhile: what was read is the record
			break
		}
		total += n
	}
	c.Record = record[:total:total]
	c.Digest = relay.Sum(c.Record)
	return Taken, nil
}

// throwAway removes a name from claimed/, whatever it is.
func (b *Box) throwAway(name string) error {
	path := claimedDir + "/" + name
	err := unix.Unlinkat(b.root, path, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		if err = unix.Unlinkat(b.root, path, unix.AT_REMOVEDIR); errors.Is(err, unix.ENOTEMPTY) {
			return nil // Folder.Remove deals with it; Recover leaves it alone
		}
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return unavailable(err)
	}
	return nil
}

// claimed/ names: ID.SEEN.SEQ for a record that is not journaled, ID.SEEN.TIMEOUT.DIGEST for one that is; SEEN is nanoseconds since boot,
// TIMEOUT milliseconds, DIGEST the record's. Notes and gates are not kept over a restart: note.SEQ.

func (b *Box) claimedName(kind relay.Kind, id string, seen time.Duration) string {
	seq := strconv.FormatUint(b.seq.Add(1), 10)
	if kind != relay.KindCall {
		return "note." + seq
	}
	return id + "." + strconv.FormatInt(int64(seen), 10) + "." + seq
}

// Journal marks a claimed call as journaled: its bytes are no longer the host's to keep, its id and clock are, until [Box.Settle]. Errors:
// [errs.Unavailable].
func (b *Box) Journal(c *Claimed, timeout time.Duration) error {
	if err := b.use(); err != nil {
		return err
	}
	defer b.unuse()
	name := c.ID + "." + strconv.FormatInt(int64(c.seen), 10) + "." + strconv.FormatInt(timeout.Milliseconds(), 10) + "." + c.Digest.String()
	if len(c.Record) <= keptBytes {
		if err := unix.Renameat(b.root, claimedDir+"/"+c.name, b.root, claimedDir+"/"+name); err != nil {
			return unavailable(err)
		}
		c.name = name
		return nil
	}
	// A file of the host's own, and empty, takes its place: the guest may hold the old one open, and a lease on it.
	fd, err := unix.Openat(b.root, claimedDir+"/"+name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return unavailable(err)
	}
	_ = unix.Close(fd)
	old := c.name
	c.name = name
	return b.throwAway(old)
}

// keptBytes is what a journaled record may go on holding: a page.
const keptBytes = 4096

// Settle forgets a claimed record for good: its result is published, or it was no call. Errors: [errs.Unavailable].
func (b *Box) Settle(c *Claimed) error {
	if c.name == "" {
		return nil
	}
	if err := b.use(); err != nil {
		return err
	}
	defer b.unuse()
	name := c.name
	c.name = ""
	return b.throwAway(name)
}

// Recovered is what a restarted host finds.
type Recovered struct {
	Calls     []Claimed                // claimed, without a result; in the order in which they were first seen
	Timeouts  map[string]time.Duration // of those that were journaled
	Published []Published              // results that nobody acknowledged
}

// Published is a result in results/.
type Published struct {
	ID    string
	Local bool // the host wrote it itself ([relay.StateHost])
}

// Recover reads what an earlier process of the host left: claimed calls and published results. A call whose result was published is settled
// on the way. It is called once, before the first List. Errors: [errs.Unavailable].
func (b *Box) Recover() (Recovered, error) {
	if err := b.use(); err != nil {
		return Recovered{}, err
	}
	defer b.unuse()
	r := Recovered{Timeouts: make(map[string]time.Duration)}
	published := make(map[string]bool)
	err := b.each(resultsDir, func(name string) error {
		if id, err := relay.ParseResultName(name); err == nil {
			published[id] = true
			r.Published = append(r.Published, Published{ID: id, Local: b.local(name)})
		}
		return nil
	})
	if err != nil {
		return r, err
	}
	now := sinceBoot()
	err = b.each(claimedDir, func(name string) error {
		c, timeout, ok := parseClaimedName(name)
		if !ok || published[c.ID] {
			return b.throwAway(name)
		}
		c.Waited = max(0, now-c.seen)
		if timeout > 0 {
			r.Timeouts[c.ID] = timeout
			r.Calls = append(r.Calls, c)
			return nil
		}
		why, err := b.read(&c)
		if err != nil {
			return err
		}
		if why != Taken {
			return b.throwAway(name)
		}
		r.Calls = append(r.Calls, c)
		return nil
	})
	if err != nil {
		return r, err
	}
	// A process that died while it gave up a record left both.
	r.Calls = slices.DeleteFunc(r.Calls, func(c Claimed) bool {
		twice := !c.Journaled() && r.Timeouts[c.ID] > 0
		if twice {
			err = errors.Join(err, b.throwAway(c.name))
		}
		return twice
	})
	slices.SortFunc(r.Calls, func(x, y Claimed) int { return cmp.Compare(x.seen, y.seen) })
	return r, err
}

// local reads as much of a result as says who wrote it. Results are the host's own files, written by [relay.AppendResult] in control or here.
func (b *Box) local(name string) bool {
	fd, err := unix.Openat(b.root, resultsDir+"/"+name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	head := make([]byte, 256)
	n, err := ignoringEINTR(func() (int, error) { return unix.Read(fd, head) })
	return err == nil && bytes.Contains(head[:n], []byte(`,"state":"`+relay.StateHost+`",`))
}

func parseClaimedName(name string) (c Claimed, timeout time.Duration, ok bool) {
	parts := strings.Split(name, ".")
	if len(parts) < 3 || !relay.ValidID(parts[0]) {
		return c, 0, false
	}
	seen, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return c, 0, false
	}
	number, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil {
		return c, 0, false
	}
	c = Claimed{Kind: relay.KindCall, ID: parts[0], seen: time.Duration(seen), name: name}
	if len(parts) == 3 {
		return c, 0, true
	}
	if c.Digest, err = relay.ParseDigest(parts[3]); err != nil || len(parts) > 4 || number < 1 {
		return c, 0, false
	}
	return c, time.Duration(number) * time.Millisecond, true
}

// each lists a directory of the host's own, relative to the session's folder.
func (b *Box) each(dir string, do func(name string) error) error {
	fd, err := unix.Openat(b.root, dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return unavailable(err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	var names []string
	buffer := make([]byte, 32<<10)
	for {
		n, err := ignoringEINTR(func() (int, error) { return unix.Getdents(fd, buffer) })
		if err != nil {
			return unavailable(err)
		}
		if n == 0 {
			break
		}
		for rest := buffer[:n]; len(rest) > 0; {
			var name []byte
			if name, rest = nextName(rest); name != nil {
				names = append(names, string(name))
			}
		}
	}
	for _, name := range names {
		if err := do(name); err != nil {
			return err
		}
	}
	return nil
}

// booted is when this process asked the boot clock, which survives a restart of the host's daemon, and what it said. Reading it costs a
// system call; the runtime's monotonic clock does not. They differ by the time that the machine was suspended since, which no call waited.
var booted = sync.OnceValues(func() (time.Time, time.Duration) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Now(), 0
	}
	return time.Now(), time.Duration(ts.Nano())
})

func sinceBoot() time.Duration {
	at, then := booted()
	return then + time.Since(at)
}

func unavailable(err error) error {
	return errs.Wrap(errs.Unavailable, "the session's relay directory does not work", err)
}
