package shim

import (
	"io"
	"sync"
)

// answers takes the answer of each request, in any order and from any goroutine.
type answers interface {
	// answer takes a response without its line feed. After, where not nil, is called once the whole line was written.
	answer(response []byte, after func())
	// skip says that a message gets no answer.
	skip()
}

// lineWriter writes whole lines, one at a time.
type lineWriter struct {
	w      io.Writer
	broken func() // called when the harness's end is gone

	mu   sync.Mutex
	gone bool
}

func (w *lineWriter) answer(response []byte, after func()) {
	if w.line(response) && after != nil {
		after()
	}
}

func (w *lineWriter) skip() {}

// line writes text and a line feed, and reports whether all of it was written.
func (w *lineWriter) line(text []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.locked(text)
}

// try is line for a farewell: it is left out where another line is being written, because whoever has stopped reading has left.
func (w *lineWriter) try(text []byte) {
	if w.mu.TryLock() {
		defer w.mu.Unlock()
		w.locked(text)
	}
}

func (w *lineWriter) locked(text []byte) bool {
	if w.gone {
		return false
	}
	if _, err := w.w.Write(append(text, '\n')); err != nil {
		w.gone = true // a line that was cut must not be followed by another
		w.broken()
		return false
	}
	return true
}

// batch gathers the answers to a batch (JSON-RPC 2.0, section 6) into one line.
type batch struct {
	to *lineWriter

	mu    sync.Mutex
	left  int
	line  []byte
	after []func()
}

func newBatch(to *lineWriter, messages int) *batch { return &batch{to: to, left: messages} }

func (b *batch) answer(response []byte, after func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	sep := byte(',')
	if b.line == nil {
		sep = '['
	}
	b.line = append(append(b.line, sep), response...)
	if after != nil {
		b.after = append(b.after, after)
	}
	b.done()
}

func (b *batch) skip() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done()
}

// done counts a message; the last one sends the line. A batch without an answer sends none.
func (b *batch) done() {
	if b.left--; b.left > 0 || b.line == nil {
		return
	}
	b.to.answer(append(b.line, ']'), func() {
		for _, f := range b.after {
			f()
		}
	})
}
