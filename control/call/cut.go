package call

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/relay/strictjson"
)

// handover is what goes into the sandbox of a result: the result, and the files that it names.
type handover struct {
	result []byte
	files  []*File
	// cut says what was replaced, for the journal; "" where the result is as it was. Digests only: nothing of the server's words.
	cut string
}

// beginning is how much of a text that became a file stands in its place at most.
const beginning = 16 << 10

// most is how many bytes a result of a call may have to stand inline.
func (p *Pipeline) most(c *control.Call) int {
	to := &control.Connection{}
	if policy := p.policy.Load(); policy != nil && policy.Connections[c.Connection] != nil {
		to = policy.Connections[c.Connection]
	}
	return int(limitsOf(to).Result)
}

// cutter hands a result over that is too long to stand inline. Whole parts of it become files, the largest first: texts as they read, images and
// sounds as their own bytes, everything else as its exact JSON. An image is never cut. What stands in their place says so, with path, length and
// what to do; where that is not enough, the whole result becomes one file.
type cutter struct {
	call   *control.Call
	folder string // where the sandbox sees its files
	most   int
	files  []*File
	notes  []string
}

// handOver is the result as it is where it is short enough, and otherwise its parts as files.
func handOver(result []byte, c *control.Call, folder string, most int) handover {
	if len(result) <= most {
		return handover{result: result}
	}
	k := &cutter{call: c, folder: folder, most: most}
	out := k.parts(result)
	if out == nil {
		out = k.whole(result)
	}
	return handover{result: out, files: k.files, cut: fmt.Sprintf("SHA-256 %s became %s: %s", control.Sum(result), control.Sum(out), strings.Join(k.notes, ", "))}
}

// part is a part of a result that can become a file.
type part struct {
	name string // in the journal
	raw  []byte
	in   []byte // what stands in its place; nil: it stays
}

// parts makes files of the largest parts until the rest is short enough; nil where that does not suffice.
func (k *cutter) parts(result []byte) []byte {
	var parts []*part
	var structured *part
	for name, value := range strictjson.Each(result) {
		switch string(name) {
		case "content":
			for block := range strictjson.Elements(value) {
				parts = append(parts, &part{name: "content[" + strconv.Itoa(len(parts)) + "]", raw: block})
			}
		case "structuredContent":
			structured = &part{name: "structuredContent", raw: value}
		}
	}
	sorted := slices.Clone(parts)
	if structured != nil {
		sorted = append(sorted, structured)
	}
	slices.SortStableFunc(sorted, func(a, b *part) int { return cmp.Compare(len(b.raw), len(a.raw)) })
	left := len(result)
	for _, p := range sorted {
		if left <= k.most || len(k.files) == maxFiles {
			break
		}
		if p == structured {
			p.in = k.structured(p)
		} else {
			p.in = k.block(p)
		}
		if p.in != nil {
			left += len(p.in) - len(p.raw)
		}
	}
	if left > k.most {
		k.files, k.notes = nil, nil
		return nil
	}
	return spliced(result, parts, structured)
}

// spliced is the result with what stands in the place of its parts. Whatever was not replaced keeps its bytes.
func spliced(result []byte, parts []*part, structured *part) []byte {
	b := []byte{'{'}
	separate := func() {
		if last := b[len(b)-1]; last != '{' && last != '[' {
			b = append(b, ',')
		}
	}
	moved := structured != nil && structured.in != nil
	content := func() {
		b = append(b, `"content":[`...)
		for _, p := range parts {
			separate()
			if p.in != nil {
				b = append(b, p.in...)
			} else {
				b = append(b, p.raw...)
			}
		}
		if moved {
			separate()
			b = append(b, structured.in...)
		}
		b = append(b, ']')
	}
	had := false
	for name, at := range strictjson.Spans(result) {
		switch {
		case string(name) == "content" && result[at.Value] == '[':
			separate()
			content()
			had = true
		case string(name) == "structuredContent" && moved:
		default:
			separate()
			b = append(b, result[at.Name:at.End]...)
		}
	}
	if moved && !had {
		separate()
		content()
	}
	return append(b, '}')
}

// put notes a file and returns its path; the same bytes are one file.
func (k *cutter) put(f *File, what string) string {
	if !slices.ContainsFunc(k.files, func(o *File) bool { return o.Digest == f.Digest }) {
		k.files = append(k.files, f)
	}
	k.notes = append(k.notes, fmt.Sprintf("%s is file %s of %d bytes", what, f.Digest, f.Size))
	return k.folder + "/" + f.Digest.String()
}

