// Command mutants breaks each invariant of ARCHITECTURE.md on purpose, patch by patch, and runs the test that must turn red by it: a test that
// stays green proves nothing. Each patch is applied to a copy of what is committed (a git worktree in a temporary directory), and its test must
// be green there before. A patch that does not apply any more, one whose copy does not build, and an invariant without a patch fail the run.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// patience bounds one run of a test, its build included. A mutant that makes its test hang is noticed: such a test fails.
const patience = 5 * time.Minute

func main() {
	only := flag.String("only", "", "run the patches whose names match this pattern")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *only); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, only string) (err error) {
	began := time.Now()
	pattern, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	root, err := output(ctx, ".", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	all, err := Load(filepath.Join(root, "test", "mutants"))
	if err != nil {
		return err
	}
	if changed, err := output(ctx, root, "git", "status", "--porcelain", "--untracked-files=no"); err != nil {
		return err
	} else if changed != "" {
		fmt.Println("Not committed, so not in the copy:\n" + changed)
	}
	dir, err := os.MkdirTemp("", "sallyport-mutants-")
	if err != nil {
		return err
	}
	tree := filepath.Join(dir, "tree")
	if _, err := output(ctx, root, "git", "worktree", "add", "--detach", tree, "HEAD"); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	defer func() {
		_, gone := output(context.WithoutCancel(ctx), root, "git", "worktree", "remove", "--force", tree)
		err = errors.Join(err, gone, os.RemoveAll(dir))
	}()

	green := map[string]error{} // by case: the test of what is committed
	ran, survived, broken := 0, 0, 0
	covered := map[string]bool{}
	fmt.Printf("%-4s  %-34s  %-72s  %-8s  %s\n", "", "patch", "test", "", "time")
	for _, m := range all {
		if !pattern.MatchString(m.Name) {
			continue
		}
		covered[m.Invariant] = true
		ran++
		started := time.Now()
		verdict := "red"
		detail := judge(ctx, tree, &m, green)
		switch {
		case errors.Is(detail, errSurvived):
			survived++
			verdict = "SURVIVED"
		case detail != nil:
			broken++
			verdict = "BROKEN"
		}
		fmt.Printf("%-4s  %-34s  %-72s  %-8s  %4.1f s\n", m.Invariant, m.Name, m.Case(), verdict, time.Since(started).Seconds())
		if detail != nil {
			fmt.Println("      " + m.Breaks + "\n      " + detail.Error())
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	invariants, err := Invariants(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		return err
	}
	var bare []string
	for i := range invariants {
		if only == "" && !covered[i] {
			bare = append(bare, i)
		}
	}
	slices.Sort(bare)
	fmt.Printf("%d patches, %d invariants: %d turned their test red, %d survived, %d could not be run; %.0f s\n",
		ran, len(covered), ran-survived-broken, survived, broken, time.Since(began).Seconds())
	switch {
	case survived+broken > 0:
		return fmt.Errorf("%d of %d patches were not noticed", survived+broken, ran)
	case len(bare) > 0:
		return fmt.Errorf("no patch breaks %s", strings.Join(bare, ", "))
	}
	return nil
}

// errSurvived is a test that stayed green although its invariant is broken.
var errSurvived = errors.New("the test stays green")

// judge runs one mutant: nil means that its test was green and turned red.
func judge(ctx context.Context, tree string, m *Mutant, green map[string]error) error {
	before, known := green[m.Case()]
	if !known {
		before = test(ctx, tree, m)
		green[m.Case()] = before
	}
	if before != nil {
		return fmt.Errorf("the test is not green before: %w", before)
	}
	if _, err := output(ctx, tree, "git", "apply", m.Path); err != nil {
		return fmt.Errorf("the patch does not apply: %w", err)
	}
	defer output(context.WithoutCancel(ctx), tree, "git", "checkout", "--quiet", "--", ".") //nolint:errcheck // the next patch would say so
	// A copy that does not build proves nothing, so that is looked at by itself.
	if _, err := output(ctx, tree, "go", "test", "-vet=off", "-count=1", "-run", "^$", m.Package); err != nil {
		return fmt.Errorf("the patched copy does not build: %w", err)
	}
	err := test(ctx, tree, m)
	if err == nil {
		return errSurvived
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return nil
}

// test runs a mutant's test in the tree. Of a test that does not exist go says that there was nothing to run, and succeeds: that is an error here.
func test(ctx context.Context, tree string, m *Mutant) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var names []string
	for part := range strings.SplitSeq(m.Test, "/") {
		names = append(names, "^"+part+"$")
	}
	text, err := output(ctx, tree, "go", "test", "-vet=off", "-count=1", "-timeout", "60s", "-v", "-run", strings.Join(names, "/"), m.Package)
	if err == nil && !strings.Contains(text, "--- PASS: "+m.Func()) {
		return fmt.Errorf("%s did not run:\n%s", m.Case(), text)
	}
	return err
}

// output runs a command and returns what it printed; an error has the end of it.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	text := strings.TrimSpace(out.String())
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, text[max(0, len(text)-2000):])
	}
	return text, err
}
