package egress

// Verdict is what the gateway says to one request. Only Allowed is forwarded.
type Verdict string

// Verdicts.
const (
	Allowed           Verdict = "allowed"
	RefusedPath       Verdict = "refused_path"        // not a path, method or query of the model API that agents need
	RefusedBody       Verdict = "refused_body"        // not strict JSON, or not an object
	RefusedMember     Verdict = "refused_member"      // a top-level member that is not on the list
	RefusedServerTool Verdict = "refused_server_tool" // a tool that the provider would run
	RefusedMCP        Verdict = "refused_mcp_servers" // the provider would call another MCP server
	RefusedSource     Verdict = "refused_source"      // content by address or by stored file
	RefusedStored     Verdict = "refused_stored"      // a stored, background or continued response
	RefusedSize       Verdict = "refused_size"        // a bound of bytes or requests
	RefusedOff        Verdict = "refused_off"         // the profile has no model of this provider, or access was withdrawn
	Unreachable       Verdict = "unreachable"         // the provider does not answer
)

// Ruling is a verdict with the words for a person: what was refused, and the name under which a profile can let it in.
type Ruling struct {
	Verdict Verdict
	What    string // such as tools[2].type "web_search_20260209"
	Feature string // the name for model.allow, or "" when nothing lets it in
}

func refuse(v Verdict, what, feature string) Ruling {
	return Ruling{Verdict: v, What: what, Feature: feature}
}

var allowed = Ruling{Verdict: Allowed}
