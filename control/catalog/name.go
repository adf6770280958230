package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// MaxSandboxName bounds a tool's name in the sandbox; harnesses add their own prefix and models read at most 64 characters.
const MaxSandboxName = 48

// Reserved names belong to Sallyport's own tools.
var Reserved = []string{"await_call", "request_connection"}

// SandboxName is the name that a session shows for a tool: connection_tool folded to [a-z0-9_]; one over 48 characters is cut and ends with _
// and six hex of its digest. A rename ("as:") replaces the whole name and is folded alike.
func SandboxName(connection, tool, as string) string {
	full := connection + "_" + tool
	if as != "" {
		full = as
	}
	folded := fold(full)
	if len(folded) <= MaxSandboxName {
		return folded
	}
	sum := sha256.Sum256([]byte(full))
	return folded[:MaxSandboxName-7] + "_" + hex.EncodeToString(sum[:])[:6]
}

func fold(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == '_':
			return r
		case 'A' <= r && r <= 'Z':
			return r + 'a' - 'A'
		default:
			return '_'
		}
	}, s)
}
