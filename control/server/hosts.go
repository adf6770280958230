package server

import (
	"crypto"
	"crypto/sha256"
	"iter"
	"slices"
	"sync"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/errs"
)

// hosts is the set of hosts whose Link is up. It implements [call.Hosts]. No method blocks on a host.
type hosts struct {
	mu    sync.RWMutex
	links map[string]*hostLink // by SPIFFE id
}

// hostLink is one host's Link.
type hostLink struct {
	id   string // SPIFFE id
	name string
	// public is the key of the identity that opened the Link: it checks countersignatures.
	public crypto.PublicKey
	out    *outbox[*sallyportv1.ControlFrame]
	stop   func()
}

func newHosts() *hosts { return &hosts{links: map[string]*hostLink{}} }

// up registers a Link; a former one of the same host ends.
func (h *hosts) up(l *hostLink) {
	h.mu.Lock()
	former := h.links[l.id]
	h.links[l.id] = l
	h.mu.Unlock()
	if former != nil {
		former.stop()
	}
}

func (h *hosts) down(l *hostLink) {
	l.out.close()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.links[l.id] == l {
		delete(h.links, l.id)
	}
}

func (h *hosts) link(id string) *hostLink {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.links[id]
}

func (h *hosts) live(id string) bool { return h.link(id) != nil }

func (h *hosts) push(id string, size int, frames ...*sallyportv1.ControlFrame) bool {
	l := h.link(id)
	return l != nil && l.out.push(size, frames...)
}

// Journaled implements [call.Hosts].
func (h *hosts) Journaled(to call.Address, digest control.Digest) {
	// A lost frame does no harm: the host attaches after it reconnected, and learns the same.
	if l := h.link(to.Host); l != nil {
		l.out.ride(128, &sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Journaled{Journaled: &sallyportv1.Journaled{
			Session: to.Session, Epoch: to.Epoch, RecordId: to.Record, RecordDigest: digest[:],
		}}})
	}
}

// Progress implements [call.Hosts].
func (h *hosts) Progress(to call.Address, p call.Progress) {
	h.push(to.Host, 128+len(p.Message), &sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Progress{Progress: &sallyportv1.CallProgress{
		Session: to.Session, Epoch: to.Epoch, RecordId: to.Record, Progress: p.Progress, Total: p.Total, Message: p.Message,
	}}})
}

// Result implements [call.Hosts]. What is long comes behind the frame that announces it, chunk by chunk as the Link takes them, so that it delays
// nothing else.
func (h *hosts) Result(to call.Address, record []byte, files []*call.File) error {
	l := h.link(to.Host)
	if l == nil {
		return errs.New(errs.Unreachable, "the host's link is down")
	}
	result := &sallyportv1.CallResult{Session: to.Session, Epoch: to.Epoch, RecordId: to.Record}
	var bodies []iter.Seq[*sallyportv1.ControlFrame]
	size := int64(len(record) + 128)
	if len(record) <= chunkBytes {
		result.Record = record
	} else {
		digest := sha256.Sum256(record)
		result.ChunkedDigest, result.ChunkedSize = digest[:], int64(len(record))
		bodies = append(bodies, chunkFrames(digest[:], slices.Chunk(record, chunkBytes)))
	}
	for _, f := range files {
		digest := f.Digest[:]
		result.Files = append(result.Files, &sallyportv1.ResultFile{Digest: digest, Size: f.Size})
		size += f.Size
		bodies = append(bodies, chunkFrames(digest, f.Pieces()))
	}
	announced := &sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Result{Result: result}}
	if len(bodies) == 0 {
		if !l.out.push(int(size), announced) {
			return errs.New(errs.Unreachable, "the host's link is down")
		}
		return nil
	}
	return l.out.pushLong(size, func(yield func(*sallyportv1.ControlFrame) bool) {
		if !yield(announced) {
			return
		}
		for _, body := range bodies {
			for f := range body {
				if !yield(f) {
					return
				}
			}
		}
	})
}

// chunkFrames are the frames of one body.
func chunkFrames(digest []byte, pieces iter.Seq[[]byte]) iter.Seq[*sallyportv1.ControlFrame] {
	return func(yield func(*sallyportv1.ControlFrame) bool) {
		at := int64(0)
		for piece := range pieces {
			f := &sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Chunk{Chunk: &sallyportv1.Chunk{Digest: digest, Offset: at, Data: piece}}}
			if !yield(f) {
				return
			}
			at += int64(len(piece))
		}
	}
}

// change tells a host that a session of its own changed.
func (h *hosts) change(host string, c *sallyportv1.SessionChange) {
	h.push(host, 256, &sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Session{Session: c}})
}

// broadcast queues a frame at every host.
func (h *hosts) broadcast(f *sallyportv1.ControlFrame) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, l := range h.links {
		l.out.push(1024, f)
	}
}

// disconnect ends the Link of a host whose identity was withdrawn.
func (h *hosts) disconnect(id string) {
	if l := h.link(id); l != nil {
		l.stop()
	}
}

var _ call.Hosts = (*hosts)(nil)
