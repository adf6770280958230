package grant

import (
	"slices"

	"sallyport.dev/control"
)

// Names reports whether a grant's list of tools (connection/tool or connection/*) holds the tool.
func Names(tools []string, connection, tool string) bool {
	return slices.ContainsFunc(tools, func(name string) bool {
		rest, ok := cutPrefix(name, connection)
		return ok && (rest == "*" || rest == tool)
	})
}

func cutPrefix(name, connection string) (string, bool) {
	if len(name) <= len(connection) || name[len(connection)] != '/' || name[:len(connection)] != connection {
		return "", false
	}
	return name[len(connection)+1:], true
}

// CounterOfGiven is the key of the counter of a standing or session grant, over everybody who uses it.
func CounterOfGiven(id string) string { return "given/" + id }

// CounterOfRule is the key of the counter of a profile's grant: one for each owner, over all their sessions of the profile. It depends on what the
// grant says, so that a changed grant counts anew and a frozen one beside the newest is not counted twice when they are equal.
func CounterOfRule(profile string, owner control.Person, g *control.Grant) string {
	parts := [][]byte{[]byte(g.Rule), []byte(g.When)}
	if g.Limit != nil {
		parts = append(parts, []byte(g.Limit.Per.String()))
	}
	for _, t := range g.Tools {
		parts = append(parts, []byte(t))
	}
	return "rule/" + profile + "/" + control.SumParts("grant counter v1", parts...).String()[:16] + "/" + string(owner)
}
