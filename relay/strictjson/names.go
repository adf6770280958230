package strictjson

import (
	"bytes"
	"hash/maphash"
)

// name is one member name of an open object: where its text lies between the quotes, and the seeded hash of its unescaped form.
type name struct {
	start, end int
	escaped    bool
	hash       uint64
}

// nameSet is the set of names of one open object. It is searched linearly while it is small, and by an index afterwards, so that an object of
// many members costs time in proportion to its size; the hash is seeded per process, so a writer cannot choose collisions.
type nameSet struct {
	base  int // first of the object's names in scanner.names
	index map[uint64]struct{}
}

const indexFrom = 16

var seed = maphash.MakeSeed()

// add adds the name at data[start:end] and reports whether it was not in the set.
func (s *scanner) add(set *nameSet, start, end int, escaped bool) bool {
	n := name{start: start, end: end, escaped: escaped}
	n.hash = maphash.Bytes(seed, s.unescaped(n, 0))
	own := s.names[set.base:]
	if set.index == nil && len(own) == indexFrom {
		set.index = make(map[uint64]struct{}, 4*indexFrom)
		for _, o := range own {
			set.index[o.hash] = struct{}{}
		}
	}
	seen := set.index == nil
	if !seen {
		_, seen = set.index[n.hash]
		set.index[n.hash] = struct{}{}
	}
	if seen {
		for _, o := range own {
			if o.hash == n.hash && s.equal(o, n) {
				return false
			}
		}
	}
	s.names = append(s.names, n)
	return true
}

func (s *scanner) equal(a, b name) bool {
	if !a.escaped && !b.escaped {
		return bytes.Equal(s.data[a.start:a.end], s.data[b.start:b.end])
	}
	x := s.unescaped(a, 0)
	y := s.unescaped(b, len(s.scratch))
	if a.escaped {
		x = s.scratch[:len(x)] // b may have moved the scratch
	}
	return bytes.Equal(x, y)
}

// unescaped returns the name's text. That of an escaped name lies in the scratch, from offset from, until the next call.
func (s *scanner) unescaped(n name, from int) []byte {
	raw := s.data[n.start:n.end]
	if !n.escaped {
		return raw
	}
	s.scratch = appendUnescaped(s.scratch[:from], raw)
	return s.scratch[from:]
}
