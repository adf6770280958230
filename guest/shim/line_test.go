package shim

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"sallyport.dev/relay"
)

// readAll returns the lines, and for a line that was too long its id in brackets.
func readLines(t *testing.T, r io.Reader, most int) []string {
	t.Helper()
	l := newLineReader(r, most)
	var all []string
	for {
		line, err := l.next()
		var long errTooLong
		switch {
		case errors.As(err, &long):
			all = append(all, "["+string(long.id)+"]")
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatal(err)
		default:
			all = append(all, string(line))
		}
	}
}

func TestLines(t *testing.T) {
	long := `{"id":7,"x":"` + strings.Repeat("y", 40) + `"}`
	tests := []struct {
		name, text string
		most       int
		want       []string
	}{
		{"nothing", "", 10, nil},
		{"lines", "a\nbc\n\nd\n", 10, []string{"a", "bc", "", "d"}},
		{"no last line feed", "a\nb", 10, []string{"a", "b"}},
		{"exactly the bound", "0123456789\nx\n", 10, []string{"0123456789", "x"}},
		{"one over", "01234567890\nx\n", 10, []string{"[]", "x"}},
		{"far over, with an id", long + "\nx\n", 10, []string{"[7]", "x"}},
		{"over, at the end", "x\n" + long, 10, []string{"x", "[7]"}},
		{"two in a row", long + "\n" + long + "\nx", 10, []string{"[7]", "[7]", "x"}},
	}
	for _, tt := range tests {
		for way, r := range map[string]io.Reader{
			"whole":         strings.NewReader(tt.text),
			"by byte":       iotest.OneByteReader(strings.NewReader(tt.text)),
			"by half":       iotest.HalfReader(strings.NewReader(tt.text)),
			"EOF with data": iotest.DataErrReader(strings.NewReader(tt.text)),
		} {
			if got := readLines(t, r, tt.most); !equal(got, tt.want) {
				t.Errorf("%s, %s: %q, want %q", tt.name, way, got, tt.want)
			}
		}
	}
}

func equal(a, b []string) bool {
	return strings.Join(a, "\x00") == strings.Join(b, "\x00") && len(a) == len(b)
}

// The lengths at which readers of other servers gave up.
func TestLongLines(t *testing.T) {
	for _, n := range []int{64<<10 + 1, 1<<20 + 1, relay.MaxLine, relay.MaxLine + 1, relay.MaxLine + 100<<10} {
		body := `{"jsonrpc":"2.0","method":"ping","pad":"`
		line := body + strings.Repeat("x", n-len(body)-len(`","id":"last"}`)) + `","id":"last"}`
		got := readLines(t, strings.NewReader(line+"\nnext\n"), relay.MaxLine)
		want := line
		if n > relay.MaxLine {
			want = `["last"]`
		}
		if len(got) != 2 || got[0] != want || got[1] != "next" {
			t.Errorf("%d bytes: %d lines, first %.40q, second %q", n, len(got), got[0], got[len(got)-1])
		}
	}
}

func TestLongLinesGiveTheirMemoryBack(t *testing.T) {
	l := newLineReader(strings.NewReader(strings.Repeat("x", 4<<20)+"\nshort\nshort\n"), relay.MaxLine)
	for range 3 {
		if _, err := l.next(); err != nil {
			t.Fatal(err)
		}
	}
	if cap(l.buf) > keptBuffer {
		t.Fatalf("%d bytes are kept for short lines", cap(l.buf))
	}
}

func TestReadErrorsEndTheStream(t *testing.T) {
	broken := errors.New("broken")
	l := newLineReader(io.MultiReader(strings.NewReader("a\nb"), iotest.ErrReader(broken)), 10)
	if line, err := l.next(); string(line) != "a" || err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	if line, err := l.next(); !errors.Is(err, broken) {
		t.Fatalf("a line that was cut by an error came through: %q, %v", line, err)
	}
}

func TestFindID(t *testing.T) {
	tests := []struct{ text, want string }{
		{`{"id":1}`, `1`},
		{`{"method":"x","params":{"id":2,"a":["id",{"id":3}]},"id":"a,}\"b"}`, `"a,}\"b"`},
		{` { "jsonrpc" : "2.0" , "id" : -1.5e3 , "x":1`, `-1.5e3`},
		{`{"a":"\\","id":4}`, `4`},
		{`{"a":"\"id\":5","id":6}`, `6`},
		{`{"id":7,"id":8}`, ``},
		{`{"id":null}`, ``},
		{`{"id":{"x":1}}`, ``},
		{`{"id":[1]}`, ``},
		{`{"id":1 2}`, ``},
		{`{"id":}`, ``},
		{`{"id":"cut`, ``},
		{`{"ID":1}`, ``},
		{`{"idx":1,"xid":2}`, ``},
		{`[{"id":1}]`, ``},
		{`"id":1`, ``},
		{`{"id" "x":1}`, ``},
		{`{"id":01}`, ``},
		{`{"id":"` + strings.Repeat("x", maxID) + `"}`, ``},
		{``, ``},
		{`}}}}{"id":1}`, ``},
	}
	for _, tt := range tests {
		if got := findID([]byte(tt.text)); string(got) != tt.want {
			t.Errorf("%.60s: %q, want %q", tt.text, got, tt.want)
		}
		var f idFinder // in pieces it is the same
		for _, b := range []byte(tt.text) {
			f.feed([]byte{b})
		}
		if got := f.found(); !bytes.Equal(got, findID([]byte(tt.text))) {
			t.Errorf("%.60s: %q in pieces", tt.text, got)
		}
	}
}
