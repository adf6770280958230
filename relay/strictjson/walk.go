package strictjson

import (
	"bytes"
	"iter"
)

// Each yields name (unescaped) and raw value of each member of a checked object, in order; nothing for any other value.
func Each(object []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		i := skipSpace(object, 0)
		if i >= len(object) || object[i] != '{' {
			return
		}
		i++
		for {
			start := skipSpace(object, i)
			end, ok := skipString(object, start)
			if !ok {
				return
			}
			name := object[start+1 : end-1]
			i = skipSpace(object, end)
			if i >= len(object) || object[i] != ':' {
				return
			}
			start = skipSpace(object, i+1)
			if end, ok = skipValue(object, start); !ok {
				return
			}
			if bytes.IndexByte(name, '\\') >= 0 {
				name = appendUnescaped(nil, name)
			}
			if !yield(name, object[start:end:end]) {
				return
			}
			i = skipSpace(object, end)
			if i >= len(object) || object[i] != ',' {
				return
			}
			i++
		}
	}
}

// Elements yields the raw text of each element of a checked array; nothing for any other value.
func Elements(array []byte) iter.Seq[[]byte] {
	return func(yield func(value []byte) bool) {
		i := skipSpace(array, 0)
		if i >= len(array) || array[i] != '[' {
			return
		}
		i = skipSpace(array, i+1)
		for i < len(array) && array[i] != ']' {
			end, ok := skipValue(array, i)
			if !ok || !yield(array[i:end:end]) {
				return
			}
			i = skipSpace(array, end)
			if i >= len(array) || array[i] != ',' {
				return
			}
			i = skipSpace(array, i+1)
		}
	}
}

// Lookup returns the raw value at path, a name of each nested object, in a checked object.
func Lookup(object []byte, path ...string) ([]byte, bool) {
	value := object
next:
	for _, want := range path {
		for name, v := range Each(value) {
			if string(name) == want {
				value = v
				continue next
			}
		}
		return nil, false
	}
	return value, true
}

// skipValue returns the offset after the checked value at i, and false where the text is broken.
func skipValue(d []byte, i int) (int, bool) {
	if i >= len(d) {
		return 0, false
	}
	switch d[i] {
	case '"':
		return skipString(d, i)
	case '{', '[':
		for depth := 0; i < len(d); i++ {
			switch d[i] {
			case '"':
				end, ok := skipString(d, i)
				if !ok {
					return 0, false
				}
				i = end - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1, true
				}
			}
		}
		return 0, false
	}
	start := i
	for i < len(d) && bytes.IndexByte([]byte(" \t\n\r,:]}"), d[i]) < 0 {
		i++
	}
	return i, i > start
}

// skipString returns the offset after the string that opens at i, and false where none does.
func skipString(d []byte, i int) (int, bool) {
	if i >= len(d) || d[i] != '"' {
		return 0, false
	}
	for i++; i < len(d); {
		n := bytes.IndexByte(d[i:], '"') // many bytes at a time: strings can be long
		if n < 0 {
			return 0, false
		}
		quote := i + n
		// A quote that an odd number of backslashes stands before is part of the string.
		slashes := 0
		for quote-slashes > i && d[quote-slashes-1] == '\\' {
			slashes++
		}
		if i = quote + 1; slashes%2 == 0 {
			return i, true
		}
	}
	return 0, false
}
