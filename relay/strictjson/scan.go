package strictjson

import (
	"encoding/binary"
	"sync"
	"unicode/utf8"

	"sallyport.dev/errs"
)

// MaxDepth is how many arrays and objects may be open at once.
const MaxDepth = 100

// Member is one member of an object. Name is unescaped; Value is the raw text of the value, without surrounding white space.
type Member struct {
	Name  []byte
	Value []byte
}

// Check reports whether data is exactly one strict JSON value, with white space around it allowed. Errors: [errs.Invalid], with the byte
// offset; the message quotes nothing of data.
func Check(data []byte) error { return CheckWithin(data, 0) }

// CheckWithin checks data as a value that will stand inside that many arrays and objects: they count towards [MaxDepth]. Errors: as [Check].
func CheckWithin(data []byte, depth int) error {
	s := pool.Get().(*scanner)
	defer s.release()
	_, _, err := s.document(data, depth)
	return err
}

// Object checks data as [Check] does, wants an object, and appends its members to dst in their order. Errors: [errs.Invalid].
func Object(data []byte, dst []Member) ([]Member, error) {
	s := pool.Get().(*scanner)
	defer s.release()
	start, end, err := s.document(data, 0)
	if err != nil {
		return dst, err
	}
	if data[start] != '{' {
		return dst, errs.New(errs.Invalid, "json: an object was expected")
	}
	for name, value := range Each(data[start:end]) {
		dst = append(dst, Member{Name: name, Value: value})
	}
	return dst, nil
}

// Array checks data as [Check] does, wants an array, and appends the raw text of its elements to dst. Errors: [errs.Invalid].
func Array(data []byte, dst [][]byte) ([][]byte, error) {
	s := pool.Get().(*scanner)
	defer s.release()
	start, end, err := s.document(data, 0)
	if err != nil {
		return dst, err
	}
	if data[start] != '[' {
		return dst, errs.New(errs.Invalid, "json: an array was expected")
	}
	for value := range Elements(data[start:end]) {
		dst = append(dst, value)
	}
	return dst, nil
}

// scanner holds what one pass over a text needs. It is reused, so that a pass allocates nothing unless an object is large.
type scanner struct {
	data    []byte
	names   []name // names of every open object, innermost last
	scratch []byte
}

var pool = sync.Pool{New: func() any { return new(scanner) }}

// keptNames bounds what a scanner keeps between uses: one large text must not cost memory for ever.
const keptNames = 4096

func (s *scanner) release() {
	s.data = nil
	if cap(s.names) > keptNames {
		s.names = nil
	}
	if cap(s.scratch) > keptNames {
		s.scratch = nil
	}
	s.names = s.names[:0]
	pool.Put(s)
}

// document scans one value with white space around it and returns where the value starts and ends.
func (s *scanner) document(data []byte, depth int) (start, end int, err error) {
	s.data = data
	start = skipSpace(data, 0)
	end, err = s.value(start, depth)
	if err != nil {
		return 0, 0, err
	}
	if rest := skipSpace(data, end); rest != len(data) {
		return 0, 0, bad(rest, "text after the value")
	}
	return start, end, nil
}

func bad(at int, what string) error { return errs.Newf(errs.Invalid, "json: %s at byte %d", what, at) }

func skipSpace(data []byte, i int) int {
	for i < len(data) {
		switch data[i] {
		case ' ', '\t', '\n', '\r':
			i++
		default:
			return i
		}
	}
	return i
}

// value scans the value at i and returns the offset after it.
func (s *scanner) value(i, depth int) (int, error) {
	if i >= len(s.data) {
		return 0, bad(i, "unexpected end")
	}
	switch c := s.data[i]; {
	case c == '{':
		return s.object(i, depth+1)
	case c == '[':
		return s.array(i, depth+1)
	case c == '"':
		end, _, err := s.str(i)
		return end, err
	case c == '-' || c >= '0' && c <= '9':
		return s.number(i)
	case c == 't':
		return s.literal(i, "true")
	case c == 'f':
		return s.literal(i, "false")
	case c == 'n':
		return s.literal(i, "null")
	default:
		return 0, bad(i, "unexpected character")
	}
}

func (s *scanner) literal(i int, word string) (int, error) {
	if end := i + len(word); end <= len(s.data) && string(s.data[i:end]) == word {
		return end, nil
	}
	return 0, bad(i, "invalid literal")
}

func (s *scanner) array(i, depth int) (int, error) {
	if depth > MaxDepth {
		return 0, bad(i, "too many nested values")
	}
	i = skipSpace(s.data, i+1)
	if i < len(s.data) && s.data[i] == ']' {
		return i + 1, nil
	}
	for {
		end, err := s.value(i, depth)
		if err != nil {
			return 0, err
		}
		i = skipSpace(s.data, end)
		if i >= len(s.data) {
			return 0, bad(i, "unexpected end of an array")
		}
		switch s.data[i] {
		case ',':
			i = skipSpace(s.data, i+1)
		case ']':
			return i + 1, nil
		default:
			return 0, bad(i, "a comma or the end of an array was expected")
		}
	}
}

