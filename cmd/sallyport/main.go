// Command sallyport is everything of Sallyport that does not run in a sandbox: the parts (control, worker, host), their supervisor (up), and the
// operators' command line. A file per command.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"sallyport.dev/errs"
	"sallyport.dev/identity"
)

// Exit codes. run returns the agent's own code, 125 when Sallyport failed before it ran, and 143 when its host ended it.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitUnreachable = 3
	exitNotAllowed  = 4
	exitDecided     = 5
	exitUncertain   = 6
	exitRun         = 125
	exitStopped     = 128 + int(syscall.SIGTERM)
)

// cli is the whole command line: nouns, then verbs.
type cli struct {
	Globals

	Init       initCmd       `cmd:"" help:"Make the state directory, the CA and the keys of this installation."`
	Up         upCmd         `cmd:"" help:"Run control, a worker and a host on this machine, and restart what dies."`
	Run        runCmd        `cmd:"" help:"Run an agent in a closed sandbox: sallyport run --profile dev -- claude"`
	Apply      applyCmd      `cmd:"" help:"Show what sallyport.yaml would change, then change it."`
	Diff       diffCmd       `cmd:"" help:"Show what sallyport.yaml would change."`
	Approve    approveCmd    `cmd:"" help:"Approve a waiting call, after reading it."`
	Deny       denyCmd       `cmd:"" help:"Deny a waiting call, with a reason that reaches the agent."`
	Doctor     doctorCmd     `cmd:"" help:"Look for what would get in the way, and say what to type."`
	Demo       notBuilt      `cmd:"" help:"Not built: make demo, in a checkout, shows the main job."`
	Version    versionCmd    `cmd:"" help:"Print the build."`
	Schema     schemaCmd     `cmd:"" help:"Print the JSON Schema of sallyport.yaml."`
	Completion completionCmd `cmd:"" help:"Print a completion script for bash, zsh or fish."`
	Explain    explainCmd    `cmd:"" help:"Explain a code that a result or an error carries."`

	Control controlCmd `cmd:"" help:"Run control alone."`
	Host    hostCmd    `cmd:"" help:"Run a host alone."`
	Worker  workerCmd  `cmd:"" help:"Run a worker alone."`

	Console     consoleCmd     `cmd:"" help:"Print a one-time link into the console, the pages for browsers."`
	Approvals   approvalsCmd   `cmd:"" help:"Questions that wait for a person."`
	Calls       callsCmd       `cmd:"" help:"The journal of calls."`
	Sessions    sessionsCmd    `cmd:"" help:"Sandboxes and their bindings."`
	Connections connectionsCmd `cmd:"" help:"Remote MCP servers and callbacks."`
	Credentials credentialsCmd `cmd:"" help:"What connections authenticate with: sealed here, opened by a worker alone."`
	Catalogs    catalogsCmd    `cmd:"" help:"Reviewed tools."`
	Profiles    profilesCmd    `cmd:"" help:"What each kind of sandbox may do."`
	Grants      grantsCmd      `cmd:"" help:"Standing and session grants."`
	People      peopleCmd      `cmd:"" help:"Who may come in, and with what."`
	Sandboxes   sandboxesCmd   `cmd:"" help:"Sandboxes of this machine: what runs, what it prints, what is left of it."`
	Hosts       hostsCmd       `cmd:"" help:"Machines that run sandboxes."`
	Workers     workersCmd     `cmd:"" help:"Machines that hold credentials."`
	Enrol       enrolCmd       `cmd:"" help:"Print a one-time token for a new host or worker."`
	Revoke      revokeCmd      `cmd:"" help:"Withdraw access, at once: sallyport revoke connection tracker"`
	Restore     restoreCmd     `cmd:"" help:"Give access back."`
	Harness     harnessCmd     `cmd:"" help:"Configuration for agents that somebody else starts."`
	Store       storeCmd       `cmd:"" help:"The database of control."`
	Audit       auditCmd       `cmd:"" help:"The record of every decision."`

	Attach notBuilt `cmd:"" help:"Not built: open a session for a sandbox that somebody else starts."`
	Login  notBuilt `cmd:"" help:"Not built: sign in by a device code. See people token."`

	Reference referenceCmd `cmd:"" hidden:"" help:"Write the reference pages."`
}

// notBuilt is a command that the design names and this build does not have.
type notBuilt struct {
	Args []string `arg:"" optional:"" passthrough:""`
}

