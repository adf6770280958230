package shim

import "sallyport.dev/relay/strictjson"

// shown is what a harness lets its model see of a result that has content and structuredContent.
type shown int

const (
	showsBoth         shown = iota // nothing is known to be lost
	showsStructured                // structuredContent where there is one, else content
	showsContent                   // content, and structuredContent only where content is empty
	showsContentAlone              // the revision knows no structuredContent
)

// projection is what is changed in results for one kind of client, so that its model sees all that the server said.
type projection struct {
	shows shown
	// errorPrefix stands before the text of a failed result, for a client that does not mark failures to its model.
	errorPrefix string
}

// projections by clientInfo.name, measured with the releases that docs/relay.md names. A client that is not listed gets results as they are.
var projections = map[string]projection{
	"claude-code":      {shows: showsStructured},
	"codex-mcp-client": {shows: showsStructured, errorPrefix: "tool error: "},
	"pi":               {shows: showsContent},
}

// projectionFor returns the projection for a client of that name that speaks revision version.
func projectionFor(client, version string) projection {
	p := projections[client]
	if version < structuredVersion {
		p.shows = showsContentAlone
	}
	return p
}

// hidesOutputSchema reports whether tools are listed without their outputSchema: structuredContent may be taken out of a result, and a client
// that knows the schema would call that result broken.
func (p projection) hidesOutputSchema() bool { return p.shows != showsBoth }

// project makes the changes in result, a CallToolResult, after which the client's model can see the whole of it.
func (p projection) project(result *object) {
	c := newContent(result)
	if !c.readable() || p.shows == showsBoth && p.errorPrefix == "" {
		return
	}
	failed := string(result.value("isError")) == "true"
	if structured := result.value("structuredContent"); structured != nil && string(structured) != "null" && p.takesOut(c, structured, failed) {
		result.remove("structuredContent")
		if !c.says(structured) {
			c.add(string(structured))
		}
	}
	if failed && p.errorPrefix != "" {
		c.prefix(p.errorPrefix)
	}
	c.apply()
}

// takesOut decides whether structuredContent moves into content. That of a failed result always does: what marks the failure, or is shown of
// it, is the text.
func (p projection) takesOut(c *content, structured []byte, failed bool) bool {
	switch p.shows {
	case showsStructured: // loses nothing only where content is the same JSON and no more
		return failed || len(c.blocks) > 0 && (len(c.blocks) > 1 || !c.says(structured))
	case showsContent: // loses nothing where content says the same among others
		return failed || len(c.blocks) > 0 && !c.says(structured)
	case showsContentAlone:
		return true
	default:
		return false
	}
}

// content is the content member of a result, with the changes that a projection makes to it.
type content struct {
	result *object
	raw    []byte // nil where the member is absent
	blocks []strictjson.Span
	added  []byte // one block behind the others
	before string // put before the text of the first text block
}

func newContent(result *object) *content {
	c := &content{result: result, raw: result.value("content")}
	for at := range strictjson.ElementSpans(c.raw) {
		c.blocks = append(c.blocks, at)
	}
	return c
}

// readable reports whether content is what the protocol says: an array, or absent. Anything else is handed on as it is.
func (c *content) readable() bool { return c.raw == nil || c.raw[0] == '[' }

// text returns the raw string of block i and its offset in content; nil where it is no text block.
func (c *content) text(i int) (raw []byte, at int) {
	block := parseObject(c.raw[c.blocks[i].Value:c.blocks[i].End])
	if kind, ok := strictjson.Unquote(block.value("type")); !ok || kind != "text" {
		return nil, 0
	}
	raw = block.value("text")
	if len(raw) == 0 || raw[0] != '"' {
		return nil, 0
	}
	return raw, c.blocks[i].Value + block.base("text")
}

// says reports whether a text block holds the same JSON as value.
func (c *content) says(value []byte) bool {
	for i := range c.blocks {
		raw, _ := c.text(i)
		if text, ok := strictjson.Unquote(raw); ok && sameJSON([]byte(text), value) {
			return true
		}
	}
	return false
}

func (c *content) add(text string) {
	c.added = append(strictjson.AppendQuote([]byte(textBlock), text), '}')
}

const textBlock = `{"type":"text","text":`

func (c *content) prefix(text string) { c.before = text }

// apply makes the changes in the result.
func (c *content) apply() {
	if c.before != "" {
		c.applyPrefix()
	}
	if c.added == nil {
		return
	}
	if c.raw == nil {
		c.result.set("content", "["+string(c.added)+"]")
		return
	}
	block := c.added
	if len(c.blocks) > 0 {
		block = append([]byte{','}, block...)
	}
	end := len(c.raw) - 1 // before the closing bracket
	c.result.edit("content", edit{end, end, block})
}

// applyPrefix puts the prefix into the first text block: one of the server's, else the added one, else one of its own.
func (c *content) applyPrefix() {
	for i := range c.blocks {
		if raw, at := c.text(i); raw != nil {
			quoted := strictjson.AppendQuote(nil, c.before)
			c.result.edit("content", edit{at + 1, at + 1, quoted[1 : len(quoted)-1]}) // behind the opening quote
			return
		}
	}
	if c.added == nil {
		c.add(c.before)
		return
	}
	text, _ := strictjson.Unquote(c.added[len(textBlock) : len(c.added)-1])
	c.add(c.before + text)
}
