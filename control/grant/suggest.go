package grant

import (
	"regexp"
	"strconv"
	"strings"

	"sallyport.dev/relay/strictjson"
)

var plainName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// reserved words of CEL: a member of such a name cannot be selected with a dot.
var reserved = map[string]bool{
	"as": true, "break": true, "const": true, "continue": true, "else": true, "false": true, "for": true, "function": true, "if": true, "import": true,
	"in": true, "let": true, "loop": true, "namespace": true, "null": true, "package": true, "return": true, "true": true, "var": true, "void": true, "while": true,
}

// Suggest is a constraint for a session grant, pre-filled from the arguments of the call that an approver looks at: every short text, truth value
// and integer of the first level must be as it is here. The approver edits it: what is left out may then differ.
func Suggest(args []byte) string {
	const longest, most = 80, 8
	var parts []string
	for name, v := range strictjson.Each(args) {
		key := string(name)
		if !plainName.MatchString(key) || reserved[key] || len(v) == 0 || len(parts) == most {
			continue
		}
		switch v[0] {
		case '"':
			if s, ok := strictjson.Unquote(v); ok && len(s) <= longest && !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 }) {
				parts = append(parts, "args."+key+" == "+celText(s))
			}
		case 't', 'f':
			parts = append(parts, "args."+key+" == "+string(v))
		case 'n', '{', '[':
		default:
			if _, err := strconv.ParseInt(string(v), 10, 64); err == nil {
				parts = append(parts, "args."+key+" == "+string(v))
			}
		}
	}
	return strings.Join(parts, " && ")
}

// celText is a CEL string literal: its escapes are those of Go for printable text.
func celText(s string) string { return strconv.Quote(s) }
