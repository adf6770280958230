// Command conformance runs the official MCP suite, in its released and its newest alpha version, against Sallyport: the client scenarios against
// the whole path with the worker's client at its end, the server scenarios against the shim in a closed sandbox. What fails must stand in
// expected-failures.yaml with its reason; a line there that does not fail any more fails the run.
//
// Each scenario is run by the real programs: the suite's servers are upstreams of a Sallyport with a state of its own; the suite's clients speak
// to a small front, which starts sallyport run with the shim as its agent and passes messages between HTTP and the shim's pipe.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sallyport.dev/test/rig"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) > 2 && os.Args[1] == "drive" {
		err = drive(ctx, os.Args[2])
	} else {
		err = all(ctx, os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func all(ctx context.Context, args []string) error {
	began := time.Now()
	flags := flag.NewFlagSet("conformance", flag.ContinueOnError)
	side := flags.String("side", "", "client or server; both if it is left out")
	only := flags.String("scenario", "", "one scenario alone")
	dir := flags.String("programs", "", "a folder with the programs, built already")
	if err := flags.Parse(args); err != nil {
		return err
	}
	root, err := rig.Root(ctx)
	if err != nil {
		return err
	}
	known, err := readExpected(filepath.Join(root, "test", "conformance", "expected-failures.yaml"))
	if err != nil {
		return err
	}
	suite, err := install(ctx)
	if err != nil {
		return err
	}
	programs := rig.Programs{}
	if *dir == "" {
		programs, err = rig.Build(ctx, "")
	} else {
		programs.Dir, err = filepath.Abs(*dir)
	}
	if err != nil {
		return err
	}
	bad := 0
	for _, s := range []struct {
		name    string
		entries []entry
		run     func(context.Context, installation, rig.Programs, []run, bool) error
	}{
		{"Client", known.Client, clients},
		{"Server", known.Server, servers},
	} {
		if *side != "" && !strings.EqualFold(*side, s.name) {
			continue
		}
		runs, err := choose(ctx, suite, s.name, *only)
		if err != nil {
			return err
		}
		if err := s.run(ctx, suite, programs, runs, *only == ""); err != nil {
			return err
		}
		bad += report(s.name, runs, judge(s.entries, runs, *only == ""))
	}
	fmt.Printf("took %s\n", time.Since(began).Round(time.Second))
	if bad > 0 {
		return errors.New("not as expected")
	}
	return nil
}

// choose plans the runs of one side.
func choose(ctx context.Context, suite installation, side, only string) (runs []run, err error) {
	for _, version := range []string{released, alpha} {
		list, err := suite.list(ctx, version, side)
		if err != nil {
			return nil, err
		}
		planned, left := plan(version, list)
		fmt.Printf("%s scenarios, %s: %d runs; left out: %d of sign-in, extensions and older revisions\n", side, version, len(planned), left)
		for _, r := range planned {
			if only == "" || r.scenario == only {
				runs = append(runs, r)
			}
		}
	}
	return runs, nil
}

// report prints a side's verdict and returns how much of it is wrong.
func report(side string, runs []run, v verdict) (bad int) {
	whole := 0
	for i := range runs {
		fails := 0
		for _, c := range runs[i].checks {
			if c.failed() {
				fails++
			}
		}
		if fails == 0 {
			whole++
		}
	}
	fmt.Printf("%s scenarios: %d of %d runs without a failure; checks: %d passed, %d failed as expected, %d failed, %d lines stale\n",
		side, whole, len(runs), v.passed, v.known, len(v.unexpected), len(v.stale))
	for _, s := range v.unexpected {
		fmt.Println("  failed:", s)
	}
	for _, s := range v.stale {
		fmt.Println("  stale:", s)
	}
	return len(v.unexpected) + len(v.stale)
}
