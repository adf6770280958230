package egress

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"sallyport.dev/errs"
)

// Key is a model key. It prints as "model key" everywhere.
type Key struct{ value string }

// NewKey keeps a value.
func NewKey(v string) Key { return Key{v} }

// String redacts.
func (Key) String() string { return "model key" }

// GoString redacts.
func (Key) GoString() string { return "model key" }

// LogValue redacts.
func (Key) LogValue() slog.Value { return slog.StringValue("model key") }

// MarshalJSON redacts.
func (Key) MarshalJSON() ([]byte, error) { return []byte(`"model key"`), nil }

// Source is where the host takes a model's key from, and where the model is. It is the host's own configuration (host.yaml): control never sees it.
type Source struct {
	Provider string   `yaml:"provider"` // anthropic | openai
	URL      string   `yaml:"url"`      // origin with an optional base path; default: the provider's own
	Auth     string   `yaml:"auth"`     // api-key (default) | bearer (long-lived plan tokens)
	Env      string   `yaml:"env"`      // exactly one of env, file, command
	File     string   `yaml:"file"`
	Command  []string `yaml:"command"`
}

// Limits of reading a key.
const (
	keyTime = 10 * time.Second
	keyLife = 5 * time.Minute
	maxKey  = 16 << 10
)

// Validate reports what is wrong with a source. Errors: [errs.Invalid].
func (s Source) Validate(name string) error {
	n := 0
	for _, set := range []bool{s.Env != "", s.File != "", len(s.Command) > 0} {
		if set {
			n++
		}
	}
	switch {
	case s.Provider != "anthropic" && s.Provider != "openai":
		return errs.Newf(errs.Invalid, "model source %s: provider must be anthropic or openai", name)
	case n != 1:
		return errs.Newf(errs.Invalid, "model source %s: name exactly one of env, file, command", name)
	case s.Auth != "" && s.Auth != "api-key" && s.Auth != "bearer":
		return errs.Newf(errs.Invalid, "model source %s: auth must be api-key or bearer", name)
	}
	_, err := s.target()
	return err
}

// keys reads a source's key and keeps it for a short while, so that a rotated file or command is picked up.
type keys struct {
	source Source

	mu   sync.Mutex
	key  Key
	read time.Time
}

// get returns the key. Errors: [errs.NotConnected].
func (k *keys) get(ctx context.Context) (Key, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.key.value != "" && time.Since(k.read) < keyLife {
		return k.key, nil
	}
	var raw []byte
	var err error
	switch s := k.source; {
	case s.Env != "":
		raw = []byte(os.Getenv(s.Env))
	case s.File != "":
		raw, err = os.ReadFile(s.File)
	default:
		ctx, cancel := context.WithTimeout(ctx, keyTime)
		defer cancel()
		raw, err = exec.CommandContext(ctx, s.Command[0], s.Command[1:]...).Output() //nolint:gosec // the host's own configuration names it
	}
	raw = bytes.TrimSpace(raw)
	if err != nil || len(raw) == 0 || len(raw) > maxKey || strings.ContainsAny(string(raw), "\r\n\x00") {
		return Key{}, errs.Wrap(errs.NotConnected, "this host has no usable model key: "+k.source.missing(), err)
	}
	k.key, k.read = Key{string(raw)}, time.Now()
	return k.key, nil
}

// missing says where a key should have been, without a path or a command: the agent may read it.
func (s Source) missing() string {
	if s.Env != "" {
		return "set " + s.Env + " for sallyport up (or sallyport host) and start it again"
	}
	return "look at the model source in its host.yaml"
}

// forget drops the key, so that the next request reads it again: the provider refused it.
func (k *keys) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.key = Key{}
}

// authorize writes the key into a request's headers.
func (s Source) authorize(h http.Header, key Key) {
	if s.Provider == "anthropic" && s.Auth != "bearer" {
		h.Set("X-Api-Key", key.value)
		return
	}
	h.Set("Authorization", "Bearer "+key.value)
}
