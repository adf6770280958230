package call

import (
	"fmt"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
	"sallyport.dev/relay"
	"sallyport.dev/relay/strictjson"
)

// textResult is a CallToolResult of one text block, by concatenation.
func textResult(sentence string, isError bool) []byte {
	b := appendBlock([]byte(`{"content":[`), sentence)
	b = append(b, `],"isError":`...)
	if isError {
		return append(b, `true}`...)
	}
	return append(b, `false}`...)
}

func appendBlock(b []byte, sentence string) []byte {
	b = append(b, `{"type":"text","text":`...)
	b = strictjson.AppendQuote(b, sentence)
	return append(b, '}')
}

// resultOf is the CallToolResult of a call as it stands: the server's own bytes where it answered (I11), a text otherwise. What is too long to stand
// inline is handed over by [handOver].
func resultOf(c *control.Call, callback bool, t text) []byte {
	if c.State == journal.Answered && len(c.Body) > 0 {
		if r := answer(c, callback); r != nil {
			return r
		}
	}
	return textResult(t.render())
}

// answer cuts the CallToolResult out of an answer without changing a byte of it; nil when there is none.
func answer(c *control.Call, callback bool) []byte {
	if c.Client {
		return c.Body
	}
	if callback {
		if content, ok := strictjson.Lookup(c.Body, "content"); ok && content[0] == '[' {
			return c.Body
		}
		// Any other JSON becomes structuredContent, and its text a block for harnesses that read only those, unless it becomes a file anyway.
		b := []byte(`{"content":[`)
		if len(c.Body) <= relay.MaxInline/2 {
			b = appendBlock(b, string(c.Body))
		}
		b = append(b, `],"structuredContent":`...)
		return append(append(b, c.Body...), '}')
	}
	if result, ok := strictjson.Lookup(c.Body, "result"); ok && len(result) > 0 && result[0] == '{' {
		return result
	}
	fault, ok := strictjson.Lookup(c.Body, "error")
	if !ok {
		return nil
	}
	raw, _ := strictjson.Lookup(fault, "message")
	message, _ := strictjson.Unquote(raw)
	sentence := fmt.Sprintf("%s answered %s with error %d: %s (call %s, %s).", c.Connection, c.Name, c.RPCCode, message, c.ID, errs.UpstreamError)
	return textResult(sentence, true)
}

// recorded puts the note that an answer is a recorded one before the answer's own blocks. Everything else stays byte for byte.
func recorded(result []byte, note string) []byte {
	for name, at := range strictjson.Spans(result) {
		if string(name) != "content" || result[at.Value] != '[' {
			continue
		}
		b := make([]byte, 0, len(result)+len(note)+64)
		b = append(b, result[:at.Value+1]...)
		b = appendBlock(b, note)
		for range strictjson.Elements(result[at.Value:at.End]) {
			b = append(b, ',')
			break
		}
		return append(b, result[at.Value+1:]...)
	}
	b := appendBlock([]byte(`{"content":[`), note)
	b = append(b, ']')
	for range strictjson.Each(result) {
		b = append(b, ',')
		break
	}
	return append(b, result[1:]...)
}

// record is the relay's record of a result.
func record(id string, digest control.Digest, state journal.State, result []byte) ([]byte, error) {
	return relay.AppendResult(nil, &relay.Result{V: relay.Version, ID: id, Call: relay.Digest(digest), State: string(state), Result: result})
}
