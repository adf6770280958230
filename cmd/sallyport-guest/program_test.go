package main

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// No credential, no network, nobody else's code: what is not linked cannot be misused (I2).
func TestLinks(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}} {{.Standard}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	ours := 0
	for line := range strings.Lines(string(out)) {
		path, standard, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case path == "net" || strings.HasPrefix(path, "net/") || path == "crypto/tls" || path == "os/exec" || path == "plugin" || path == "os/user":
			t.Errorf("links %s", path)
		case standard == "false" && !strings.HasPrefix(path, "sallyport.dev/"):
			t.Errorf("links %s, which is not of the standard library", path)
		case path == "sallyport.dev/relay/hostside" || path == "sallyport.dev/guest/fakehost" || path == "sallyport.dev/guest/bridge":
			t.Errorf("links %s", path)
		case strings.HasPrefix(path, "sallyport.dev/"):
			ours++
		}
	}
	if ours < 5 {
		t.Fatalf("only %d packages of ours: the list is wrong", ours)
	}
}

// Static, stripped, under 5 MB, for both architectures.
func TestPrograms(t *testing.T) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		dir := t.TempDir()
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir, "../sallyport-guest", "../sallyport-bridge")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", arch, err, out)
		}
		for _, name := range []string{"sallyport-guest", "sallyport-bridge"} {
			path := filepath.Join(dir, name)
			st, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if st.Size() >= 5<<20 {
				t.Errorf("%s for %s has %d bytes", name, arch, st.Size())
			}
			f, err := elf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			if f.Machine != machine {
				t.Errorf("%s for %s is for %v", name, arch, f.Machine)
			}
			for _, p := range f.Progs {
				if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
					t.Errorf("%s for %s is not static", name, arch)
				}
			}
			if f.Section(".symtab") != nil || f.Section(".debug_info") != nil {
				t.Errorf("%s for %s is not stripped", name, arch)
			}
			f.Close()
		}
	}
}
