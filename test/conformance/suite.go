package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The two releases of the suite.
const (
	released = "released"
	alpha    = "alpha"
)

// specs are the revisions of the protocol that scenarios are run in. The older ones have no scenario of their own outside of sign-in.
var specs = []string{"2025-11-25", "2026-07-28"}

const success = "SUCCESS"

// check is one check of a run, as the suite writes it.
type check struct {
	ID           string          `json:"id"`
	Name         string          `json:"name"`
	Status       string          `json:"status"` // SUCCESS, FAILURE, WARNING, SKIPPED, INFO
	ErrorMessage string          `json:"errorMessage"`
	Details      json.RawMessage `json:"details"`
}

// failed counts warnings, as the suite's own baseline does: they stand for what the protocol says should be.
func (c check) failed() bool { return c.Status == "FAILURE" || c.Status == "WARNING" }

func (c check) why() string {
	if c.ErrorMessage != "" {
		return c.Name + ": " + c.ErrorMessage
	}
	return fmt.Sprintf("%s: %.300s", c.Name, c.Details)
}

// run is one scenario in one release and revision.
type run struct {
	suite, spec, scenario string
	checks                []check
}

func (r *run) String() string { return strings.Join([]string{r.suite, r.spec, r.scenario}, " ") }

// scenario is a line of the suite's list.
type scenario struct {
	name  string
	specs []string
}

var listed = regexp.MustCompile(`^  - (\S+) \[(.*)\]$`)

// list asks a release for its scenarios: "Client" or "Server".
func (i installation) list(ctx context.Context, suite, side string) ([]scenario, error) {
	out, err := exec.CommandContext(ctx, i.node(), i.suite(suite), "list").Output()
	if err != nil {
		return nil, fmt.Errorf("the %s suite lists nothing: %w", suite, err)
	}
	var all []scenario
	within := false
	for line := range strings.Lines(string(out)) {
		line = strings.TrimRight(line, "\n")
		if m := listed.FindStringSubmatch(line); m == nil {
			within = strings.HasPrefix(line, side+" scenarios")
		} else if within {
			all = append(all, scenario{m[1], strings.Split(m[2], ",")})
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the %s suite lists no scenarios of this side: %q", suite, out)
	}
	return all, nil
}

// plan says which runs a release's scenarios make. The released one has one revision for each scenario; extensions and sign-in are left out.
func plan(suite string, all []scenario) (runs []run, left int) {
	for _, s := range all {
		n := len(runs)
		for _, spec := range specs {
			if slices.Contains(s.specs, spec) && !strings.HasPrefix(s.name, "auth/") && (suite == alpha || n == len(runs)) {
				runs = append(runs, run{suite: suite, spec: spec, scenario: s.name})
			}
		}
		if n == len(runs) {
			left++
		}
	}
	return runs, left
}

// scenarioTime bounds one scenario. It only ends what hangs.
const scenarioTime = 90 * time.Second

// tryEach runs each scenario by itself; args say against what.
func (i installation) tryEach(ctx context.Context, runs []run, args ...string) error {
	for n := range runs {
		if err := i.try(ctx, runs[n:n+1], append(args, "--scenario", runs[n].scenario)...); err != nil {
			return err
		}
	}
	return nil
}

// tryAll runs the scenarios of each release and revision at once: every one of them, so runs must be whole.
func (i installation) tryAll(ctx context.Context, runs []run, args ...string) error {
	for len(runs) > 0 {
		n := 1
		for n < len(runs) && runs[n].suite == runs[0].suite && runs[n].spec == runs[0].spec {
			n++
		}
		if err := i.try(ctx, runs[:n], append(args, "--suite", "all")...); err != nil {
			return err
		}
		runs = runs[n:]
	}
	return nil
}

// try starts the suite once, for runs of one release and revision, and reads what it wrote of them.
func (i installation) try(ctx context.Context, runs []run, args ...string) error {
	dir, err := os.MkdirTemp("", "conformance-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r := &runs[0]
	args = append([]string{i.suite(r.suite)}, append(args, "-o", dir)...)
	if r.suite == alpha {
		args = append(args, "--spec-version", r.spec)
	}
	if r.suite == alpha || args[1] == "client" { // the released one does not bound its server scenarios
		args = append(args, "--timeout", strconv.FormatInt(scenarioTime.Milliseconds(), 10))
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(len(runs)+1)*scenarioTime)
	defer cancel()
	// That scenarios fail is no error here: what counts is what is written.
	said, ran := exec.CommandContext(ctx, i.node(), args...).CombinedOutput()
	for n := range runs {
		if err := runs[n].read(dir); err != nil {
			return fmt.Errorf("%s: %w\n%s", &runs[n], errors.Join(err, ran), said)
		}
	}
	// The client's own end is not among the checks.
	if why := exited.Find(said); why != nil {
		r.checks = append(r.checks, check{ID: "driver", Name: "Driver", Status: "FAILURE", ErrorMessage: string(why)})
	}
	for n := range runs {
		runs[n].print()
	}
	return nil
}

var exited = regexp.MustCompile(`(?s)Client timed out|Client exited with code.{0,1000}`)

// read reads the checks of a run: in a folder that is named by side, scenario and time.
func (r *run) read(dir string) error {
	found, err := filepath.Glob(filepath.Join(dir, "*"+r.scenario+"-20*", "checks.json"))
	if err != nil {
		return err
	}
	for _, path := range found {
		name := strings.TrimPrefix(filepath.Base(filepath.Dir(path)), "server-")
		if !strings.HasPrefix(name, r.scenario+"-20") {
			continue // another one, whose name ends like this one's
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return json.Unmarshal(data, &r.checks)
	}
	return errors.New("no checks were written")
}

func (r *run) print() {
	passed, failed := 0, 0
	for _, c := range r.checks {
		if c.failed() {
			failed++
			fmt.Printf("    %s: %s\n", c.ID, c.why())
		} else if c.Status == success {
			passed++
		}
	}
	fmt.Printf("  %s: %d passed, %d failed\n", r, passed, failed)
}
