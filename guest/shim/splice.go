package shim

import (
	"slices"

	"sallyport.dev/relay/strictjson"
)

// edit replaces the bytes [start:end) of a text.
type edit struct {
	start, end int
	with       []byte
}

// spliced appends text with the edits made, in any order; none may overlap. Line ends, which are white space wherever they can stand in JSON,
// become spaces: the result stands on one line.
func spliced(dst, text []byte, edits []edit) []byte {
	slices.SortFunc(edits, func(a, b edit) int {
		if a.start != b.start {
			return a.start - b.start
		}
		return a.end - b.end // an insertion stands before what is replaced there
	})
	at := 0
	for _, e := range edits {
		dst = strictjson.AppendLine(dst, text[at:e.start])
		dst = append(dst, e.with...)
		at = e.end
	}
	return strictjson.AppendLine(dst, text[at:])
}

// object is a checked JSON object with the places of its members, and what is to be changed in it. Bytes that no change names stay as they are.
type object struct {
	text  []byte
	names []string
	spans []strictjson.Span

	front []byte   // new members, each behind a comma
	gone  []string // members that go
	edits []edit   // in values
}

// parseObject reads a checked object.
func parseObject(text []byte) *object {
	o := &object{text: text}
	for name, at := range strictjson.Spans(text) {
		o.names = append(o.names, string(name))
		o.spans = append(o.spans, at)
	}
	return o
}

func (o *object) has(name string) bool { return slices.Contains(o.names, name) }

// value returns the raw value of a member, nil where there is none.
func (o *object) value(name string) []byte {
	i := slices.Index(o.names, name)
	if i < 0 {
		return nil
	}
	return o.text[o.spans[i].Value:o.spans[i].End]
}

// base is the offset of an existing member's value in the text.
func (o *object) base(name string) int { return o.spans[slices.Index(o.names, name)].Value }

// set gives a member a raw value: in its place, or as a new member in front.
func (o *object) set(name, value string) {
	if i := slices.Index(o.names, name); i >= 0 {
		o.edits = append(o.edits, edit{o.spans[i].Value, o.spans[i].End, []byte(value)})
		return
	}
	o.front = strictjson.AppendQuote(append(o.front, ','), name)
	o.front = append(append(o.front, ':'), value...)
}

// remove takes members out; absent ones are no matter.
func (o *object) remove(name string) { o.gone = append(o.gone, name) }

// edit makes changes inside the value of an existing member, at offsets of that value.
func (o *object) edit(name string, edits ...edit) {
	by := o.base(name)
	for _, e := range edits {
		o.edits = append(o.edits, edit{e.start + by, e.end + by, e.with})
	}
}

// changes returns all of it as edits of the text.
func (o *object) changes() []edit {
	edits := slices.Clone(o.edits)
	left := 0
	for i := 0; i < len(o.names); i++ {
		if !slices.Contains(o.gone, o.names[i]) {
			left++
			continue
		}
		first := i
		for i+1 < len(o.names) && slices.Contains(o.gone, o.names[i+1]) {
			i++
		}
		// A run of members goes with exactly one comma between its neighbours left.
		switch {
		case i+1 < len(o.names):
			edits = append(edits, edit{start: o.spans[first].Name, end: o.spans[i+1].Name})
		case first > 0:
			edits = append(edits, edit{start: o.spans[first-1].End, end: o.spans[i].End})
		default:
			edits = append(edits, edit{start: o.spans[first].Name, end: o.spans[i].End})
		}
	}
	if len(o.front) > 0 {
		front := slices.Clone(o.front[1:])
		if left > 0 {
			front = append(front, ',')
		}
		edits = append(edits, edit{1, 1, front}) // behind the opening brace
	}
	return edits
}

// append writes the object with its changes made.
func (o *object) append(dst []byte) []byte { return spliced(dst, o.text, o.changes()) }
