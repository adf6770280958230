// Package strictjson checks and cuts JSON text where two parsers must never disagree: relay records and JSON-RPC lines.
//
// It accepts RFC 8259 text with the constraints of RFC 7493 that matter between parsers: member names are unique after unescaping, text is
// valid UTF-8, an escaped surrogate is half of a pair, nesting is at most [MaxDepth]. It never decodes numbers and never re-encodes: values
// are handed out as the bytes that were given, so member order, number precision and unknown members survive.
//
// Functions that take unchecked text say so; the others ([Lookup], [Each], [Elements]) want text that [Check], [Object] or [Array] accepted,
// are safe on any input, and find nothing where the text is broken. All functions may be called concurrently; results alias the input.
package strictjson
