// Package telemetry sets up logs and metrics, the same way in every process. Values that a person typed or a server sent go into fields, never into
// messages; secrets have types that print without their value.
package telemetry

import (
	"io"
	"log/slog"
)

// LogFlags are a process's flags for its log.
type LogFlags struct {
	Format string `help:"text or json." enum:"text,json" default:"text"`
	Level  string `help:"debug, info, warn or error." enum:"debug,info,warn,error" default:"info"`
}

// Logger returns a structured logger on w.
func (f LogFlags) Logger(w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.Level)); err != nil {
		level = slog.LevelInfo
	}
	opts := &slog.HandlerOptions{Level: level}
	if f.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// Args are the flags as arguments for a part that is started with the same ones.
func (f LogFlags) Args() []string {
	var out []string
	if f.Format != "" {
		out = append(out, "--log-format="+f.Format)
	}
	if f.Level != "" {
		out = append(out, "--log-level="+f.Level)
	}
	return out
}
