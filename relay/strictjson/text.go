package strictjson

import (
	"bytes"
	"iter"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Unquote returns the text of the JSON string raw, which [Check] accepted. It reports false for anything but a string.
func Unquote(raw []byte) (string, bool) {
	if len(raw) < 2 || raw[0] != '"' || raw[len(raw)-1] != '"' {
		return "", false
	}
	in := raw[1 : len(raw)-1]
	if bytes.IndexByte(in, '\\') < 0 {
		return string(in), true
	}
	return string(appendUnescaped(nil, in)), true
}

// appendUnescaped appends the text of a checked string's inside.
func appendUnescaped(dst, in []byte) []byte {
	for i := 0; i < len(in); {
		c := in[i]
		if c != '\\' || i+1 >= len(in) {
			dst = append(dst, c)
			i++
			continue
		}
		c = in[i+1]
		i += 2
		switch c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r, _ := hex4(in, i)
			i += 4
			if utf16.IsSurrogate(r) {
				low, _ := hex4(in, i+2)
				r = utf16.DecodeRune(r, low)
				i += 6
			}
			dst = utf8.AppendRune(dst, r)
		default:
			dst = append(dst, c)
		}
	}
	return dst
}

// Pieces yields the text of the JSON string raw, which [Check] accepted, in pieces of about size bytes: whoever hands a long text on need not hold it
// twice. A piece may end inside a character, and alias raw. Nothing for any other value.
func Pieces(raw []byte, size int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if len(raw) < 2 || raw[0] != '"' || raw[len(raw)-1] != '"' {
			return
		}
		in := raw[1 : len(raw)-1]
		for len(in) > 0 {
			plain := bytes.IndexByte(in[:min(len(in), size)], '\\')
			if plain < 0 {
				plain = min(len(in), size)
			}
			if plain > size/2 || plain == len(in) {
				if !yield(in[:plain:plain]) {
					return
				}
				in = in[plain:]
				continue
			}
			piece := make([]byte, 0, size+utf8.UTFMax)
			for len(in) > 0 && len(piece) < size {
				n := escapeLen(in)
				if n == 0 {
					if n = bytes.IndexByte(in[:min(len(in), size-len(piece))], '\\'); n < 0 {
						n = min(len(in), size-len(piece))
					}
				}
				piece = appendUnescaped(piece, in[:n])
				in = in[n:]
			}
			if !yield(piece) {
				return
			}
		}
	}
}

// escapeLen is the length of the escape with which a checked string's inside begins, both halves of a pair together; 0 where none does.
func escapeLen(in []byte) int {
	switch {
	case len(in) < 2 || in[0] != '\\':
		return 0
	case in[1] != 'u':
		return 2
	}
	if r, ok := hex4(in, 2); ok && utf16.IsSurrogate(r) {
		return min(12, len(in))
	}
	return min(6, len(in))
}

// AppendQuote appends s as a JSON string. Only what must be escaped is; bytes that are not UTF-8 become U+FFFD.
func AppendQuote(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c == '\t':
			dst = append(dst, '\\', 't')
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		case c < utf8.RuneSelf:
			dst = append(dst, c)
		default:
			r, size := utf8.DecodeRuneInString(s[i:])
			dst = utf8.AppendRune(dst, r)
			i += size
			continue
		}
		i++
	}
	return append(dst, '"')
}

// AppendLine appends the checked value raw so that it stays on one line: line feeds and carriage returns, which are white space wherever
// they can stand in JSON, become spaces. Every other byte is kept.
func AppendLine(dst, raw []byte) []byte {
	n := len(dst)
	dst = append(dst, raw...)
	for _, c := range []byte{'\n', '\r'} {
		for i := n; ; i++ {
			next := bytes.IndexByte(dst[i:], c)
			if next < 0 {
				break
			}
			i += next
			dst[i] = ' '
		}
	}
	return dst
}

// Int returns the integer that raw spells. It reports false for a fraction, an exponent, a negative zero and what int64 cannot hold.
func Int(raw []byte) (int64, bool) {
	if len(raw) == 0 || len(raw) > 20 || raw[0] == '+' || string(raw) == "-0" {
		return 0, false
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	return n, err == nil
}

// Bool returns the truth value that raw spells, and whether it is one.
func Bool(raw []byte) (value, ok bool) {
	switch string(raw) {
	case "true":
		return true, true
	case "false":
		return false, true
	}
	return false, false
}
