// Package call is the pipeline of a call: admit, decide, ask, prepare, commit, go, settle, deliver. It is the only capability that calls
// others. Rows are the messages: a decision or a revocation is written by somebody else, and the pipeline reads the row when it is woken.
// Design: docs/journal.md.
package call
