// Package runner serves the relay directories of a host's sandboxes: it takes the calls that guests publish, carries them to control over the
// host's one link, and publishes what comes back. It knows nothing of tools and policy: it never looks into arguments, and the only results
// that it writes itself say that a call was not taken, or what is known of one whose time is over while control cannot be asked.
//
// Records are sent as calls until control says that it has journaled them, and are only asked for afterwards. Control keeps one row for each
// session and record id, so a record that is sent again after a lost stream or a restart is the same call, never a new one.
//
// A session costs what it does: listings, claims and frames are taken round robin, a few at a time, from sessions that have some; what a
// session holds is bounded, and so is what all hold together.
package runner
