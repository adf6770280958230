// Package acceptance drives real agents (Claude Code in two releases, Codex, Pi, the MCP Inspector) through sallyport run in closed sandboxes. Their
// model follows a script; everything else is real: the programs as they ship, bubblewrap, MCP servers on this machine.
//
// What a test claims it proves three times: by what the server recorded, by the journal, and by what the agent's model was sent and the agent
// reported.
package acceptance
