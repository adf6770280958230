// Package harness installs the agents that acceptance tests drive, at exact versions, starts them, and reads their transcripts into one
// common form. It knows nothing of Sallyport: a command may just as well run an agent directly.
package harness

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

//go:embed package.json package-lock.json .npmrc
var manifest embed.FS

var manifestFiles = []string{"package.json", "package-lock.json", ".npmrc"}

// Program is one installed program.
type Program struct {
	Name    string
	Version string   // as pinned
	Argv    []string // how it is started: absolute paths
	Visible []string // folders that a sandbox must show (read-only) so that it runs; /usr is assumed
	Path    []string // folders that its PATH should begin with
}

// Installed is what [Install] made. Root is never changed again.
type Installed struct {
	Root string
	Bin  string // a folder for PATH with node, claude, claude-2.1.197, codex, pi, mcp-inspector and mcp-server-everything

	Node       Program
	Claude     Program
	ClaudeOld  Program
	Codex      Program
	Pi         Program
	Inspector  Program
	Everything Program
}

// Programs lists all of them.
func (i *Installed) Programs() []Program {
	return []Program{i.Node, i.Claude, i.ClaudeOld, i.Codex, i.Pi, i.Inspector, i.Everything}
}

// CacheDir is where installations are kept: $SALLYPORT_TEST_CACHE, or sallyport-test in the user's cache folder.
func CacheDir() (string, error) {
	if dir := os.Getenv("SALLYPORT_TEST_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("set SALLYPORT_TEST_CACHE to a folder where the harnesses of the tests can be installed: %w", err)
	}
	return filepath.Join(base, "sallyport-test"), nil
}

// Install returns the installation for this manifest and machine, and makes it first if it is not there: about 1.5 GB, half a minute on
// a good line. Processes that install at the same time wait for each other. progress gets a line now and then; nil is silent.
//
// No install script of any package runs: the binaries are taken from the packages that hold them for one platform.
func Install(ctx context.Context, progress io.Writer) (*Installed, error) {
	if progress == nil {
		progress = io.Discard
	}
	if runtime.GOOS != "linux" || arch() == "" {
		return nil, fmt.Errorf("the harnesses of the tests are pinned for Linux on x86-64 and arm64, not for %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	root := filepath.Join(cache, "harness-"+manifestDigest())
	if done, err := installed(root); err == nil {
		return done, nil
	}
	unlock, err := lock(ctx, root+".lock", progress)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if done, err := installed(root); err == nil { // somebody else was faster
		return done, nil
	}
	if err := install(ctx, root, progress); err != nil {
		return nil, err
	}
	return installed(root)
}

func install(ctx context.Context, root string, progress io.Writer) error {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return errors.New("the acceptance tests drive real agents, which npm installs: install Node.js with npm first (on Debian: apt-get install npm)")
	}
	tmp := root + ".part"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	for _, name := range manifestFiles {
		b, err := manifest.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(tmp, name), b, 0o644); err != nil {
			return err
		}
	}
	began := time.Now()
	fmt.Fprintf(progress, "installing the harnesses of the tests into %s (about 1.5 GB)\n", root)
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, npm, "ci", "--loglevel=error", "--no-progress")
	cmd.Dir, cmd.Stdout, cmd.Stderr = tmp, &out, &out
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("npm ci failed in %s: %w: %s", tmp, err, lastLines(out.String(), 5))
	}
	if err := link(tmp, root); err != nil {
		return err
	}
	if err := os.RemoveAll(root); err != nil { // an older one that is not whole
		return err
	}
	if err := os.Rename(tmp, root); err != nil {
		return err
	}
	fmt.Fprintf(progress, "installed in %s\n", time.Since(began).Round(time.Second))
	return nil
}

