package runner

import (
	"crypto/sha256"
	"hash"
	"slices"
	"sync"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/relay"
	"sallyport.dev/relay/hostside"
)

// Bounds of bodies that come in chunks.
const (
	chunkBytes    = 256 << 10
	maxFiles      = 16
	maxAssemblies = 1024
)

// assemblies puts bodies together that come in chunks. Each announcement of a body has an assembly of its own, and gets chunks of its own: two
// results may name the same file. What is not whole when the stream ends is dropped: control sends it again with the result.
type assemblies struct {
	mu    sync.Mutex
	all   map[string][]*assembly // by digest, in the order of the announcements
	count int
}

// assembly is one body on its way.
type assembly struct {
	size   int64
	got    int64
	sum    hash.Hash
	record []byte         // a result record is put together in memory
	file   *hostside.File // a file where it will lie; nil for a record, for what nobody waits for, and where it failed
	failed bool
	to     *delivery // nil where nobody waits for it: its chunks are let by
}

// delivery is one result that waits for bodies.
type delivery struct {
	session *session
	id      string
	record  []byte
	missing int
	failed  bool
}

func newAssemblies() assemblies { return assemblies{all: make(map[string][]*assembly)} }

// expect begins to wait for what a result announced. Errors: [errs.Invalid] for what control may not announce.
func (a *assemblies) expect(s *session, f *sallyportv1.CallResult) error {
	return a.announce(f, &delivery{session: s, id: f.GetRecordId(), record: f.GetRecord()})
}

// skip lets the chunks by of a result that nobody waits for. Errors: as expect.
func (a *assemblies) skip(f *sallyportv1.CallResult) error { return a.announce(f, nil) }

func (a *assemblies) announce(f *sallyportv1.CallResult, d *delivery) error {
	if err := checkAnnounced(f); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if digest := f.GetChunkedDigest(); len(digest) > 0 {
		x := &assembly{size: f.GetChunkedSize(), to: d}
		if d != nil {
			d.missing++
			x.record = make([]byte, 0, x.size)
		}
		if err := a.add(digest, x); err != nil {
			return err
		}
	}
	for _, file := range f.GetFiles() {
		x := &assembly{size: file.GetSize(), to: d}
		if d != nil {
			d.missing++
			err := d.session.box.MakeRoom(x.size)
			if err == nil {
				x.file, err = d.session.box.CreateFile(hexName(file.GetDigest()))
			}
			if err != nil {
				d.session.log("a result file cannot be written", err)
				x.failed = true
			}
		}
		if err := a.add(file.GetDigest(), x); err != nil {
			return err
		}
	}
	return nil
}

func checkAnnounced(f *sallyportv1.CallResult) error {
	if digest := f.GetChunkedDigest(); len(digest) > 0 && (len(digest) != sha256.Size || len(f.GetRecord()) > 0 || f.GetChunkedSize() < 1 || f.GetChunkedSize() > relay.MaxResult) {
		return errs.New(errs.Invalid, "control announced a record that cannot be")
	}
	if len(f.GetFiles()) > maxFiles {
		return errs.New(errs.Invalid, "control announced too many files")
	}
	for _, file := range f.GetFiles() {
		if len(file.GetDigest()) != sha256.Size || file.GetSize() < 1 || file.GetSize() > relay.MaxFile {
			return errs.New(errs.Invalid, "control announced a file that cannot be")
		}
	}
	return nil
}

func (a *assemblies) add(digest []byte, x *assembly) error {
	if a.count >= maxAssemblies {
		x.discard()
		return errs.New(errs.Oversize, "control announced too many bodies at once")
	}
	x.sum = sha256.New()
	a.count++
	a.all[string(digest)] = append(a.all[string(digest)], x)
	return nil
}

// chunk adds a piece to the first body that it continues. Errors: [errs.Invalid] where there is none, or where a whole body is not what was
// announced.
func (a *assemblies) chunk(c *sallyportv1.Chunk) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	key, data := string(c.GetDigest()), c.GetData()
	at := slices.IndexFunc(a.all[key], func(x *assembly) bool { return x.got == c.GetOffset() })
	if at < 0 || len(data) == 0 || len(data) > chunkBytes || a.all[key][at].got+int64(len(data)) > a.all[key][at].size {
		return errs.New(errs.Invalid, "control sent a chunk that continues nothing that it announced")
	}
	x := a.all[key][at]
	x.add(data)
	if x.got < x.size {
		return nil
	}
	a.count--
	if a.all[key] = slices.Delete(a.all[key], at, at+1); len(a.all[key]) == 0 {
		delete(a.all, key)
	}
	if string(x.sum.Sum(nil)) != key {
		x.discard()
		return errs.New(errs.Invalid, "control sent a body that is not what it announced")
	}
	x.done()
	return nil
}

func (x *assembly) add(data []byte) {
	x.got += int64(len(data))
	x.sum.Write(data)
	if x.record != nil {
		x.record = append(x.record, data...)
	}
	if x.file == nil {
		return
	}
	if err := x.file.Append(data); err != nil {
		x.to.session.log("a result file cannot be written", err)
		x.discard()
		x.failed = true
	}
}

// done hands a whole body over, and its result where it was the last one.
func (x *assembly) done() {
	d := x.to
	if d == nil {
		return
	}
	if x.record != nil {
		d.record = x.record
	}
	if x.file != nil {
		if err := x.file.Publish(); err != nil {
			d.session.log("a result file cannot be published", err)
			x.failed = true
		}
	}
	d.failed = d.failed || x.failed
	if d.missing--; d.missing > 0 {
		return
	}
	if d.failed {
		d.session.fail(d.id)
		return
	}
	d.session.deliver(d.id, d.record)
}

func (x *assembly) discard() {
	if x.file != nil {
		x.file.Discard()
		x.file = nil
	}
}

// drop forgets everything that is not whole.
func (a *assemblies) drop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, list := range a.all {
		for _, x := range list {
			x.discard()
		}
	}
	clear(a.all)
	a.count = 0
}

// fail answers a call whose result names a file for which there was no room.
func (s *session) fail(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.calls[id]; c != nil && !s.closed {
		s.conclude(c, tooLargeText(c))
	}
}
