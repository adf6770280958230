package egress

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"sallyport.dev/relay/strictjson"
)

// MaxBody bounds one request to a model, in bytes.
const MaxBody = 32 << 20

// Bounds of what an API has a few dozen of: members of a request or a tool, and elements of the lists among them.
const (
	maxMembers  = 256
	maxElements = 4096
)

// object reads the members of one JSON object, strictly. Values are slices of raw: nothing is copied, because a guest chooses how large they are.
func object(raw []byte) (map[string]jsontext.Value, error) {
	if err := strictjson.Check(raw); err != nil {
		return nil, err
	}
	if jsontext.Value(raw).Kind() != '{' {
		return nil, errors.New("not an object")
	}
	m := map[string]jsontext.Value{}
	for name, value := range strictjson.Each(raw) {
		if len(m) == maxMembers {
			return nil, errors.New("too many members")
		}
		m[string(name)] = value
	}
	return m, nil
}

// elements reads the values of one array of a body that [object] read.
func elements(raw jsontext.Value) ([]jsontext.Value, error) {
	if raw.Kind() != '[' {
		return nil, errors.New("not an array")
	}
	var out []jsontext.Value
	for v := range strictjson.Elements(raw) {
		if len(out) == maxElements {
			return nil, errors.New("too many elements")
		}
		out = append(out, v)
	}
	return out, nil
}

func text(v jsontext.Value) string {
	s, _ := strictjson.Unquote(v)
	return s
}

// block is what the rules look at in one object of a request's content: short texts, whatever else it holds.
type block struct {
	where    *place // while the rules look
	kind     string // its member type
	fileID   bool   // it has the member, and not as null
	fileURL  bool
	url      string // the beginning of the address
	imageURL string // the same, or that of the url in there
	inInput  bool   // it lies in the input of a tool call
	isSource bool   // it is the member source of another
}

// place is where a value stands, from the inside out.
type place struct {
	outer *place
	name  string // of a member; "" for an element
	index int
}

// maxName is as much of a member's name, or of a word, as anybody reads.
const maxName = 64

func (p *place) String() string {
	var parts []string
	for ; p != nil; p = p.outer {
		switch {
		case p.name == "" && p.outer != nil:
			parts = append(parts, "["+strconv.Itoa(p.index)+"]")
		case p.outer != nil:
			parts = append(parts, "."+p.name)
		default:
			parts = append(parts, p.name)
		}
	}
	slices.Reverse(parts)
	return strings.Join(parts, "")
}

// walk calls visit for every object of a value of a body that [object] read, innermost first, until visit refuses. It goes over the bytes once and
// holds nothing of them, so that a body costs in proportion to its size, however it is nested.
func walk(raw jsontext.Value, name string, visit func(*block) Ruling) Ruling {
	if len(raw) == 0 {
		return allowed
	}
	// Names that come twice were refused by then; looking for them again would keep them all.
	w := walker{in: jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true)), visit: visit}
	_, r := w.value(&place{name: name}, false)
	return r
}

type walker struct {
	in    *jsontext.Decoder
	visit func(*block) Ruling
}

// value goes over one value. It returns the value where that is no array and no object.
func (w *walker) value(at *place, inInput bool) (scalar jsontext.Value, r Ruling) {
	switch w.in.PeekKind() {
	case '{':
		_, r = w.object(at, inInput)
		return nil, r
	case '[':
		return nil, w.array(at, inInput)
	}
	v, err := w.in.ReadValue()
	if err != nil {
		return nil, notStrict(at)
	}
	return v, allowed
}

func (w *walker) array(at *place, inInput bool) Ruling {
	if _, err := w.in.ReadToken(); err != nil {
		return notStrict(at)
	}
	for here := (&place{outer: at}); w.in.PeekKind() != ']'; here.index++ {
		if _, r := w.value(here, inInput); r.Verdict != Allowed {
			return r
		}
	}
	if _, err := w.in.ReadToken(); err != nil {
		return notStrict(at)
	}
	return allowed
}

func (w *walker) object(at *place, inInput bool) (block, Ruling) {
	b := block{where: at, inInput: inInput, isSource: at.outer != nil && at.name == "source"}
	if _, err := w.in.ReadToken(); err != nil {
		return b, notStrict(at)
	}
	for here := (&place{outer: at}); w.in.PeekKind() != '}'; {
		name, err := w.in.ReadValue()
		if err != nil {
			return b, notStrict(at)
		}
		here.name = short(name)
		if here.name == "image_url" && w.in.PeekKind() == '{' { // Chat Completions
			inner, r := w.object(here, inInput)
			if r.Verdict != Allowed {
				return b, r
			}
			b.imageURL = inner.url
			continue
		}
		v, r := w.value(here, inInput || here.name == "input")
		if r.Verdict != Allowed {
			return b, r
		}
		b.member(here.name, v)
	}
	if _, err := w.in.ReadToken(); err != nil {
		return b, notStrict(at)
	}
	return b, w.visit(&b)
}

// member takes what the rules look at.
func (b *block) member(name string, v jsontext.Value) {
	there := string(v) != "null"
	switch name {
	case "type":
		b.kind = short(v)
	case "file_id":
		b.fileID = there
	case "file_url":
		b.fileURL = there
	case "image_url":
		b.imageURL = short(v)
	case "url":
		b.url = short(v)
	}
}

// short is a text, as far as the rules can have a use for it: of a long one its beginning, where nothing in there is escaped. "" for no text.
func short(v jsontext.Value) string {
	switch {
	case len(v) <= maxName:
		return text(v)
	case v[0] != '"' || bytes.IndexByte(v[:maxName], '\\') >= 0:
		return ""
	}
	return safe(string(v[1:maxName]))
}

func notStrict(at *place) Ruling { return refuse(RefusedBody, at.String()+" is not strict JSON", "") }

// members refuses top-level members that are not on the list, and those that the profile does not name.
func members(m map[string]jsontext.Value, known []string, allow []string) Ruling {
	for k := range m {
		if !slices.Contains(known, k) && !slices.Contains(allow, k) {
			return refuse(RefusedMember, "the member "+safe(k), safe(k))
		}
	}
	return allowed
}

// inline reports whether an address carries its content itself.
func inline(address string) bool { return strings.HasPrefix(address, "data:") }
