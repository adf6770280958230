package oauth

import "strings"

// Challenge is what a Bearer challenge says (RFC 6750, section 3; RFC 9728, section 5.1).
type Challenge struct {
	ResourceMetadata string
	Scope            string
	Error            string
}

// ParseChallenge reads the first Bearer challenge of a WWW-Authenticate value (RFC 9110, section 11.6.1). What cannot be read reads as absent, a
// parameter that stands there twice as well: nothing rests on it that is not checked again.
func ParseChallenge(value string) Challenge {
	var c Challenge
	seen := map[string]int{}
	bearer := false
	for rest := strings.TrimLeft(value, " ,\t"); rest != ""; rest = strings.TrimLeft(rest, " ,\t") {
		name, after := token(rest)
		if name == "" {
			break
		}
		trimmed := strings.TrimLeft(after, " \t")
		if !strings.HasPrefix(trimmed, "=") { // a scheme
			if bearer {
				break
			}
			bearer = strings.EqualFold(name, "Bearer")
			rest = after
			continue
		}
		var text string
		var ok bool
		if text, rest, ok = paramValue(strings.TrimLeft(trimmed[1:], " \t")); !ok {
			break
		}
		if !bearer {
			continue
		}
		name = strings.ToLower(name)
		seen[name]++
		if seen[name] > 1 {
			text = ""
		}
		switch name {
		case "resource_metadata":
			c.ResourceMetadata = text
		case "scope":
			c.Scope = text
		case "error":
			c.Error = text
		}
	}
	return c
}

func token(s string) (name, rest string) {
	i := 0
	for i < len(s) && (s[i] > ' ' && s[i] < 0x7f && !strings.ContainsRune(`()<>@,;:\"/[]?={}`, rune(s[i]))) {
		i++
	}
	return s[:i], s[i:]
}

func paramValue(s string) (value, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		end := strings.IndexAny(s, ", \t")
		if end < 0 {
			return s, "", s != ""
		}
		return s[:end], s[end:], end > 0
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			if i++; i == len(s) {
				return "", "", false
			}
			b.WriteByte(s[i])
		case '"':
			return b.String(), s[i+1:], true
		default:
			b.WriteByte(s[i])
		}
	}
	return "", "", false
}

// Scopes reads a list of scopes (RFC 6749, section 3.3). Tokens that are none are left out.
func Scopes(text string) []string {
	out := []string{}
	for s := range strings.FieldsSeq(text) {
		if ValidScope(s) && len(out) < 64 {
			out = append(out, s)
		}
	}
	return out
}

// ValidScope reports whether s is a scope token (RFC 6749, section 3.3), of at most 256 bytes.
func ValidScope(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return s != "" && len(s) <= 256
}
