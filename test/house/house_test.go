// Package house proves the layout: which package may import which (ARCHITECTURE.md, "Zones"), and what the guest's programs link. The linter says
// the same to an editor; this asks the compiler's own list.
package house

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "sallyport.dev"

type listed struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Standard     bool
}

func list(t *testing.T, args ...string) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Imports,TestImports,XTestImports,Standard"}, args...)...)
	cmd.Dir = "../.."
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var pkgs []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p listed
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
	return pkgs
}

func room(path string) []string {
	rest, ok := strings.CutPrefix(path, module+"/")
	if !ok {
		return nil
	}
	return strings.Split(rest, "/")
}

var zones = []string{"guest", "host", "control", "worker", "console"}

// allowed says whether a package of ours may import another, and why not.
func allowed(from, to string) string {
	f, t := room(from), room(to)
	if f == nil || t == nil {
		return ""
	}
	zone := func(parts []string) string {
		if slices.Contains(zones, parts[0]) {
			return parts[0]
		}
		return ""
	}
	contract := slices.Contains([]string{"relay", "api", "intent", "identity", "errs"}, f[0])
	switch {
	case zone(f) != "" && zone(t) != "" && f[0] != t[0]:
		return "a zone never imports another zone"
	case contract && zone(t) != "":
		return "a contract imports no zone"
	case contract && f[0] != t[0] && t[0] != "errs":
		// A contract imports nothing of ours but errs; identity speaks api's Join.
		if f[0] == "identity" && t[0] == "api" {
			return ""
		}
		return "a contract imports nothing of ours but errs"
	case f[0] == "guest" && slices.Contains([]string{"api", "intent", "identity", "telemetry"}, t[0]):
		return "the guest speaks the relay only"
	case f[0] == "host" && t[0] == "intent":
		return "intents are between control and worker"
	case f[0] == "worker" && t[0] == "relay" && len(t) == 1:
		return ""
	case zone(f) != "" && (t[0] == "cmd" || t[0] == "test" || t[0] == "bench"):
		return "a zone imports no program and no fixture"
	}
	if f[0] != "control" || t[0] != "control" || len(f) < 2 || len(t) < 2 || f[1] == t[1] {
		return ""
	}
	// Rooms of control. Capabilities do not import each other: rows are the messages.
	capability := []string{"journal", "call", "inbox", "grant", "catalog", "connection", "session", "revocation", "audit", "notify"}
	switch f[1] {
	case "call", "sqlstore", "server", "config", "storetest", "memstore":
		return ""
	}
	if slices.Contains(capability, f[1]) && slices.Contains(capability, t[1]) && t[1] != "journal" {
		return "capabilities do not import each other"
	}
	if slices.Contains(capability, f[1]) && (t[1] == "sqlstore" || t[1] == "server") {
		return "a capability knows neither its store nor the API"
	}
	return ""
}

func TestZones(t *testing.T) {
	pkgs := list(t, "./...")
	if len(pkgs) < 10 {
		t.Fatalf("only %d packages: the list is wrong", len(pkgs))
	}
	for _, p := range pkgs {
		for _, imp := range p.Imports {
			if why := allowed(p.ImportPath, imp); why != "" {
				t.Errorf("%s imports %s: %s", p.ImportPath, imp, why)
			}
		}
	}
}

// The rule itself can fail: each row is an import that must be refused.
func TestRuleRefuses(t *testing.T) {
	for _, c := range [][2]string{
		{"guest/shim", "host/runner"},
		{"host/runner", "control"},
		{"control/server", "worker"},
		{"worker/executor", "control/journal"},
		{"relay", "host/runner"},
		{"guest/shim", "api/sallyport/v1"},
		{"host/runner", "intent"},
		{"control/grant", "control/inbox"},
		{"control/inbox", "control/sqlstore"},
		{"intent", "relay"},
		{"control/call", "test/fixture/model"},
	} {
		if allowed(module+"/"+c[0], module+"/"+c[1]) == "" {
			t.Errorf("%s may import %s", c[0], c[1])
		}
	}
}

// I2: sallyport-guest links no network package, and both guest programs are of the standard library and ours alone.
func TestGuestLinks(t *testing.T) {
	for _, program := range []string{"sallyport-guest", "sallyport-bridge"} {
		for _, p := range list(t, "-deps", "./cmd/"+program) {
			network := p.ImportPath == "net" || strings.HasPrefix(p.ImportPath, "net/") || p.ImportPath == "crypto/tls"
			if program == "sallyport-guest" && network {
				t.Errorf("%s links %s", program, p.ImportPath)
			}
			if !p.Standard && room(p.ImportPath) == nil {
				t.Errorf("%s links %s, which is not of the standard library", program, p.ImportPath)
			}
		}
	}
}

// I3: control seals nothing, opens nothing, and holds no key that could: of the room of sealed secrets it uses only what reads an envelope's outside.
func TestControlCannotOpen(t *testing.T) {
	outside := map[string]bool{"AssociatedData": true, "ParsePublicKey": true, "Bound": true}
	uses := 0
	err := filepath.WalkDir("../../control", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		name := ""
		for _, imp := range f.Imports {
			switch imp.Path.Value {
			case strconv.Quote(module + "/intent/seal"):
				if name = "seal"; imp.Name != nil {
					name = imp.Name.Name
				}
			case `"crypto/hpke"`, `"crypto/ecdh"`:
				t.Errorf("%s imports %s", path, imp.Path.Value)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok || name == "" {
				return true
			}
			if pkg, ok := s.X.(*ast.Ident); ok && pkg.Name == name {
				if uses++; !outside[s.Sel.Name] {
					t.Errorf("%s uses %s.%s", path, name, s.Sel.Name)
				}
			}
			return true
		})
		if name == "." || name == "_" {
			t.Errorf("%s hides what it uses of sealed secrets", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if uses == 0 {
		t.Error("control uses no envelope: the test no longer sees the code")
	}
}
