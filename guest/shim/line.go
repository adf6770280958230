package shim

import (
	"bytes"
	"errors"
	"io"
)

const (
	firstBuffer = 16 << 10
	// keptBuffer is what a reader keeps between lines: one long line must not cost memory for the rest of the session.
	keptBuffer = 256 << 10
)

// lineReader cuts a stream into lines of bounded length. A longer line is skipped to its end without being kept; what follows is read as if
// it had not been there.
type lineReader struct {
	r     io.Reader
	most  int // bytes of a line without its line feed
	buf   []byte
	start int // of what was not handed out
	err   error
}

func newLineReader(r io.Reader, most int) *lineReader {
	return &lineReader{r: r, most: most, buf: make([]byte, 0, firstBuffer)}
}

// errTooLong reports a line over the bound. The id of its message is known where it could be found without keeping the line.
type errTooLong struct{ id []byte }

func (errTooLong) Error() string { return "a line is over the bound" }

// next returns the next line without its line feed; it is valid until the next call. Errors: [errTooLong], after which reading goes on; the
// stream's own error, io.EOF at its end. A last line without a line feed counts: a message that was cut off is no whole JSON.
func (l *lineReader) next() ([]byte, error) {
	l.shrink()
	searched := 0
	for {
		rest := l.buf[l.start:]
		if n := bytes.IndexByte(rest[searched:], '\n'); n >= 0 {
			n += searched
			l.start += n + 1
			if n > l.most { // the whole line fitted into the buffer by chance
				return nil, errTooLong{id: findID(rest[:n])}
			}
			return rest[:n], nil
		}
		searched = len(rest)
		if searched > l.most {
			return nil, l.skip()
		}
		if l.err != nil {
			if searched > 0 && errors.Is(l.err, io.EOF) {
				l.start = len(l.buf)
				return rest, nil
			}
			return nil, l.err
		}
		l.fill()
	}
}

// fill reads once into free room, making some first.
func (l *lineReader) fill() {
	if l.start > 0 {
		l.buf = l.buf[:copy(l.buf, l.buf[l.start:])]
		l.start = 0
	}
	if len(l.buf) == cap(l.buf) {
		grown := make([]byte, len(l.buf), min(2*cap(l.buf), max(l.most+firstBuffer, 2*firstBuffer)))
		copy(grown, l.buf)
		l.buf = grown
	}
	n, err := l.r.Read(l.buf[len(l.buf):cap(l.buf)])
	l.buf = l.buf[:len(l.buf)+n]
	l.err = err
}

// skip reads to the end of the line that begins at start, looking only for its id.
func (l *lineReader) skip() error {
	var id idFinder
	for {
		rest := l.buf[l.start:]
		n := bytes.IndexByte(rest, '\n')
		if n >= 0 {
			id.feed(rest[:n])
			l.start += n + 1
			return errTooLong{id: id.found()}
		}
		id.feed(rest)
		l.buf, l.start = l.buf[:0], 0
		if l.err != nil {
			return errTooLong{id: id.found()} // the next call reports the end
		}
		l.fill()
	}
}

// shrink gives a large buffer back once nothing large is in it.
func (l *lineReader) shrink() {
	if rest := l.buf[l.start:]; cap(l.buf) > keptBuffer && len(rest) <= firstBuffer/2 {
		l.buf = append(make([]byte, 0, firstBuffer), rest...)
		l.start = 0
	}
}
