// Package session freezes what a sandbox may do, and fences its incarnations: bindings, tickets, epochs, the gate.
package session