// link makes the folder for PATH, inside tmp, with links as they are right under root.
func link(tmp, root string) error {
	programs := layout(root)
	bin := filepath.Join(tmp, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	for _, p := range programs.Programs() {
		target := p.Argv[len(p.Argv)-1]
		inTmp := filepath.Join(tmp, strings.TrimPrefix(target, root))
		info, err := os.Stat(inTmp)
		if err != nil {
			return fmt.Errorf("%s %s was not installed as expected: %w", p.Name, p.Version, err)
		}
		if err := os.Chmod(inTmp, info.Mode().Perm()|0o111); err != nil {
			return err
		}
		relative, err := filepath.Rel(programs.Bin, target)
		if err != nil {
			return err
		}
		if err := os.Symlink(relative, filepath.Join(bin, p.Name)); err != nil {
			return err
		}
	}
	return nil
}

// installed checks that root is whole. Only whole installations get their name.
func installed(root string) (*Installed, error) {
	i := layout(root)
	for _, p := range i.Programs() {
		if _, err := os.Stat(filepath.Join(i.Bin, p.Name)); err != nil {
			return nil, err
		}
	}
	return i, nil
}

// layout says where everything is under a root.
func layout(root string) *Installed {
	at := func(parts ...string) string {
		return filepath.Join(append([]string{root, "node_modules"}, parts...)...)
	}
	i := &Installed{Root: root, Bin: filepath.Join(root, "bin")}
	nodeDir := at("node-linux-" + arch())
	node := filepath.Join(nodeDir, "bin", "node")
	script := func(name, version, dir string, file ...string) Program {
		return Program{Name: name, Version: version, Argv: []string{node, filepath.Join(append([]string{dir}, file...)...)}, Path: []string{filepath.Dir(node)}, Visible: []string{nodeDir, dir}}
	}
	i.Node = Program{Name: "node", Version: "22.23.3", Argv: []string{node}, Visible: []string{nodeDir}, Path: []string{filepath.Dir(node)}}
	claude := func(name, version, dir string) Program {
		return Program{Name: name, Version: version, Argv: []string{filepath.Join(dir, "claude")}, Visible: []string{dir}}
	}
	i.Claude = claude("claude", "2.1.332", at("@anthropic-ai", "claude-code-linux-"+arch()))
	i.ClaudeOld = claude("claude-2.1.197", "2.1.197", at("claude-code-2.1.197", "node_modules", "@anthropic-ai", "claude-code-linux-"+arch()))
	triple := map[string]string{"x64": "x86_64-unknown-linux-musl", "arm64": "aarch64-unknown-linux-musl"}[arch()]
	codex := at("@openai", "codex-linux-"+arch(), "vendor", triple)
	i.Codex = Program{Name: "codex", Version: "0.171.0", Argv: []string{filepath.Join(codex, "bin", "codex")}, Visible: []string{codex}, Path: []string{filepath.Join(codex, "codex-path")}}
	i.Pi = script("pi", "1.6.0", at("@earendil-works", "pi-coding-agent"), "dist", "bundle", "cli.js")
	i.Inspector = script("mcp-inspector", "2.12.0", at("@modelcontextprotocol", "inspector"), "clients", "launcher", "build", "index.js")
	i.Everything = script("mcp-server-everything", "2026.8.31", at("@modelcontextprotocol", "server-everything"), "dist", "index.js")
	for _, p := range []*Program{&i.Inspector, &i.Everything} { // they are not bundled
		p.Visible = []string{nodeDir, at()}
	}
	return i
}

// arch is this machine's name in npm's packages, or "".
func arch() string { return map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH] }

// manifestDigest names what is pinned here.
func manifestDigest() string {
	h := sha256.New()
	for _, name := range manifestFiles {
		b, err := manifest.ReadFile(name)
		if err != nil {
			panic(err) // it is embedded
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(b), b)
	}
	fmt.Fprintln(h, runtime.GOARCH)
	return hex.EncodeToString(h.Sum(nil))[:12]
}

// lock takes an exclusive lock on a file; it is gone when the process is.
func lock(ctx context.Context, path string, progress io.Writer) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	said := false
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !said {
			fmt.Fprintln(progress, "another process installs the harnesses; waiting for it")
			said = true
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		}
	}
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}
