package bridge

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// The package reaches out through one function only, and that one speaks to Unix sockets only. Whoever adds another way to
// connect or to listen meets this test first.
func TestOneWayOut(t *testing.T) {
	allowed := map[string]int{"net.DialUnix": 1, "net.ListenTCP": 1}
	found := map[string]int{}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, imp := range f.Imports {
			switch imp.Path.Value {
			case `"syscall"`, `"net/http"`, `"os/exec"`, `"crypto/tls"`, `"unsafe"`, `"plugin"`:
				t.Errorf("%s imports %s", e.Name(), imp.Path.Value)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			name := sel.Sel.Name
			if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "net" && !isType(name) {
				found["net."+name]++
			}
			if name == "DialContext" || name == "Dial" || name == "Listen" && !isLocal(sel) {
				t.Errorf("%s: %s", e.Name(), name)
			}
			return true
		})
	}
	for name, n := range found {
		if name == "net.IPv4" || name == "net.ErrClosed" {
			continue
		}
		if n != allowed[name] {
			t.Errorf("%s is used %d times, allowed %d", name, n, allowed[name])
		}
	}
	for name, n := range allowed {
		if found[name] != n {
			t.Errorf("%s is used %d times, expected %d: the test no longer sees the code", name, found[name], n)
		}
	}
}

func isType(name string) bool {
	switch name {
	case "TCPAddr", "UnixAddr", "TCPConn", "UnixConn", "TCPListener", "Error":
		return true
	}
	return false
}

func isLocal(sel *ast.SelectorExpr) bool {
	id, ok := sel.X.(*ast.Ident)
	return ok && id.Name == "bridge"
}
