package sqlstore

import (
	"crypto/ed25519"
	"log/slog"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/journalkey"
)

// Options say where a store is and what it needs. Dir, Key and Audit are required.
type Options struct {
	Dir   string             // holds store.db, store.lock, reserve and highwater; made 0700
	Key   *journalkey.Ring   // seals bodies
	Audit ed25519.PrivateKey // signs checkpoints
	Node  string             // of control, for the record
	Run   string             // of control; a fresh one when empty

	Now           func() time.Time // the store's clock; time.Now when nil
	Reserve       int64            // bytes kept for settling on a full disk; 32 MiB when 0
	Checkpoint    time.Duration    // between two signed checkpoints, when there is something new; 1 min when 0
	RetainBodies  time.Duration    // 30 days when 0
	RetainRecords time.Duration    // 400 days when 0
	Log           *slog.Logger     // slog.Default when nil

	faults // of tests
}

// faults replace what the store needs of the machine.
type faults struct {
	vfs   string
	fsync func(next func() error) func() error
	free  func() (int64, error)
	busy  time.Duration // how long another program's lock is waited for
	pages int           // of the log that start a checkpoint
}

func (o *Options) defaults() {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Run == "" {
		o.Run = control.NewID()
	}
	if o.Reserve == 0 {
		o.Reserve = 32 << 20
	}
	if o.Checkpoint == 0 {
		o.Checkpoint = time.Minute
	}
	if o.RetainBodies == 0 {
		o.RetainBodies = 30 * 24 * time.Hour
	}
	if o.RetainRecords == 0 {
		o.RetainRecords = 400 * 24 * time.Hour
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.vfs == "" {
		registerVFS()
		o.vfs = vfsName
	}
	if o.free == nil {
		o.free = freeBytes(o.Dir)
	}
	if o.pages == 0 {
		o.pages = walPages
	}
	if o.busy == 0 {
		o.busy = 5 * time.Second
	}
	if o.fsync == nil {
		o.fsync = func(next func() error) func() error { return next }
	}
}
