package main

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"sallyport.dev/test/harness"
)

//go:embed package.json package-lock.json .npmrc
var manifest embed.FS

// installation is the suite, in its two releases, and the Node that runs it.
type installation struct{ root string }

func (i installation) node() string {
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	return filepath.Join(i.root, "node_modules", "node-linux-"+arch, "bin", "node")
}

func (i installation) suite(name string) string {
	return filepath.Join(i.root, "node_modules", "conformance-"+name, "dist", "index.js")
}

// install installs the suite as package-lock.json pins it, unless it is there. Installations that run at the same time do not meet: the last one
// that is whole stays. No install script of a package runs.
func install(ctx context.Context) (installation, error) {
	cache, err := harness.CacheDir()
	if err != nil {
		return installation{}, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return installation{}, err
	}
	sum := sha256.New()
	files := []string{"package.json", "package-lock.json", ".npmrc"}
	for _, name := range files {
		b, err := manifest.ReadFile(name)
		if err != nil {
			return installation{}, err
		}
		sum.Write(b)
	}
	done := installation{filepath.Join(cache, "conformance-"+hex.EncodeToString(sum.Sum(nil))[:12])}
	if _, err := os.Stat(done.root); err == nil {
		return done, nil
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return installation{}, errors.New("the conformance suite comes from npm: install Node.js with npm first (on Debian: apt-get install npm)")
	}
	part, err := os.MkdirTemp(cache, "conformance-part-")
	if err != nil {
		return installation{}, err
	}
	defer os.RemoveAll(part)
	for _, name := range files {
		b, err := manifest.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(part, name), b, 0o644)
		}
		if err != nil {
			return installation{}, err
		}
	}
	fmt.Println("installing the suite (about 240 MB)")
	cmd := exec.CommandContext(ctx, npm, "ci", "--loglevel=error", "--no-progress")
	cmd.Dir = part
	if out, err := cmd.CombinedOutput(); err != nil {
		return installation{}, fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	whole := installation{part}
	for _, path := range []string{whole.node(), whole.suite(released), whole.suite(alpha)} {
		if _, err := os.Stat(path); err != nil {
			return installation{}, fmt.Errorf("the suite was not installed as expected: %w", err)
		}
	}
	if err := os.Chmod(whole.node(), 0o755); err != nil {
		return installation{}, err
	}
	if err := os.Rename(part, done.root); err != nil {
		if _, there := os.Stat(done.root); there != nil {
			return installation{}, err
		}
	}
	return done, nil
}
