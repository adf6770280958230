// Command matrix runs the acceptance tests and prints them as the matrix of cases by harness. A case whose parts are not built says so; one that is
// partly built says what is missing.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// harnesses are the columns, by their names in the tests.
var harnesses = []string{"claude", "codex", "pi"}

// row is one case. HARNESS in the name of a test stands for a column's.
type row struct {
	title   string
	tests   []string // all must pass, with what is below them; none: not built
	missing string   // of the case, where it is partly built
}

const governed = "TestGoverned/cases/"

var rows = []row{
	{title: "1 fidelity, 2025-11-25, JSON", tests: []string{governed + "Read/HARNESS/legacy-json"}},
	{title: "2 fidelity, 2025-11-25, SSE", tests: []string{governed + "Read/HARNESS/legacy-sse"}},
	{title: "3 fidelity, 2026-07-28, JSON", tests: []string{governed + "Read/HARNESS/modern-json"}},
	{title: "4 fidelity, 2026-07-28, SSE", tests: []string{governed + "Read/HARNESS/modern-sse"}},
	{title: "5 write, approved", tests: []string{governed + "ApprovedWrite/HARNESS", governed + "PendingWrite/HARNESS", governed + "AwaitedWrite/HARNESS"}},
	{title: "6 write, denied and expired", tests: []string{governed + "DeniedWrite/HARNESS", governed + "ExpiredWrite/HARNESS"}},
	{title: "7 write, unattended", tests: []string{governed + "UnattendedWrite/HARNESS", governed + "LeftAlone/HARNESS"}},
	{title: "8 write, uncertain", tests: []string{governed + "UncertainWrite/HARNESS", "TestRestarts"}},
	{title: "9 cancellation, disconnect"},
	{title: "10 revocation in a live session"},
	{title: "11 OAuth"},
	{title: "12 isolation, closed boot", tests: []string{governed + "Isolated/HARNESS"}, missing: "the allowlist proxy and its tricks"},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	began := time.Now()
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json", "-count=1", "-timeout", "30m"}, append(args, "./test/acceptance")...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	results, rerr := read(out, os.Stderr)
	if err := errors.Join(rerr, ctx.Err()); err != nil {
		return errors.Join(err, cmd.Wait())
	}
	failedTest := cmd.Wait() != nil
	passed, failed, none := table(os.Stdout, results)
	fmt.Printf("%d passed, %d failed, %d not built; %.0f s\n", passed, failed, none, time.Since(began).Seconds())
	if failed > 0 || failedTest {
		return errors.New("a test failed; its lines are above")
	}
	return nil
}

// read follows the tests' events and keeps how each test ended. What failed tests wrote goes to log.
func read(events io.Reader, log io.Writer) (map[string]string, error) {
	results, wrote := map[string]string{}, map[string]*strings.Builder{}
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return results, nil
		}
		if err != nil {
			return nil, err
		}
		var e struct{ Action, Test, Output string }
		if err := json.Unmarshal(line, &e); err != nil {
			fmt.Fprintf(log, "%s", line) // of a build that failed
			continue
		}
		switch e.Action {
		case "output":
			if wrote[e.Test] == nil {
				wrote[e.Test] = &strings.Builder{}
			}
			wrote[e.Test].WriteString(e.Output)
		case "pass", "fail", "skip":
			results[e.Test] = e.Action
			if e.Action == "fail" && wrote[e.Test] != nil {
				fmt.Fprint(log, wrote[e.Test])
			}
			delete(wrote, e.Test)
		}
	}
}

// table prints the matrix and counts its cells.
func table(w io.Writer, results map[string]string) (passed, failed, none int) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "case\t%s\t\n", strings.Join(harnesses, "\t"))
	for _, r := range rows {
		fmt.Fprint(t, r.title)
		for _, h := range harnesses {
			cell := r.cell(results, h)
			switch cell {
			case "passed":
				passed++
			case "not built":
				none++
			default:
				failed++
			}
			fmt.Fprint(t, "\t"+cell)
		}
		note := ""
		if r.missing != "" {
			note = "not built of it: " + r.missing
		}
		fmt.Fprintln(t, "\t"+note)
	}
	t.Flush() //nolint:errcheck // it is for people
	return passed, failed, none
}

// cell is how a case ended for a harness: a test that did not run has not passed.
func (r row) cell(results map[string]string, harness string) string {
	if len(r.tests) == 0 {
		return "not built"
	}
	for _, test := range r.tests {
		test, ran := strings.ReplaceAll(test, "HARNESS", harness), false
		for name, how := range results {
			if name != test && !strings.HasPrefix(name, test+"/") {
				continue
			}
			if how != "pass" {
				return "FAILED" // one that was skipped too
			}
			ran = true
		}
		if !ran {
			return "NOT RUN"
		}
	}
	return "passed"
}
