package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
)

// What a long answer takes is asked for before it is taken, in whatever pieces it comes, and what is thrown away while it grows is less than itself.
func TestLongAnswersTakeWhatTheyAskedFor(t *testing.T) {
	const size = 24 << 20
	line := strings.Repeat("x", 64<<10)
	for name, stream := range map[string]string{
		"one line":   "data: " + strings.Repeat("x", size) + "\n\n",
		"many lines": strings.Repeat("data: "+line+"\n", size/len(line)) + "\n",
	} {
		asked := 0
		e := eventReader{in: bufio.NewReaderSize(strings.NewReader(stream), bufferSize), most: size + 4096, total: 2 * size, grow: func() error {
			asked++
			return nil
		}}
		took := allocated(func() {
			if data, err := e.next(); err != nil || len(data) < size {
				t.Fatalf("%s: %d bytes, %v", name, len(data), err)
			}
		})
		if asked == 0 || took > 5*size/2 {
			t.Errorf("%s: asked %d times, %d bytes allocated for %d", name, asked, took, size)
		}
		refused := errors.New("no")
		e = eventReader{in: bufio.NewReaderSize(strings.NewReader(stream), bufferSize), most: size + 4096, total: 2 * size, grow: func() error { return refused }}
		took = allocated(func() {
			if _, err := e.next(); !errors.Is(err, refused) {
				t.Fatalf("%s: %v", name, err)
			}
		})
		if took > 3*firstRead {
			t.Errorf("%s: %d bytes allocated without leave", name, took)
		}
	}
	var body []byte
	took := allocated(func() {
		var err error
		if body, err = readUpTo(bytes.NewReader(make([]byte, size)), nil, size+1); err != nil {
			t.Fatal(err)
		}
	})
	if len(body) != size || took > 5*size/2+size { // and the zeros themselves
		t.Errorf("%d bytes of a body, %d allocated", len(body), took)
	}
}

func TestReadUpTo(t *testing.T) {
	for _, r := range []io.Reader{strings.NewReader("0123456789"), iotest.OneByteReader(strings.NewReader("0123456789")), iotest.DataErrReader(strings.NewReader("0123456789"))} {
		b, err := readUpTo(r, make([]byte, 0, 3), 4)
		if string(b) != "0123" || err != nil {
			t.Fatalf("%q, %v", b, err)
		}
		b, err = readUpTo(r, b, 100)
		if string(b) != "0123456789" || err != nil {
			t.Fatalf("%q, %v", b, err)
		}
	}
	if b, err := readUpTo(io.MultiReader(strings.NewReader("01"), iotest.ErrReader(io.ErrUnexpectedEOF)), nil, 9); string(b) != "01" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("%q, %v", b, err)
	}
}

// allocated is how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
