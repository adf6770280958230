package keyring

import (
	"log/slog"
)

// Secret is an opened credential. It shows itself to [Secret.Text] alone and prints as "secret" everywhere else. Wiping it reaches this copy only: what
// a request was made of lies in buffers of the runtime, of TLS and of the kernel, which is why the process is confined and writes no core.
type Secret struct{ b []byte }

// Text returns the secret for building a request; the copy is the caller's.
func (s Secret) Text() string { return string(s.b) }

// Empty reports whether there is no secret: a connection without authentication.
func (s Secret) Empty() bool { return len(s.b) == 0 }

// Wipe overwrites the secret.
func (s Secret) Wipe() { clear(s.b) }

// String redacts.
func (Secret) String() string { return "secret" }

// GoString redacts.
func (Secret) GoString() string { return "secret" }

// MarshalJSON redacts.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"secret"`), nil }

// LogValue redacts.
func (Secret) LogValue() slog.Value { return slog.StringValue("secret") }
