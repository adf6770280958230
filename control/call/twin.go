package call

import (
	"bytes"
	"slices"

	"sallyport.dev/control"
	"sallyport.dev/relay/strictjson"
)

// canonical is the lossless canonical form of checked JSON: members sorted by their names, no white space, every literal as it was written. Two
// texts of one canonical form are the same call; texts that only some parser would call equal (1.0 and 1, "é" and "\u00e9") are not.
func canonical(dst, raw []byte) []byte {
	if len(raw) == 0 {
		return dst
	}
	switch raw[0] {
	case '{':
		type member struct{ name, value []byte }
		var all []member
		for name, v := range strictjson.Each(raw) {
			all = append(all, member{name, v})
		}
		slices.SortFunc(all, func(a, b member) int { return bytes.Compare(a.name, b.name) })
		dst = append(dst, '{')
		for i, m := range all {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = strictjson.AppendQuote(dst, string(m.name))
			dst = append(dst, ':')
			dst = canonical(dst, m.value)
		}
		return append(dst, '}')
	case '[':
		dst = append(dst, '[')
		first := true
		for v := range strictjson.Elements(raw) {
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = canonical(dst, v)
		}
		return append(dst, ']')
	}
	return append(dst, raw...)
}

// twinOf is the digest that equal writes share, over all sessions of one owner and profile: the same connection, account, tool and canonical
// arguments. SumParts("twin v1", org, owner, profile, connection, account, tool, canonical arguments).
func twinOf(c *control.Call) control.Digest {
	return control.SumParts("twin v1", []byte(c.Org), []byte(c.Owner), []byte(c.Profile), []byte(c.Connection), []byte(c.Account), []byte(c.Tool),
		canonical(make([]byte, 0, len(c.Arguments)), bytes.TrimSpace(c.Arguments)))
}
