package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

// Programs is a folder with the built programs: sallyport, fixture-mcp, fixture-model, rig-attach, stopper, hostile-guest, and those of the guest in
// linux-ARCH/.
type Programs struct{ Dir string }

// Path is one of them.
func (p Programs) Path(name string) string { return filepath.Join(p.Dir, name) }

// Guest is one of the guest's programs.
func (p Programs) Guest(name string) string {
	return filepath.Join(p.Dir, "linux-"+runtime.GOARCH, name)
}

// commands are what is built, by their packages: ship is how the project ships them.
var commands = []struct {
	name, pkg string
	guest     bool
}{
	{"sallyport", "./cmd/sallyport", false},
	{"sallyport-guest", "./cmd/sallyport-guest", true},
	{"sallyport-bridge", "./cmd/sallyport-bridge", true},
	{"fixture-mcp", "./test/fixture/cmd/fixture-mcp", false},
	{"fixture-model", "./test/fixture/cmd/fixture-model", false},
	{"rig-attach", "./test/rig/attach", false},
	{"stopper", "./test/chaos/stopper", false},
	{"hostile-guest", "./test/hostile/guest", false},
}

var building sync.Mutex

// Build builds the programs into dir, as the project ships them; what is built already, and fresh, costs a moment. "" is bin/ of the checkout.
func Build(ctx context.Context, dir string) (Programs, error) {
	building.Lock()
	defer building.Unlock()
	root, err := Root(ctx)
	if err != nil {
		return Programs{}, err
	}
	if dir == "" {
		dir = filepath.Join(root, "bin")
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return Programs{}, err
	}
	p := Programs{Dir: dir}
	for _, c := range commands {
		out := p.Path(c.name)
		if c.guest {
			out = p.Guest(c.name)
		}
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, c.pkg)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			return Programs{}, fmt.Errorf("building %s: %w\n%s", c.name, err, text)
		}
	}
	return p, nil
}

// Root is the checkout that the working directory lies in.
func Root(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("this is not a checkout of the project: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
