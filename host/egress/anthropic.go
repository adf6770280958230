package egress

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// anthropicMembers are the top-level members of a Messages request that stay between the guest and the model.
var anthropicMembers = []string{
	"model", "messages", "system", "max_tokens", "metadata", "stop_sequences", "stream", "temperature", "top_k", "top_p", "tools", "tool_choice",
	"thinking", "context_management", "output_config", "output_format", "cache_control", "service_tier", "diagnostics", "speed", "inference_geo", "betas",
}

// anthropicBetas are the beginnings of anthropic-beta values that change how the model answers, and nothing else. The others are left out of the
// request; those of anthropicOutside are refused, because the request would otherwise do less than it says.
var anthropicBetas = []string{
	"claude-code-", "interleaved-thinking-", "fine-grained-tool-streaming-", "context-1m-", "context-management-", "prompt-caching-", "extended-cache-ttl-",
	"token-efficient-tools-", "output-128k-", "structured-outputs-", "effort-", "tool-examples-", "advanced-tool-use-", "dev-full-thinking-", "redact-thinking-",
	"adaptive-thinking-", "prompt-caching-scope-", "tool-search-", "mid-conversation-system-", "afk-mode-", "fast-mode-", "task-budgets-", "oauth-",
	"thinking-token-count-", "summarize-connector-text-", "model-context-window-exceeded-",
}

var anthropicOutside = []string{"mcp-client-", "files-api-", "code-execution-", "web-fetch-", "skills-", "message-batches-", "computer-use-"}

// anthropicRequest rules on one Messages API request. Pure.
func anthropicRequest(method, path, query string, body []byte, allow []string) Ruling {
	switch {
	case query != "" && query != "beta=true":
		return refuse(RefusedPath, "the query "+query, "")
	case method == "HEAD" && (path == "/" || path == ""), method == "GET" && (path == "/v1/models" || strings.HasPrefix(path, "/v1/models/")):
		return allowed
	case method == "POST" && (path == "/v1/messages" || path == "/v1/messages/count_tokens"):
	default:
		return refuse(RefusedPath, method+" "+path, "")
	}
	m, err := object(body)
	if err != nil {
		return refuse(RefusedBody, "the body: not strict JSON", "")
	}
	if m["mcp_servers"] != nil {
		if list, err := elements(m["mcp_servers"]); err != nil || len(list) > 0 {
			return refuse(RefusedMCP, "mcp_servers", "")
		}
		delete(m, "mcp_servers")
	}
	if m["container"] != nil && string(m["container"]) != "null" {
		return refuse(RefusedServerTool, "container", "")
	}
	if r := members(m, append([]string{"container"}, anthropicMembers...), allow); r.Verdict != Allowed {
		return r
	}
	if r := anthropicTools(m["tools"], allow); r.Verdict != Allowed {
		return r
	}
	for _, k := range []string{"messages", "system"} {
		if r := walk(m[k], k, func(b *block) Ruling { return anthropicBlock(b, allow) }); r.Verdict != Allowed {
			return r
		}
	}
	return allowed
}

// anthropicTools lets client-side tools through: without a type, or of type custom. Every other type is one that the provider runs, or whose results
// it fetches.
func anthropicTools(raw jsontext.Value, allow []string) Ruling {
	if raw == nil || string(raw) == "null" {
		return allowed
	}
	tools, err := elements(raw)
	if err != nil {
		return refuse(RefusedBody, "tools: not an array", "")
	}
	for i, t := range tools {
		m, err := object(t)
		if err != nil {
			return refuse(RefusedBody, fmt.Sprintf("tools[%d]: not an object", i), "")
		}
		kind := text(m["type"])
		if m["type"] == nil || string(m["type"]) == "null" || kind == "custom" || slices.Contains(allow, kind) {
			continue
		}
		return refuse(RefusedServerTool, fmt.Sprintf("tools[%d].type %q", i, kind), kind)
	}
	return allowed
}

// anthropicBlock refuses content by address or stored file, and blocks of tools that the provider runs. The input of a tool call is the agent's own
// data and is not content.
func anthropicBlock(b *block, allow []string) Ruling {
	if b.inInput {
		return allowed
	}
	switch b.kind {
	case "url", "file":
		if b.isSource {
			return refuse(RefusedSource, b.where.String()+" of type "+b.kind, "")
		}
	case "container_upload":
		return refuse(RefusedSource, b.where.String()+" of type "+b.kind, "")
	case "server_tool_use", "mcp_tool_use", "mcp_tool_result", "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result":
		if !slices.Contains(allow, b.kind) {
			return refuse(RefusedServerTool, b.where.String()+" of type "+b.kind, b.kind)
		}
	}
	return allowed
}

// anthropicBeta rules on the anthropic-beta header: what is listed passes, what reaches outside is refused, the rest is left out.
func anthropicBeta(values, allow []string) (kept []string, r Ruling) {
	for _, value := range values {
		for beta := range strings.SplitSeq(value, ",") {
			beta = strings.TrimSpace(beta)
			has := func(p string) bool { return strings.HasPrefix(beta, p) }
			switch {
			case beta == "":
			case slices.Contains(allow, beta), slices.ContainsFunc(anthropicBetas, has):
				kept = append(kept, beta)
			case slices.ContainsFunc(anthropicOutside, has):
				return nil, refuse(RefusedServerTool, "the beta "+beta, beta)
			}
		}
	}
	return kept, allowed
}
