package shim

import (
	"math"
	"strconv"

	"sallyport.dev/relay/strictjson"
)

// traceparent returns the value where it is what W3C Trace Context (level 1, section 3.2) has for version 00, else "". It is the one part of a
// request's _meta that goes on: an upstream gets a traceparent of ours that refers to it.
func traceparent(raw []byte) string {
	v, ok := strictjson.Unquote(raw)
	if !ok || len(v) != 55 || v[:3] != "00-" || v[35] != '-' || v[52] != '-' {
		return ""
	}
	trace, span, flags := v[3:35], v[36:52], v[53:]
	if !lowerHex(trace) || !lowerHex(span) || !lowerHex(flags) || zeros(trace) || zeros(span) {
		return ""
	}
	return v
}

func lowerHex(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func zeros(s string) bool {
	for _, c := range []byte(s) {
		if c != '0' {
			return false
		}
	}
	return true
}

// appendFloat writes a finite v in JSON's grammar.
func appendFloat(dst []byte, v float64) []byte {
	format := byte('f')
	if abs := math.Abs(v); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(dst, v, format, -1, 64)
}
