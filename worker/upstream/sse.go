package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// eventReader reads an event stream (HTML standard, section 9.2) within bounds. Only events of the type message are handed out, because nothing
// else carries a JSON-RPC message; an event counts when its blank line came, so a cut stream never yields a cut message.
type eventReader struct {
	in    *bufio.Reader
	most  int64 // bytes of an event: of its data so far, and of the line that is read
	total int64 // bytes of the whole stream that may still come
	// grow is asked before an event takes more memory than firstRead; nil: it may.
	grow  func() error
	line  []byte
	begun bool
	cr    bool // the last line ended with CR: an LF that follows belongs to it
}

// next returns the data of the next event that has any. The slice is the caller's. Errors: errOversize, io.EOF (the stream ended between two
// events), io.ErrUnexpectedEOF (inside one), or the reader's.
func (e *eventReader) next() ([]byte, error) {
	var data []byte
	has, kind := false, ""
	for {
		line, err := e.readLine(len(data))
		if err != nil {
			if errors.Is(err, io.EOF) && (has || len(line) > 0) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if len(line) == 0 {
			if len(data) > 0 && (kind == "" || kind == "message") {
				return data, nil
			}
			data, has, kind = nil, false, ""
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "data":
			switch {
			case !has:
				data, has = value, true
				e.line = nil // the event keeps the line's memory
			case int64(len(data)+len(value)) >= e.most:
				return nil, errOversize
			default:
				data = append(append(extend(data, len(value)+1, e.most), '\n'), value...)
			}
		case "event":
			kind = string(value)
		}
	}
}

// readLine returns a line without its end, of an event that has so many bytes of data already. At an error it returns what came of the line.
func (e *eventReader) readLine(data int) ([]byte, error) {
	e.line = e.line[:0]
	for {
		if _, err := e.in.Peek(1); err != nil {
			return e.line, err
		}
		chunk, _ := e.in.Peek(e.in.Buffered())
		if e.cr && chunk[0] == '\n' {
			e.cr = false
			e.take(1)
			continue
		}
		e.cr = false
		i := lineEnd(chunk)
		n := i
		if i < 0 {
			n = len(chunk)
		}
		if int64(data+len(e.line)+n) > e.most || int64(n) >= e.total {
			return nil, errOversize
		}
		if size := data + len(e.line) + n; size > firstRead && e.grow != nil {
			if err := e.grow(); err != nil {
				return nil, err
			}
		}
		e.line = append(extend(e.line, n, e.most), chunk[:n]...)
		if i < 0 {
			e.take(n)
			continue
		}
		e.cr = chunk[i] == '\r'
		e.take(n + 1)
		if !e.begun {
			e.begun = true
			e.line = bytes.TrimPrefix(e.line, []byte("\uFEFF"))
		}
		return e.line, nil
	}
}

// lineEnd is the offset of the first CR or LF, or -1. Two searches for one byte each are faster than one for either.
func lineEnd(b []byte) int {
	i := bytes.IndexByte(b, '\n')
	if i >= 0 {
		b = b[:i]
	}
	if cr := bytes.IndexByte(b, '\r'); cr >= 0 {
		return cr
	}
	return i
}

func (e *eventReader) take(n int) {
	_, _ = e.in.Discard(n) // they are buffered
	e.total -= int64(n)
}
