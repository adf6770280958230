// Package revocation holds the switches: at every level access can be withdrawn, for a time or until restored, and what commits after that does
// not run.
package revocation
