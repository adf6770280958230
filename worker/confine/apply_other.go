//go:build !linux

package confine

// Apply confines nothing: this system has neither landlock nor seccomp.
func Apply(Config) Report { return None("this system has neither landlock nor seccomp") }
