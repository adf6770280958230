package egress

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

var responsesMembers = []string{
	"model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "store", "stream", "stream_options", "include",
	"prompt_cache_key", "prompt_cache_retention", "text", "service_tier", "client_metadata", "max_output_tokens", "max_tool_calls", "temperature", "top_p", "truncation",
	"metadata", "user", "safety_identifier", "background", "previous_response_id", "conversation", "prompt",
}

var chatMembers = []string{
	"model", "messages", "tools", "tool_choice", "parallel_tool_calls", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature",
	"top_p", "n", "stop", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs", "response_format", "seed", "user",
	"service_tier", "reasoning_effort", "verbosity", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "metadata", "store", "modalities",
}

// clientTools are tool types whose calls come back to the guest.
var clientTools = []string{"function", "custom", "namespace", "local_shell", "apply_patch"}

// openaiRequest rules on one request of the Responses or Chat Completions API. Pure.
func openaiRequest(method, path, query string, body []byte, allow []string) Ruling {
	if method == "GET" && (path == "/v1/models" || strings.HasPrefix(path, "/v1/models/")) {
		return allowed // the query names the client's version
	}
	known := responsesMembers
	switch {
	case query != "":
		return refuse(RefusedPath, "the query "+query, "")
	case method == "POST" && path == "/v1/responses":
	case method == "POST" && path == "/v1/chat/completions":
		known = chatMembers
	default:
		return refuse(RefusedPath, method+" "+path, "")
	}
	m, err := object(body)
	if err != nil {
		return refuse(RefusedBody, "the body: not strict JSON", "")
	}
	if r := members(m, known, allow); r.Verdict != Allowed {
		return r
	}
	isOff := func(k string) bool { v := string(m[k]); return v == "" || v == "null" || v == "false" }
	// The Responses API stores what does not say store: false.
	if path == "/v1/responses" && string(m["store"]) != "false" && !slices.Contains(allow, "store") {
		return refuse(RefusedStored, "store is not false", "store")
	}
	if path != "/v1/responses" && !isOff("store") && !slices.Contains(allow, "store") {
		return refuse(RefusedStored, "store", "store")
	}
	for _, k := range []string{"background", "previous_response_id", "conversation", "prompt"} {
		if !isOff(k) && !slices.Contains(allow, k) {
			return refuse(RefusedStored, k, k)
		}
	}
	if r := openaiTools(m["tools"], "tools", 0, allow); r.Verdict != Allowed {
		return r
	}
	for _, k := range []string{"input", "messages"} {
		if r := walk(m[k], k, openaiItem); r.Verdict != Allowed {
			return r
		}
	}
	return inputTools(m["input"], allow)
}

// inputTools rules on the tools that items of the input declare (additional_tools, tool_search_output): a tool is no less the provider's for standing
// there.
func inputTools(raw jsontext.Value, allow []string) Ruling {
	if raw.Kind() != '[' {
		return allowed
	}
	items, err := elements(raw)
	if err != nil {
		return refuse(RefusedBody, "input: not strict JSON", "")
	}
	for i, item := range items {
		if item.Kind() != '{' {
			continue
		}
		m, err := object(item)
		if err != nil {
			return refuse(RefusedBody, fmt.Sprintf("input[%d]: not strict JSON", i), "")
		}
		if r := openaiTools(m["tools"], fmt.Sprintf("input[%d].tools", i), 0, allow); r.Verdict != Allowed {
			return r
		}
	}
	return allowed
}

func openaiTools(raw jsontext.Value, path string, depth int, allow []string) Ruling {
	if raw == nil || string(raw) == "null" {
		return allowed
	}
	tools, err := elements(raw)
	if err != nil || depth > 1 {
		return refuse(RefusedBody, path+": not an array of tools", "")
	}
	for i, t := range tools {
		m, err := object(t)
		if err != nil {
			return refuse(RefusedBody, fmt.Sprintf("%s[%d]: not an object", path, i), "")
		}
		kind := text(m["type"])
		// A search among tools that the client does by itself reaches nothing.
		search := kind == "tool_search" && text(m["execution"]) == "client"
		if !search && !slices.Contains(clientTools, kind) && !slices.Contains(allow, kind) {
			return refuse(RefusedServerTool, fmt.Sprintf("%s[%d].type %q", path, i, kind), kind)
		}
		if kind == "namespace" {
			if r := openaiTools(m["tools"], fmt.Sprintf("%s[%d].tools", path, i), depth+1, allow); r.Verdict != Allowed {
				return r
			}
		}
	}
	return allowed
}

// openaiItem refuses media by address and what the provider stores. Arguments and outputs of tools are text to the provider.
func openaiItem(b *block) Ruling {
	if b.fileID || b.fileURL {
		return refuse(RefusedSource, b.where.String()+" by address or stored file", "")
	}
	switch b.kind {
	case "item_reference":
		return refuse(RefusedStored, b.where.String()+" of type item_reference", "")
	case "input_image", "image_url", "computer_screenshot":
		if !inline(b.imageURL) {
			return refuse(RefusedSource, b.where.String()+" by address", "")
		}
	case "mcp_call", "mcp_approval_response", "mcp_list_tools", "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call":
		return refuse(RefusedServerTool, b.where.String()+" of type "+b.kind, b.kind)
	}
	return allowed
}
