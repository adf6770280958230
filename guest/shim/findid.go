package shim

import (
	"bytes"

	"sallyport.dev/relay/strictjson"
)

// maxID bounds an id, which is kept while its request is open and comes back in every message about it.
const maxID = 1 << 10

// idFinder looks for the id of a JSON-RPC message in text that cannot be parsed: too long to be kept, or broken. A harness that gets no answer
// under its id waits until it times out, so an error is worth the look. It reads quotes and brackets and nothing else.
type idFinder struct {
	depth    int
	inString bool
	escaped  bool
	inValue  bool // after the colon of a member of the outermost object
	array    bool // the outermost value is no object
	matched  int  // bytes of `"id"` seen at the place of a name; -1: another name
	value    []byte
	times    int
}

const idName = `"id"`

// findID returns the id in line, nil where there is none or no single one.
func findID(line []byte) []byte {
	var f idFinder
	f.feed(line)
	return f.found()
}

// found returns the id as it stands in the text, nil where there was none, or more than one.
func (f *idFinder) found() []byte {
	id := bytes.TrimRight(f.value, " \t\r\n")
	if f.times != 1 || f.array || len(f.value) > maxID || !isID(id) || strictjson.Check(id) != nil {
		return nil
	}
	return id
}

// isID reports whether raw, a JSON value, is a string or a number.
func isID(raw []byte) bool {
	return len(raw) > 0 && (raw[0] == '"' || raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9')
}

func (f *idFinder) feed(text []byte) {
	for _, c := range text {
		f.byte(c)
	}
}

func (f *idFinder) byte(c byte) {
	if f.depth == 1 {
		f.member(c)
	}
	switch {
	case f.escaped:
		f.escaped = false
	case f.inString:
		f.escaped = c == '\\'
		f.inString = c != '"'
	case c == '"':
		f.inString = true
	case c == '{' || c == '[':
		if f.depth == 0 && c == '[' {
			f.array = true
		}
		f.depth++
	case c == '}' || c == ']':
		f.depth--
	}
}

// member follows the names and values of the outermost object.
func (f *idFinder) member(c byte) {
	space := c == ' ' || c == '\t' || c == '\r' || c == '\n'
	switch {
	case !f.inString && c == ',':
		f.inValue, f.matched = false, 0
	case !f.inString && !f.inValue && c == ':':
		f.inValue = true
		if f.matched == len(idName) {
			f.times++
		}
	case f.inValue:
		leading := space && len(f.value) == 0
		if f.matched == len(idName) && (f.inString || !leading && c != '}') && len(f.value) <= maxID {
			f.value = append(f.value, c)
		}
	case space && !f.inString:
	case f.matched >= 0 && f.matched < len(idName) && c == idName[f.matched]:
		f.matched++
	default:
		f.matched = -1
	}
}
