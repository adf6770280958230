// Command bench measures what Sallyport adds to a tool call, and what it costs, on this machine: the rows of docs/evidence.md. It writes
// bench/out/latest.json, everything it knows into bench/out/detail.json, and tables for people. Both sides of a ratio are measured in one run, in
// turns. It starts real processes and leaves nothing behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"sallyport.dev/relay/relaybench"
	"sallyport.dev/test/rig"
)

func main() {
	relaybench.Main()
	if os.Getenv(sdkEnv) != "" {
		exit(serveSDK())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, os.Args[1:]))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// bench is one run.
type bench struct {
	programs rig.Programs
	quick    bool
	report   *report
	plots    string // folder for the plots; "" draws none
	unclean  error  // what could not be cleaned up
}

// n is how often something is measured.
func (b *bench) n(whole, quick int) int {
	if b.quick {
		return quick
	}
	return whole
}

func (b *bench) span(whole, quick time.Duration) time.Duration {
	if b.quick {
		return quick
	}
	return whole
}

func (b *bench) note(err error) { b.unclean = errors.Join(b.unclean, err) }

// group is what is measured together, and can be chosen by its name.
type group struct {
	name string
	rows func(*bench, context.Context) error
}

var groups = []group{
	{"machine", (*bench).machineRows},
	{"relay", (*bench).relayRows},
	{"path", (*bench).pathRows},
	{"sdk", (*bench).sdkRows},
	{"peers", (*bench).peersRows},
	{"revoke", (*bench).revokeRow},
	{"neighbour", (*bench).neighbourRow},
	{"idle", (*bench).idleRows},
	{"growth", (*bench).sessionsRows},
	{"journal", (*bench).journalRows},
}

func groupNames() (all []string) {
	for _, g := range groups {
		all = append(all, g.name)
	}
	return all
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "less of everything: under a minute, and less sure")
	only := flags.String("only", "", "measure only the groups whose names match: "+strings.Join(groupNames(), ", "))
	bin := flags.String("bin", "", "folder for the built programs; default: bin/ of the checkout")
	plots := flags.String("plots", "", "folder for the plots of growth; default: docs of the checkout, and none with --quick")
	out := flags.String("out", "", "folder for the numbers; default: bench/out of the checkout")
	if err := flags.Parse(args); err != nil {
		return err
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	var all []group
	for _, g := range groups {
		if wanted.MatchString(g.name) {
			all = append(all, g)
		}
	}
	if len(all) == 0 {
		return fmt.Errorf("no group matches %q; there are %s", *only, strings.Join(groupNames(), ", "))
	}
	root, err := rig.Root(ctx)
	if err != nil {
		return err
	}
	if *out == "" {
		*out = filepath.Join(root, "bench", "out")
	}
	if *plots == "" && !*quick {
		*plots = filepath.Join(root, "docs")
	}
	began := time.Now()
	b := &bench{quick: *quick, plots: *plots, report: &report{progress: os.Stderr}}
	fmt.Fprintln(os.Stderr, "building")
	if b.programs, err = rig.Build(ctx, *bin); err != nil {
		return err
	}
	if b.report.Machine, err = look(); err != nil {
		return err
	}
	b.report.Machine.Quick = *quick
	for _, g := range all {
		fmt.Fprintf(os.Stderr, "%s (%.0f s)\n", g.name, time.Since(began).Seconds())
		if err := g.rows(b, ctx); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", g.name, err), b.unclean)
		}
	}
	for _, id := range []string{"pump_p50_ms", "pump_calls_per_call", "pump_idle_per_min"} {
		b.report.missing(id, "not built")
	}
	b.report.Machine.LoadAfter = loadAverage()
	b.report.print(os.Stdout)
	fmt.Printf("\n%.0f s; %s\n", time.Since(began).Seconds(), filepath.Join(*out, "latest.json"))
	return errors.Join(b.report.write(*out), b.unclean)
}

// machineRows are the machine's own prices.
func (b *bench) machineRows(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "sallyport-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	n := b.n(400, 100)
	sync, err := fsync(dir, n)
	if err != nil {
		return err
	}
	tls, err := handshake(ctx, n)
	if err != nil {
		return err
	}
	b.report.add(
		row{ID: "fsync_ms", Value: ms(sync.p50()), Unit: "ms", N: n, goal: "(0.11-0.15 here)", note: fmt.Sprintf("p99 %.2f; where the states lie", ms(sync.p99()))},
		row{ID: "tls_ms", Value: ms(tls.p50()), Unit: "ms", N: n, goal: "-", note: "TCP and TLS 1.3, one machine"},
	)
	return nil
}

// pathRows measure the whole way.
func (b *bench) pathRows(ctx context.Context) error {
	w, err := openPath(ctx, b.programs, 16, options{})
	if err != nil {
		return err
	}
	defer func() { b.note(w.close()) }()
	for _, measure := range []func(context.Context, *path) error{b.guestRows, b.oneAtATime, b.many, b.large} {
		if err := measure(ctx, w); err != nil {
			return errors.Join(err, errors.New(tail(w.rig.Log())))
		}
	}
	return nil
}

func tail(log string) string { return "the end of the log:\n" + log[max(0, len(log)-2000):] }

// sdkRows measure the whole way to a server made with the official Go SDK, whose own work is larger: what the goals and the other proxies were
// measured with. They stand beside the rows, not among them.
func (b *bench) sdkRows(ctx context.Context) error {
	w, err := openPath(ctx, b.programs, 16, options{sdk: true})
	if err != nil {
		return err
	}
	defer func() { b.note(w.close()) }()
	aside := &bench{programs: b.programs, quick: true, report: &report{progress: os.Stderr}}
	for _, measure := range []func(context.Context, *path) error{aside.oneAtATime, aside.many} {
		if err := measure(ctx, w); err != nil {
			return errors.Join(err, errors.New(tail(w.rig.Log())))
		}
	}
	b.report.SDK = aside.report
	return nil
}
