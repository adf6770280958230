package shim

import (
	"bytes"
	"strconv"
	"unicode/utf8"

	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

// maxBatch bounds the messages of a batch: a line of 8 MiB could hold a million.
const maxBatch = 256

// message is one JSON-RPC message. Its parts alias the line that it was read from.
type message struct {
	id     []byte // raw; nil for a notification
	method string // "" for a response
	params []byte // raw object; nil where absent
}

// parseLine reads the messages of one line, which is no batch in most revisions. A message that cannot be read comes as its error; fatal is
// set where nothing of the line can be.
func parseLine(line []byte) (all []parsed, batch bool, fatal *rpcError) {
	line = bytes.TrimLeft(line, " \t\r")
	if len(line) == 0 {
		return nil, false, nil
	}
	if line[0] != '[' {
		m, err := parseMessage(line)
		return []parsed{{m, err}}, false, nil
	}
	elements, err := strictjson.Array(line, nil)
	switch {
	case err != nil:
		return nil, true, parseError(err)
	case len(elements) == 0:
		return nil, true, newError(codeInvalidRequest, "an empty batch")
	case len(elements) > maxBatch:
		return nil, true, newError(codeInvalidRequest, "a batch of "+strconv.Itoa(len(elements))+" messages; at most "+strconv.Itoa(maxBatch)+" are served")
	}
	all = make([]parsed, 0, len(elements))
	for _, raw := range elements {
		m, err := parseMessage(raw)
		all = append(all, parsed{m, err})
	}
	return all, true, nil
}

// parsed is a message, or why it cannot be served; message.id is set in both cases where it could be read.
type parsed struct {
	message
	err *rpcError
}

// parseMessage reads one message strictly: a name that comes twice, text that is not UTF-8 and deep nesting are refused, because the next
// reader might read them differently.
func parseMessage(raw []byte) (message, *rpcError) {
	var room [8]strictjson.Member
	members, err := strictjson.Object(raw, room[:0])
	if err != nil {
		return message{id: findID(raw)}, parseError(err)
	}
	var m message
	var version, method []byte
	answer := false
	for _, member := range members {
		switch string(member.Name) {
		case "jsonrpc":
			version = member.Value
		case "id":
			m.id = member.Value
		case "method":
			method = member.Value
		case "params":
			m.params = member.Value
		case "result", "error":
			answer = true
		}
	}
	if m.id != nil && (!isID(m.id) || len(m.id) > maxID) {
		if answer && method == nil {
			return message{}, nil
		}
		m.id = nil
		return m, newError(codeInvalidRequest, "id is a string or a number of at most "+strconv.Itoa(maxID)+" bytes")
	}
	if v, ok := strictjson.Unquote(version); !ok || v != "2.0" {
		return m, newError(codeInvalidRequest, `jsonrpc is "2.0"`)
	}
	if method == nil && answer {
		return message{}, nil
	}
	name, ok := strictjson.Unquote(method)
	if !ok || name == "" {
		return m, newError(codeInvalidRequest, "method is a string")
	}
	m.method = name
	if m.params != nil && m.params[0] != '{' {
		return m, newError(codeInvalidParams, "params is an object")
	}
	return m, nil
}

// JSON-RPC's codes, and the one of MCP 2026-07-28 that a server on stdio answers with.
const (
	codeParse              = -32700
	codeInvalidRequest     = -32600
	codeMethodNotFound     = -32601
	codeInvalidParams      = -32602
	codeInternal           = -32603
	codeUnsupportedVersion = -32022
)

// rpcError is the error member of a response. Its message is made of our own words only.
type rpcError struct {
	code    int
	message string
	data    []byte // raw JSON; nil for none
}

func newError(code int, message string) *rpcError { return &rpcError{code: code, message: message} }

func parseError(err error) *rpcError { return newError(codeParse, "parse error: "+errs.Message(err)) }

// appendError appends an error response. An id that could not be read is noID: null, or absent, as the revision spoken has it.
func appendError(dst, id []byte, e *rpcError) []byte {
	dst = append(dst, `{"jsonrpc":"2.0"`...)
	if id != nil {
		dst = append(append(dst, `,"id":`...), id...)
	}
	dst = strconv.AppendInt(append(dst, `,"error":{"code":`...), int64(e.code), 10)
	dst = strictjson.AppendQuote(append(dst, `,"message":`...), e.message)
	if e.data != nil {
		dst = append(append(dst, `,"data":`...), e.data...)
	}
	return append(dst, '}', '}')
}

// appendResponse appends the start of a result response; the result and a closing brace follow.
func appendResponse(dst, id []byte) []byte {
	dst = append(append(dst, `{"jsonrpc":"2.0","id":`...), id...)
	return append(dst, `,"result":`...)
}

// idKey makes equal what JSON-RPC calls the same id: a string by its text, a number by its spelling.
func idKey(id []byte) string {
	if text, ok := strictjson.Unquote(id); ok {
		return `"` + text
	}
	return string(id)
}

// cut returns s in at most most bytes, whole characters only.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most] + "…"
}
