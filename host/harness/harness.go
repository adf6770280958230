// Package harness knows the agents' programs: where they are installed, and the configuration under which each of them runs in a sandbox
// with Sallyport's tools, without a question of its own, without a key and without a network.
//
// What is generated is data: files below HOME, environment, arguments. The same is printed for somebody else's runner.
package harness

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox"
)

// Server is the name of Sallyport's MCP server in every harness. It is reserved: see [CheckReserved].
const Server = "sallyport"

// Gateway is where the bridge listens in a sandbox.
const Gateway = "http://127.0.0.1:4180"

// placeholder stands where a harness demands a model key. It is no secret: the gateway drops it and adds the real one.
const placeholder = "sallyport-has-the-key-outside"

// Timeouts of a tool call as a harness is told them. Only Pi extends its own by progress, so it must lie above what a call may be held.
const (
	DefaultTimeout = 2 * time.Minute
	MaxTimeout     = 10 * time.Minute
	// margin is what an answer needs beyond the hold: to be asked for, written, and read.
	margin = 15 * time.Second
)

// Options are what a configuration depends on.
type Options struct {
	// Guest is the command that serves MCP: the guest's program and its arguments. nil: as in our sandboxes.
	Guest []string
	// Gateway is the address of the model gateway; "": [Gateway].
	Gateway string
	// Provider is the model's: anthropic, openai, or none.
	Provider string
	// Workdir is the folder in which the harness is started, Home its HOME; "": as in our sandboxes.
	Workdir, Home string
	// Hold is how long a call may be held while a person thinks.
	Hold time.Duration
	// Sandboxed: it runs in a sandbox of ours. Nested: that sandbox lets it make its own inside.
	Sandboxed, Nested bool
}

// Config is what a harness needs to run with Sallyport.
type Config struct {
	Harness string
	Files   []File   // below HOME
	Env     []string // NAME=VALUE, in addition to [Environment]
	Args    []string // go before the user's own
	Nested  bool     // it makes a sandbox of its own: the driver must allow that
	Notes   []string // what could not be had, in plain words
}

// generators by name. acp and json configure no program: they are printed only.
var generators = map[string]func(Options) (Config, error){
	"claude": claude,
	"codex":  codex,
	"pi":     pi,
}

// Names returns the harnesses that [Generate] knows, sorted.
func Names() []string {
	var names []string
	for name := range generators {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Generate returns the configuration of a harness. Errors: [errs.NotFound] for one that is unknown, [errs.Invalid].
func Generate(name string, o Options) (Config, error) {
	generate, ok := generators[name]
	if !ok {
		return Config{}, errs.Newf(errs.NotFound, "there is no harness %q; there are %s", name, strings.Join(Names(), ", "))
	}
	o, err := o.withDefaults()
	if err != nil {
		return Config{}, err
	}
	c, err := generate(o)
	c.Harness = name
	return c, err
}

// Other is the configuration of a program that is no known harness: it gets the environment, and finds the server's description where
// acp and json print it.
func Other(o Options) (Config, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Config{}, err
	}
	return Config{Harness: "other", Env: o.modelEnv()}, nil
}

func (o Options) withDefaults() (Options, error) {
	if o.Guest == nil {
		o.Guest = []string{sandbox.Guest, "shim"}
	}
	if o.Gateway == "" {
		o.Gateway = Gateway
	}
	switch o.Provider {
	case "":
		o.Provider = "none"
	case "anthropic", "openai", "none":
	default:
		return o, errs.Newf(errs.Invalid, "the model's provider is %q; it is one of anthropic, openai, none", o.Provider)
	}
	if o.Home == "" {
		o.Home = sandbox.Home
	}
	if o.Workdir == "" {
		o.Workdir = o.Home
	}
	if o.Hold < 0 || o.Hold > MaxTimeout-margin {
		return o, errs.Newf(errs.Invalid, "a hold of %s is too long for a harness: at most %s", o.Hold, MaxTimeout-margin)
	}
	return o, nil
}

// Timeout is what the harness is told to wait for a tool: the default, or more where the hold needs it.
func (o Options) Timeout() time.Duration {
	return min(max(DefaultTimeout, o.Hold+2*margin), MaxTimeout)
}

// modelEnv tells programs that follow the usual variables where their model is.
func (o Options) modelEnv() []string {
	switch o.Provider {
	case "anthropic":
		return []string{"ANTHROPIC_BASE_URL=" + o.Gateway + "/anthropic", "ANTHROPIC_API_KEY=" + placeholder}
	case "openai":
		return []string{"OPENAI_BASE_URL=" + o.Gateway + "/openai/v1", "OPENAI_API_KEY=" + placeholder}
	}
	return nil
}

// needs refuses a harness whose model the profile does not give.
func (o Options) needs(name, provider string) error {
	if o.Provider == provider || o.Provider == "none" && !o.Sandboxed {
		return nil
	}
	return errs.Newf(errs.Invalid, "%s needs a model of %s; the profile gives %s", name, provider, o.Provider)
}

// passed are the variables of the caller that reach an agent: how to draw, which language, which time. Nothing else does; a variable may
// hold a credential under any name. The locale's are listed one by one: ssh hands on whatever begins with LC_, so people carry tokens there.
var passed = []string{
	"TERM", "COLORTERM", "NO_COLOR", "TZ", "LANG", "LANGUAGE", "LC_ALL", "LC_ADDRESS", "LC_COLLATE", "LC_CTYPE", "LC_IDENTIFICATION", "LC_MEASUREMENT",
	"LC_MESSAGES", "LC_MONETARY", "LC_NAME", "LC_NUMERIC", "LC_PAPER", "LC_TELEPHONE", "LC_TIME",
}

// Environment is what every agent gets: what may pass of the caller's environment, and what a sandbox needs. paths go before the system's
// own in PATH.
func Environment(caller []string, paths []string) []string {
	env := []string{
		"HOME=" + sandbox.Home, "USER=" + sandbox.InnerUser, "LOGNAME=" + sandbox.InnerUser, "SHELL=/bin/bash", "TMPDIR=/tmp",
		"PATH=" + strings.Join(append(slices.Clone(paths), "/usr/local/bin", "/usr/bin", "/bin"), ":"),
	}
	terminal, language := "dumb", "C.UTF-8"
	for _, entry := range caller {
		name, value, _ := strings.Cut(entry, "=")
		switch {
		case !slices.Contains(passed, name), strings.ContainsFunc(value, odd), len(value) > 128:
		case name == "TERM":
			terminal = value
		case name == "LANG":
			language = value
		default:
			env = append(env, entry)
		}
	}
	return append(env, "TERM="+terminal, "LANG="+language)
}

// odd reports a character that has no place in the variables that pass.
func odd(r rune) bool { return r <= ' ' || r > '~' }

// quote writes a string as JSON and TOML both read it.
func quote(s string) string {
	text, _ := json.Marshal(s) // a string does not fail
	return string(text)
}
