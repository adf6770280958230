package harness_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"sallyport.dev/test/harness"
)

// fakeNPM puts an npm into PATH that does what a script says, and makes the cache of the installations a new folder.
func fakeNPM(t *testing.T, script string) (cache string) {
	t.Helper()
	bin := t.TempDir()
	if script != "" {
		if err := os.WriteFile(filepath.Join(bin, "npm"), []byte("#!/bin/sh\nset -e\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cache = t.TempDir()
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	if script == "" {
		t.Setenv("PATH", bin)
	}
	t.Setenv("SALLYPORT_TEST_CACHE", cache)
	return cache
}

// makeAll is an npm that leaves the files which a real one leaves, counts its runs, and fails where a package's scripts would run.
func makeAll() string {
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	triple := map[string]string{"x64": "x86_64-unknown-linux-musl", "arm64": "aarch64-unknown-linux-musl"}[arch]
	script := "[ \"$1\" = ci ]\n[ -s package.json ]\n[ -s package-lock.json ]\ngrep -q ignore-scripts=true .npmrc\n! grep -q '\"resolved\"' package-lock.json\necho run >> ../runs\n"
	for _, f := range []string{
		"node-linux-" + arch + "/bin/node", "@anthropic-ai/claude-code-linux-" + arch + "/claude", "claude-code-2.1.197/node_modules/@anthropic-ai/claude-code-linux-" + arch + "/claude",
		"@openai/codex-linux-" + arch + "/vendor/" + triple + "/bin/codex", "@earendil-works/pi-coding-agent/dist/bundle/cli.js",
		"@modelcontextprotocol/inspector/clients/launcher/build/index.js", "@modelcontextprotocol/server-everything/dist/index.js",
	} {
		script += fmt.Sprintf("mkdir -p node_modules/%s; echo '#!/bin/sh' > node_modules/%s\n", filepath.Dir(f), f)
	}
	return script
}

// TestInstall installs once, also when several ask at once, and finds it again without npm.
func TestInstall(t *testing.T) {
	cache := fakeNPM(t, makeAll())
	ctx := deadline(t)
	var said bytes.Buffer
	errs := make(chan error, 3)
	for i := range 3 {
		go func() {
			if i == 0 {
				_, err := harness.Install(ctx, &said)
				errs <- err
				return
			}
			_, err := harness.Install(ctx, nil)
			errs <- err
		}()
	}
	for range 3 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if runs, err := os.ReadFile(filepath.Join(cache, "runs")); err != nil || string(runs) != "run\n" {
		t.Errorf("npm ran %q, %v", runs, err)
	}
	if said.Len() == 0 {
		t.Error("nothing was said")
	}
	t.Setenv("PATH", "/nonexistent")
	in, err := harness.Install(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range in.Programs() {
		file := p.Argv[len(p.Argv)-1]
		info, err := os.Stat(file)
		if err != nil || info.Mode().Perm()&0o111 == 0 {
			t.Errorf("%s: %v", p.Name, err)
		}
		if real, err := filepath.EvalSymlinks(filepath.Join(in.Bin, p.Name)); err != nil || real != file {
			t.Errorf("%s leads to %s, %v, not %s", p.Name, real, err, file)
		}
		visible := false
		for _, dir := range p.Visible {
			visible = visible || strings.HasPrefix(file, dir+"/")
		}
		if !visible {
			t.Errorf("%s would not be visible in a sandbox: %v", p.Name, p.Visible)
		}
	}
	leftovers, _ := filepath.Glob(filepath.Join(cache, "*.part"))
	if len(leftovers) > 0 {
		t.Errorf("left over: %v", leftovers)
	}
}

// TestInstallFails says in one sentence what is wrong, leaves nothing that looks whole, and succeeds when asked again.
func TestInstallFails(t *testing.T) {
	fakeNPM(t, "")
	if _, err := harness.Install(deadline(t), nil); err == nil || !strings.Contains(err.Error(), "install Node.js with npm first") || strings.Contains(err.Error(), "\n") {
		t.Errorf("no npm: %v", err)
	}
	cache := fakeNPM(t, "echo 'npm error code E404'; exit 1\n")
	if _, err := harness.Install(deadline(t), nil); err == nil || !strings.Contains(err.Error(), "E404") {
		t.Errorf("npm fails: %v", err)
	}
	whole, _ := filepath.Glob(filepath.Join(cache, "harness-????????????"))
	if len(whole) > 0 {
		t.Errorf("it looks whole: %v", whole)
	}
	bin := strings.SplitN(os.Getenv("PATH"), ":", 2)[0]
	if err := os.WriteFile(filepath.Join(bin, "npm"), []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := harness.Install(deadline(t), nil); err == nil || !strings.Contains(err.Error(), "was not installed as expected") {
		t.Errorf("npm does nothing: %v", err)
	}
	if err := os.WriteFile(filepath.Join(bin, "npm"), []byte("#!/bin/sh\nset -e\n"+makeAll()), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := harness.Install(deadline(t), nil); err != nil {
		t.Errorf("again: %v", err)
	}
}

// TestInstallCancelled gives up while it waits or works.
func TestInstallCancelled(t *testing.T) {
	cache := fakeNPM(t, "echo begun > ../begun\nexec sleep 1000\n")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := harness.Install(ctx, nil)
		done <- err
	}()
	p, err := harness.Start(deadline(t), harness.Command{Kind: harness.Pi, Argv: []string{"/bin/sh", "-c", "until [ -e begun ]; do sleep 0.01; done"}, Dir: cache, Env: []string{"PATH=/usr/bin:/bin"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	waiting, stop := context.WithCancel(t.Context())
	stop()
	if _, err := harness.Install(waiting, nil); err == nil {
		t.Error("it did not wait for the lock")
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("it went on")
	}
}
