package upstream

import (
	"encoding/json"
	"errors"

	"sallyport.dev/relay/strictjson"
)

// MCP revisions.
const (
	v20241105 = "2024-11-05"
	v20250326 = "2025-03-26"
	v20250618 = "2025-06-18"
	v20251125 = "2025-11-25"
	v20260728 = "2026-07-28"
)

// Modern is the revision without sessions; Latest of the old ones is what initialize offers.
const (
	Modern      = v20260728
	latestOld   = v20251125
	headerSince = v20250618 // MCP-Protocol-Version; the revisions compare as text
	batchedIn   = v20250326 // the one revision over this transport whose answers may come in arrays
)

// Revisions lists the MCP revisions that are spoken, newest first.
func Revisions() []string { return []string{v20260728, v20251125, v20250618, v20250326, v20241105} }

func knownOld(revision string) bool {
	switch revision {
	case v20241105, v20250326, v20250618, v20251125:
		return true
	}
	return false
}

// JSON-RPC and MCP error codes.
const (
	codeParse          = -32700
	codeInvalidRequest = -32600
	codeMethod         = -32601
	codeParams         = -32602
	codeHeader         = -32020
	codeCapability     = -32021
	codeVersion        = -32022
)

// message is one JSON-RPC message, cut into its members; all of them alias raw.
type message struct {
	raw    []byte
	id     []byte // nil: absent
	method string
	params []byte
	result []byte
	fault  []byte // the error object
	code   int64  // of the error
}

func (m *message) isResponse() bool { return m.result != nil || m.fault != nil }

var (
	errNotRPC    = errors.New("not a JSON-RPC 2.0 message")
	errNoObject  = errors.New("a result or params that is no object")
	errBadError  = errors.New("an error without a code and a message")
	errAmbiguous = errors.New("neither or both of result and error")
)

// parseMessage reads one message strictly: syntax, names and UTF-8 by [strictjson], then what JSON-RPC and MCP demand of its members. Unknown
// members are left alone. The error quotes nothing of raw.
func parseMessage(raw []byte) (message, error) {
	m := message{raw: raw}
	var buf [8]strictjson.Member
	members, err := strictjson.Object(raw, buf[:0])
	if err != nil {
		return m, err
	}
	version, isCall := "", false
	for _, e := range members {
		switch string(e.Name) {
		case "jsonrpc":
			version, _ = strictjson.Unquote(e.Value)
		case "id":
			m.id = e.Value
		case "method":
			m.method, isCall = strictjson.Unquote(e.Value)
			if !isCall || m.method == "" {
				return m, errNotRPC
			}
		case "params":
			m.params = e.Value
		case "result":
			m.result = e.Value
		case "error":
			m.fault = e.Value
		}
	}
	if version != "2.0" {
		return m, errNotRPC
	}
	if isCall {
		if m.result != nil || m.fault != nil {
			return m, errAmbiguous
		}
		return m, nil
	}
	switch {
	case (m.result == nil) == (m.fault == nil):
		return m, errAmbiguous
	case m.result != nil:
		if m.result[0] != '{' {
			return m, errNoObject
		}
		return m, nil
	}
	code, ok := strictjson.Lookup(m.fault, "code")
	text, ok2 := strictjson.Lookup(m.fault, "message")
	if !ok || !ok2 || text[0] != '"' {
		return m, errBadError
	}
	if m.code, ok = strictjson.Int(code); !ok {
		return m, errBadError
	}
	return m, nil
}

// answers reports whether a response is the one to the request with this id. An error without an id answers when its code says that the server
// could not get as far as reading one.
func (m *message) answers(id string) bool {
	if got, ok := strictjson.Unquote(m.id); ok {
		return got == id
	}
	if m.id != nil && string(m.id) != "null" || m.fault == nil {
		return false
	}
	switch m.code {
	case codeParse, codeInvalidRequest, codeMethod, codeParams, codeHeader, codeCapability, codeVersion:
		return true
	}
	return false
}

// text returns a string member of an object, or "".
func text(object []byte, path ...string) string {
	raw, _ := strictjson.Lookup(object, path...)
	s, _ := strictjson.Unquote(raw)
	return s
}

// number returns a number member of an object, or 0.
func number(object []byte, name string) float64 {
	raw, ok := strictjson.Lookup(object, name)
	if !ok {
		return 0
	}
	var f float64
	if json.Unmarshal(raw, &f) != nil {
		return 0
	}
	return f
}

// rpc is a JSON-RPC request in the making: members are appended as bytes, so that what was approved is what is sent.
type rpc struct {
	version string // the worker's, for clientInfo
	id      string // "": a notification
	method  string
	params  []byte // members of params, each followed by a comma
	meta    []byte // members of _meta, each followed by a comma
}

func appendMember(dst []byte, name string, raw []byte) []byte {
	dst = strictjson.AppendQuote(dst, name)
	dst = append(dst, ':')
	dst = append(dst, raw...)
	return append(dst, ',')
}

func appendText(dst []byte, name, value string) []byte {
	return appendMember(dst, name, strictjson.AppendQuote(nil, value))
}

// modern adds what every request of 2026-07-28 carries in _meta.
func (q *rpc) modern(elicit bool) {
	q.meta = appendText(q.meta, "io.modelcontextprotocol/protocolVersion", v20260728)
	q.meta = appendMember(q.meta, "io.modelcontextprotocol/clientInfo", clientInfo(q.version))
	q.meta = appendMember(q.meta, "io.modelcontextprotocol/clientCapabilities", capabilities(elicit))
}

func clientInfo(version string) []byte {
	b := append([]byte(`{"name":"sallyport","version":`), strictjson.AppendQuote(nil, version)...)
	return append(b, '}')
}

// tasks is the extension by which a server of 2026-07-28 may answer tools/call with a handle that is asked about later (SEP-2663).
const tasks = `"extensions":{"io.modelcontextprotocol/tasks":{}}`

// capabilities are what this side can do for a server of 2026-07-28: wait for a task, and answer forms, where a person is there to answer.
func capabilities(elicit bool) []byte {
	if elicit {
		return []byte(`{"elicitation":{},` + tasks + `}`)
	}
	return []byte(`{` + tasks + `}`)
}

// oldCapabilities are the same for the eras before: their tasks were an experiment of one revision and are not spoken.
func oldCapabilities(elicit bool) []byte {
	if elicit {
		return []byte(`{"elicitation":{}}`)
	}
	return []byte(`{}`)
}

// bytes is the message.
func (q *rpc) bytes() []byte {
	b := make([]byte, 0, len(q.params)+len(q.meta)+len(q.method)+128)
	b = append(b, `{"jsonrpc":"2.0",`...)
	if q.id != "" {
		b = appendText(b, "id", q.id)
	}
	b = append(b, `"method":`...)
	b = strictjson.AppendQuote(b, q.method)
	if len(q.params)+len(q.meta) > 0 {
		b = append(b, `,"params":{`...)
		b = append(b, q.params...)
		if len(q.meta) > 0 {
			b = append(b, `"_meta":{`...)
			b = append(b, q.meta...)
			b[len(b)-1] = '}'
			b = append(b, ',')
		}
		b[len(b)-1] = '}'
	}
	return append(b, '}')
}
