// Package shim is the MCP server of a sandbox: it speaks with the harness on stdio, and hands each tools/call to the host as a record in the
// relay directory.
//
// It serves two eras of the protocol on one pipe and decides by request which one applies: the handshake era (initialize, revisions 2024-11-05
// to 2025-11-25) and the stateless era (2026-07-28, where every request carries its revision in _meta). Ids, arguments and results stay the
// bytes that they were: what is added or taken away is spliced, never encoded again, so numbers, unknown members and their order survive.
//
// The shim knows no policy. A refusal, a pending approval and an uncertain outcome are results that control wrote; the shim writes texts of its
// own only where no host answers. It never ends because of something behind it: some harnesses never start a server again.
package shim