// block makes a file of a block of content, and returns the block that stands in its place; nil where it cannot.
func (k *cutter) block(p *part) []byte {
	kind := member(p.raw, "type")
	switch kind {
	case "text":
		if text, ok := strictjson.Lookup(p.raw, "text"); ok && text[0] == '"' {
			if f := textFile(text); f != nil {
				return appendBlock(nil, k.begins("text", f, k.put(f, p.name+".text"), text))
			}
		}
	case "image", "audio":
		if data, ok := strictjson.Lookup(p.raw, "data"); ok && data[0] == '"' {
			if f := base64File(data); f != nil {
				mime := member(p.raw, "mimeType")
				return appendBlock(nil, fmt.Sprintf("The answer of %s has %s here (%s, %d bytes), too long to stand in it. It is whole in the file %s%s.%s",
					k.call.Name, map[string]string{"image": "an image", "audio": "a sound"}[kind], words64(mime), f.Size, k.put(f, p.name+".data"), ending(mime), keptFor))
			}
		}
	case "resource":
		return k.resource(p)
	}
	f := rawFile(p.raw)
	return appendBlock(nil, fmt.Sprintf("The answer of %s has a part here (%s, %d bytes of JSON), too long to stand in it. It is whole in the file %s.%s",
		k.call.Name, words64(kind), f.Size, k.put(f, p.name), keptFor))
}

// resource makes a file of an embedded resource: its text, or its bytes.
func (k *cutter) resource(p *part) []byte {
	inner, _ := strictjson.Lookup(p.raw, "resource")
	about := fmt.Sprintf("%s, %s", words64(member(inner, "uri")), words64(member(inner, "mimeType")))
	for _, m := range []struct {
		name string
		file func([]byte) *File
	}{{"text", textFile}, {"blob", base64File}} {
		raw, ok := strictjson.Lookup(inner, m.name)
		if !ok || raw[0] != '"' {
			continue
		}
		f := m.file(raw)
		if f == nil {
			continue
		}
		path := k.put(f, p.name+".resource."+m.name)
		return appendBlock(nil, fmt.Sprintf("The answer of %s has a resource here (%s, %d bytes), too long to stand in it. It is whole in the file %s%s.%s",
			k.call.Name, about, f.Size, path, ending(member(inner, "mimeType")), keptFor))
	}
	f := rawFile(p.raw)
	return appendBlock(nil, fmt.Sprintf("The answer of %s has a resource here (%s, %d bytes of JSON), too long to stand in it. It is whole in the file %s.%s",
		k.call.Name, about, f.Size, k.put(f, p.name), keptFor))
}

// structured makes a file of the structured answer, and returns a block that says so.
func (k *cutter) structured(p *part) []byte {
	f := rawFile(p.raw)
	return appendBlock(nil, fmt.Sprintf("The structured answer of %s (JSON, %d bytes) is too long to stand here. It is whole in the file %s. Read it in parts, or search it.%s",
		k.call.Name, f.Size, k.put(f, p.name), keptFor))
}

// whole makes one file of the whole result.
func (k *cutter) whole(result []byte) []byte {
	f := rawFile(result)
	path := k.put(f, "the result")
	head := strings.ToValidUTF8(string(result[:min(len(result), k.beginning())]), "")
	b := appendBlock([]byte(`{"content":[`), fmt.Sprintf("The answer of %s has %d bytes, too long to stand here; this is its beginning. "+
		"The whole of it, the JSON of a tool's result, is in the file %s. Read it in parts, or search it.%s It begins:\n%s", k.call.Name, f.Size, path, keptFor, head))
	if k.call.ToolResult == journal.ToolError {
		return append(b, `],"isError":true}`...)
	}
	return append(b, `],"isError":false}`...)
}

// keptFor says how long a file stays.
const keptFor = " It stays while the session lives, or until newer files need its room."

func (k *cutter) beginning() int { return min(beginning, k.most/4) }

// begins says where a text is, and how it begins.
func (k *cutter) begins(what string, f *File, path string, quoted []byte) string {
	var head []byte
	for p := range strictjson.Pieces(quoted, k.beginning()) {
		if head = append(head, p...); len(head) >= k.beginning() {
			break
		}
	}
	text := strings.ToValidUTF8(string(head[:min(len(head), k.beginning())]), "") // it may end inside a character
	return fmt.Sprintf("The answer of %s has a %s of %d bytes here, too long to stand in it; this is its beginning. The whole of it is in the file %s. "+
		"Read it in parts, or search it.%s It begins:\n%s", k.call.Name, what, f.Size, path, keptFor, text)
}

// ending says what an agent does with a file whose name says nothing about its kind.
func ending(mime string) string {
	kind, sub, _ := strings.Cut(mime, "/")
	if kind != "image" && kind != "audio" && mime != "application/pdf" || sub == "" || strings.ContainsFunc(sub, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }) {
		return ""
	}
	return "; to look at it, copy it to a name that ends in ." + sub
}

func member(object []byte, name string) string {
	raw, _ := strictjson.Lookup(object, name)
	s, _ := strictjson.Unquote(raw)
	return s
}

// words64 is a server's word as it may stand in a sentence: short, quoted where it is not plain.
func words64(s string) string {
	if len(s) > 64 {
		s = strings.ToValidUTF8(s[:64], "") + "..."
	}
	if s == "" {
		return "of no named kind"
	}
	return strconv.Quote(s)
}
