// Command demo shows the main job on one machine: an agent in a closed sandbox makes a read, a write that a person approves, one that a person
// denies, and one whose answer is lost because the worker is killed in its middle. Everything is real but the agent's model and the MCP server, which
// is the fixture of the tests. It cleans up after itself.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

const secret = "demo-secret-7c41"

func main() {
	interactive := flag.Bool("interactive", false, "you approve")
	bin := flag.String("bin", "bin", "where make build put the programs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := demo(ctx, *bin, *interactive); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func demo(ctx context.Context, bin string, interactive bool) error {
	began := time.Now()
	d, err := prepare(ctx, bin, interactive)
	if err != nil {
		return err
	}
	defer d.clean()
	for _, step := range []struct {
		title string
		run   func() error
	}{
		{"An MCP server that wants a credential starts on this machine.", d.startUpstream},
		{"Sallyport starts: control, a worker, a host.", d.startSallyport},
		{"The administrator reads the server's tools, applies the policy, and stores the credential (sealed here; only the worker opens it).", d.configure},
		{"An agent runs in a closed sandbox.", d.runAgent},
		{"What the journal and the server say.", d.proof},
	} {
		fmt.Printf("\n== %s\n", step.title)
		if err := step.run(); err != nil {
			if ctx.Err() != nil {
				return errors.New("stopped")
			}
			d.showLog()
			return err
		}
	}
	fmt.Printf("\nDone in %.1f s. Nothing is left behind.\n", time.Since(began).Seconds())
	return nil
}

// prepare makes a place of the demo's own.
func prepare(ctx context.Context, bin string, interactive bool) (*show, error) {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"sallyport", "fixture-mcp", "demo-agent"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			return nil, fmt.Errorf("%s is not built; run: make demo", name)
		}
	}
	dir, err := os.MkdirTemp("", "sallyport-demo-")
	if err != nil {
		return nil, err
	}
	limit := 2 * time.Minute
	if interactive {
		limit = time.Hour // a person decides
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	return &show{ctx: ctx, cancel: cancel, bin: bin, dir: dir, interactive: interactive}, nil
}