// instead says what does the same today, for commands that have such a thing.
var instead = map[string]string{
	"demo":                "; in a checkout of Sallyport, type: make demo",
	"attach":              "; sallyport run starts a sandbox of its own",
	"login":               "; sallyport people token makes a token for SALLYPORT_TOKEN, and on control's machine no sign-in is needed",
	"sessions park":       "; sallyport sessions close ends one for good",
	"sessions resume":     "; sallyport run starts a new session",
	"connections add":     "; write it into sallyport.yaml (sallyport schema says how), then type: sallyport apply",
	"credentials connect": "; sallyport credentials set stores a token that you have",
	"credentials rotate":  "; sallyport credentials set seals a value again",
}

// Run says so.
func (notBuilt) Run(k *kong.Context) error {
	path := k.Selected().FullPath()
	_, command, _ := strings.Cut(path, " ")
	return errs.Newf(errs.Unavailable, "%s: not built%s", path, instead[command])
}

func main() {
	if len(os.Args) > 1 {
		if helper, ok := helpers[os.Args[1]]; ok {
			os.Exit(helper(os.Args[1:]))
		}
	}
	sleepCoarsely(os.Args[1:])
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// exitError carries an exit code of its own, such as the agent's.
type exitError struct {
	code int
	err  error // printed when not nil
}

func (e exitError) Error() string {
	if e.err != nil {
		return e.err.Error()
	}
	return fmt.Sprintf("exit status %d", e.code)
}

func (e exitError) Unwrap() error { return e.err }

type exitNow int

// run is the command line without a process around it: testscript calls it too.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) (code int) {
	var c cli
	c.in, c.out, c.err = stdin, stdout, stderr
	defer func() {
		if r := recover(); r != nil {
			n, ok := r.(exitNow)
			if !ok {
				fmt.Fprintf(stderr, "sallyport: internal error: %v\n%s", r, debug.Stack())
				code = exitFailed
				return
			}
			code = int(n)
		}
	}()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	parser, err := kong.New(&c,
		kong.Name("sallyport"),
		kong.Description("Tools for agents in closed sandboxes: decided, approved, recorded and revoked, every call."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(n int) { panic(exitNow(n)) }), //nolint:forbidigo // kong's way out of --help; recovered above
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(&c.Globals),
		kong.Vars{"domain": identity.DefaultDomain},
	)
	if err != nil {
		fmt.Fprintf(stderr, "sallyport: %v\n", err)
		return exitFailed
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(stderr, "sallyport: %v\n", err)
		if hint := usageHint(err); hint != "" {
			fmt.Fprintln(stderr, hint)
		}
		return exitUsage
	}
	if err := parsed.Run(); err != nil {
		return c.fail(err)
	}
	return exitOK
}

func usageHint(err error) string {
	var p *kong.ParseError
	if errors.As(err, &p) && p.Context != nil {
		words := []string{"sallyport"}
		for _, w := range strings.Fields(p.Context.Command()) {
			if !strings.HasPrefix(w, "<") { // an argument's place
				words = append(words, w)
			}
		}
		return "Run \"" + strings.Join(words, " ") + " --help\" to see what it takes."
	}
	return ""
}

var exitCodes = map[errs.Code]int{
	errs.Invalid: exitUsage, errs.Unreachable: exitUnreachable, errs.NotAllowed: exitNotAllowed, errs.OutcomeUncertain: exitUncertain, errs.Uncertain: exitUncertain,
}

// decided marks that somebody else was first where a person decides.
func decided(err error) error {
	if errs.Is(err, errs.Conflict) {
		return exitError{code: exitDecided, err: err}
	}
	return err
}

// fail prints an error and returns its exit code.
func (g *Globals) fail(err error) int {
	var e exitError
	if errors.As(err, &e) {
		if e.err != nil {
			g.complain(e.err)
		}
		return e.code
	}
	g.complain(err)
	if n, ok := exitCodes[errs.CodeOf(err)]; ok {
		return n
	}
	return exitFailed
}

// complain prints an error on standard error; with --json as JSON, so that standard output holds the answer alone.
func (g *Globals) complain(err error) {
	message, code := errs.Message(err), errs.CodeOf(err)
	var ours *errs.Error
	if !errors.As(err, &ours) {
		message = err.Error()
	}
	if g.JSON {
		printJSON(g.err, map[string]string{"error": message, "code": string(code)})
		return
	}
	fmt.Fprintf(g.err, "sallyport: %s (%s)\n", visible(message), code)
}
