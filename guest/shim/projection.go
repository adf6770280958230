package shim

import (
	"slices"

	"sallyport.dev/relay/strictjson"
)

// structuredRule is what becomes of structuredContent.
type structuredRule int

const (
	keeps structuredRule = iota // nothing is known to be lost
	// moves: the client shows structuredContent in the place of content, and rounds numbers while it does, or the revision does not know it.
	// It becomes the text of a last block, unless a block holds that JSON already.
	moves
	// movesUnlessSaid: the client shows content, and structuredContent only where there is none. Where a block holds the same JSON it may stay.
	movesUnlessSaid
)

// projection is what is changed in results for one kind of client, so that its model sees all that the server said, as the server said it.
type projection struct {
	structured structuredRule
	// errorPrefix stands before the text of a failed result, for a client that does not mark failures to its model.
	errorPrefix string
	// known: a block that the client does not know is not shown, or makes it refuse the whole result, as if the tool had not run. Such a block
	// becomes a text block with its exact JSON.
	known bool
}

// projections by clientInfo.name, measured with the releases that docs/relay.md names. A client that is not listed gets results as they are.
var projections = map[string]projection{
	"claude-code":      {structured: moves, known: true},
	"codex-mcp-client": {structured: moves, known: true, errorPrefix: "tool error: "},
	"pi":               {structured: movesUnlessSaid, known: true},
}

// projectionFor returns the projection for a client of that name that speaks revision version.
func projectionFor(client, version string) projection {
	p := projections[client]
	if version < structuredVersion {
		p.structured = moves
	}
	return p
}

// hidesOutputSchema reports whether tools are listed without their outputSchema: structuredContent may be taken out of a result, and a client
// that knows the schema would call that result broken.
func (p projection) hidesOutputSchema() bool { return p.structured != keeps }

// project makes the changes in result, a CallToolResult, after which the client's model can see the whole of it.
func (p projection) project(result *object) {
	c := newContent(result)
	if !c.readable() {
		return
	}
	if p.known {
		c.rewriteUnknown()
	}
	if structured := result.value("structuredContent"); p.structured != keeps && structured != nil && string(structured) != "null" {
		said := c.says(structured)
		if p.structured == moves || !said {
			result.remove("structuredContent")
			if !said {
				c.add(string(structured))
			}
		}
	}
	if p.errorPrefix != "" && string(result.value("isError")) == "true" {
		c.prefix(p.errorPrefix)
	}
	c.apply()
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

// blockMembers are the kinds of blocks that every revision since 2025-06-18 knows, and the texts that each must have.
var blockMembers = map[string][]string{
	"text": {"text"}, "image": {"data", "mimeType"}, "audio": {"data", "mimeType"}, "resource_link": {"uri", "name"}, "resource": nil,
}

// knownBlock reports whether a client that knows those revisions takes a block.
func knownBlock(raw []byte) bool {
	if raw[0] != '{' {
		return false
	}
	block := parseObject(raw)
	kind, _ := strictjson.Unquote(block.value("type"))
	texts, known := blockMembers[kind]
	if kind == "resource" {
		if raw = block.value("resource"); len(raw) == 0 || raw[0] != '{' {
			return false
		}
		block = parseObject(raw)
		texts = []string{"uri", "blob"}
		if block.has("text") {
			texts = []string{"uri", "text"}
		}
	}
	return known && !slices.ContainsFunc(texts, func(name string) bool {
		_, ok := strictjson.Unquote(block.value(name))
		return !ok
	})
}

// rewriteUnknown makes text blocks of the blocks that are not known.
func (c *content) rewriteUnknown() {
	for _, at := range c.blocks {
		if raw := c.raw[at.Value:at.End]; !knownBlock(raw) {
			c.result.edit("content", edit{at.Value, at.End, textBlockOf(string(raw))})
		}
	}
}

func (c *content) add(text string) { c.added = textBlockOf(text) }

func textBlockOf(text string) []byte {
	return append(strictjson.AppendQuote([]byte(textBlock), text), '}')
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
