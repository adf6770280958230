package shim

import (
	"bytes"

	"sallyport.dev/relay/strictjson"
)

// sameJSON reports whether text is the same JSON as value, which was checked: the same names in the same order, the same strings, and numbers
// of the same spelling. Only white space and escapes may differ, so that "the same" never hides a rounded number.
func sameJSON(text, value []byte) bool {
	a, b := text, value
	for {
		x, y := nextToken(&a), nextToken(&b)
		switch {
		case x == nil || y == nil:
			return x == nil && y == nil && strictjson.Check(text) == nil
		case x[0] == '"' && y[0] == '"':
			if !bytes.Equal(x, y) && !sameString(x, y) {
				return false
			}
		case !bytes.Equal(x, y):
			return false
		}
	}
}

func sameString(x, y []byte) bool {
	if strictjson.Check(x) != nil {
		return false
	}
	a, _ := strictjson.Unquote(x)
	b, _ := strictjson.Unquote(y)
	return a == b
}

// nextToken cuts the next token off text, nil at its end: a string, one of the six structural characters, or anything up to one of those or
// white space.
func nextToken(text *[]byte) []byte {
	t := *text
	for len(t) > 0 && isSpace(t[0]) {
		t = t[1:]
	}
	if len(t) == 0 {
		*text = nil
		return nil
	}
	n := 1
	switch t[0] {
	case '{', '}', '[', ']', ':', ',':
	case '"':
		for n < len(t) && t[n] != '"' {
			if t[n] == '\\' {
				n++
			}
			n++
		}
		n = min(n+1, len(t))
	default:
		for n < len(t) && !isSpace(t[n]) && bytes.IndexByte([]byte(`{}[]:,"`), t[n]) < 0 {
			n++
		}
	}
	*text = t[n:]
	return t[:n]
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }
