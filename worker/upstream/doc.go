// Package upstream makes the one request of a dispatch, and knows how far its bytes came.
//
// A dispatch has two halves. [Client.Prepare] resolves, checks and connects, settles the protocol's era and, on an old server, its session:
// whatever fails there is safe, because no byte of the call has left. [Prepared.Send] writes exactly one request, once, on a connection whose
// bytes are counted, and reads the answer. Its [Outcome] holds facts: how many bytes left, which status came, the exact bytes of the answer,
// and in one word how it failed. What they mean for the call is control's to say.
//
// Nothing here can send a call twice: there is no retry, no redirect, no second connection, and no code of an HTTP client between the request
// and the socket. A write uses a connection that never carried a request: opened by its own Prepare, or a spare under [spareLife] old. The
// questions that a server must be asked first (server/discover, initialize, ping) go over other connections, and are harmless to repeat.
//
// The protocol is MCP over Streamable HTTP, revisions 2024-11-05 to 2025-11-25 (a session is opened first) and 2026-07-28 (stateless), and
// signed HTTP callbacks ([Client.PrepareCallback]). HTTP/1.1 only.
package upstream
