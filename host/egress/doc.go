// Package egress is the guest's only way out: one Unix socket per session, behind the sandbox's bridge. It serves the model gateway
// (/anthropic, /openai) and refuses everything else. The host adds the model's key; the guest's own authorization never passes.
//
// The gateway is strict because a model provider is itself a way out: a request may ask it to fetch an address, to call an MCP server, to run code
// or to store. Bodies are parsed strictly, and what was parsed is what is sent: the exact bytes, never a re-encoding.
package egress
