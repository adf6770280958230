package strictjson

import (
	"bytes"
	"iter"
)

// Span says where a member or an element lies in the text that was walked: a member's name, with its quotes, starts at Name; the value is
// [Value:End). An element has Name equal to Value. Whoever splices bytes needs offsets; whoever reads needs only [Each] and [Elements].
type Span struct{ Name, Value, End int }

// Spans yields name (unescaped) and place of each member of a checked object, in order; nothing for any other value.
func Spans(object []byte) iter.Seq2[[]byte, Span] {
	return func(yield func(name []byte, at Span) bool) {
		i := skipSpace(object, 0)
		if i >= len(object) || object[i] != '{' {
			return
		}
		for {
			at := Span{Name: skipSpace(object, i+1)}
			end, ok := skipString(object, at.Name)
			if !ok {
				return
			}
			name := object[at.Name+1 : end-1]
			i = skipSpace(object, end)
			if i >= len(object) || object[i] != ':' {
				return
			}
			at.Value = skipSpace(object, i+1)
			if at.End, ok = skipValue(object, at.Value); !ok {
				return
			}
			if bytes.IndexByte(name, '\\') >= 0 {
				name = appendUnescaped(nil, name)
			}
			if !yield(name, at) {
				return
			}
			i = skipSpace(object, at.End)
			if i >= len(object) || object[i] != ',' {
				return
			}
		}
	}
}

// ElementSpans yields the place of each element of a checked array; nothing for any other value.
func ElementSpans(array []byte) iter.Seq[Span] {
	return func(yield func(at Span) bool) {
		i := skipSpace(array, 0)
		if i >= len(array) || array[i] != '[' {
			return
		}
		i = skipSpace(array, i+1)
		for i < len(array) && array[i] != ']' {
			end, ok := skipValue(array, i)
			if !ok || !yield(Span{Name: i, Value: i, End: end}) {
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
