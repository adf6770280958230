// Package hostside is the host's half of the relay: it makes a session's directories, claims what a guest published, publishes results, and
// notices new records without polling idle sessions. It is never linked into a guest.
//
// Everything below out/ is written by somebody whom nobody trusts. The rules that keep a hostile guest's costs its own: names are parsed
// before anything is done with them; only a regular file of the guest's own, small enough, with no links of its own, is taken; it is moved out of the
// guest's reach before it is opened, opened without following a link or waiting, and read once; nothing recursive happens while serving;
// events only wake, the directory is the truth; and every listing, queue and set is bounded.
package hostside