func (s *scanner) object(i, depth int) (int, error) {
	if depth > MaxDepth {
		return 0, bad(i, "too many nested values")
	}
	i = skipSpace(s.data, i+1)
	if i < len(s.data) && s.data[i] == '}' {
		return i + 1, nil
	}
	set := nameSet{base: len(s.names)}
	for {
		if i >= len(s.data) || s.data[i] != '"' {
			return 0, bad(i, "a member name was expected")
		}
		end, escaped, err := s.str(i)
		if err != nil {
			return 0, err
		}
		if !s.add(&set, i+1, end-1, escaped) {
			return 0, bad(i, "duplicate member name")
		}
		i = skipSpace(s.data, end)
		if i >= len(s.data) || s.data[i] != ':' {
			return 0, bad(i, "a colon was expected")
		}
		if end, err = s.value(skipSpace(s.data, i+1), depth); err != nil {
			return 0, err
		}
		i = skipSpace(s.data, end)
		if i >= len(s.data) {
			return 0, bad(i, "unexpected end of an object")
		}
		switch s.data[i] {
		case ',':
			i = skipSpace(s.data, i+1)
		case '}':
			s.names = s.names[:set.base]
			return i + 1, nil
		default:
			return 0, bad(i, "a comma or the end of an object was expected")
		}
	}
}

func (s *scanner) number(i int) (int, error) {
	d := s.data
	if d[i] == '-' {
		i++
	}
	start := i
	i = digits(d, i)
	switch {
	case i == start:
		return 0, bad(i, "a digit was expected")
	case d[start] == '0' && i > start+1:
		return 0, bad(start, "leading zero")
	}
	if i < len(d) && d[i] == '.' {
		start = i + 1
		if i = digits(d, start); i == start {
			return 0, bad(i, "a digit was expected")
		}
	}
	if i < len(d) && (d[i] == 'e' || d[i] == 'E') {
		i++
		if i < len(d) && (d[i] == '+' || d[i] == '-') {
			i++
		}
		start = i
		if i = digits(d, start); i == start {
			return 0, bad(i, "a digit was expected")
		}
	}
	return i, nil
}

func digits(d []byte, i int) int {
	for i < len(d) && d[i] >= '0' && d[i] <= '9' {
		i++
	}
	return i
}

// str scans the string that opens at i: the offset after its closing quote, and whether it holds an escape.
func (s *scanner) str(i int) (end int, escaped bool, err error) {
	d := s.data
	open := i
	i++
	for {
		for i+8 <= len(d) && plain8(binary.LittleEndian.Uint64(d[i:])) {
			i += 8
		}
		if i >= len(d) {
			return 0, false, bad(open, "unterminated string")
		}
		switch c := d[i]; {
		case c == '"':
			return i + 1, escaped, nil
		case c == '\\':
			escaped = true
			if i, err = s.escape(i); err != nil {
				return 0, false, err
			}
		case c < 0x20:
			return 0, false, bad(i, "control character in a string")
		case c < utf8.RuneSelf:
			i++
		default:
			r, size := utf8.DecodeRune(d[i:])
			if r == utf8.RuneError && size == 1 {
				return 0, false, bad(i, "invalid UTF-8")
			}
			i += size
		}
	}
}

// plain8 reports whether all 8 bytes are ASCII, printable, and neither quote nor backslash. It may say no for bytes that are (a borrow of the
// byte below), never yes for bytes that are not: the caller looks again, byte by byte.
func plain8(w uint64) bool {
	const lo, hi = 0x0101010101010101, 0x8080808080808080
	control := w - lo*0x20
	quote := (w ^ lo*'"') - lo
	slash := (w ^ lo*'\\') - lo
	return (w|control|quote|slash)&hi == 0
}

// escape checks the escape that starts at i and returns the offset after it.
func (s *scanner) escape(i int) (int, error) {
	d := s.data
	if i+1 >= len(d) {
		return 0, bad(i, "unterminated escape")
	}
	switch d[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2, nil
	case 'u':
	default:
		return 0, bad(i, "invalid escape")
	}
	r, ok := hex4(d, i+2)
	switch {
	case !ok:
		return 0, bad(i, "invalid escape")
	case r < 0xd800 || r > 0xdfff:
		return i + 6, nil
	case r > 0xdbff:
		return 0, bad(i, "lone surrogate")
	}
	if i+8 <= len(d) && d[i+6] == '\\' && d[i+7] == 'u' {
		if low, ok := hex4(d, i+8); ok && low >= 0xdc00 && low <= 0xdfff {
			return i + 12, nil
		}
	}
	return 0, bad(i, "lone surrogate")
}

func hex4(d []byte, i int) (rune, bool) {
	if i+4 > len(d) {
		return 0, false
	}
	var r rune
	for _, c := range d[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
