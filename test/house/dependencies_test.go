package house

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"testing"
)

// Every module that go.mod requires directly stands in docs/dependencies.md with its reason, by the last word of its path that is no version.
func TestDependenciesAreListed(t *testing.T) {
	page, err := os.ReadFile("../../docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	last, direct := regexp.MustCompile(`([^/]+)(/v\d+)?$`), 0
	for _, r := range mod.Require {
		if r.Indirect {
			continue
		}
		direct++
		name := last.FindStringSubmatch(r.Path)[1]
		if !regexp.MustCompile(`\b` + regexp.QuoteMeta(name) + `\b`).Match(page) {
			t.Errorf("docs/dependencies.md does not say what %s is for", r.Path)
		}
	}
	if direct < 10 {
		t.Errorf("only %d direct requirements: the list is wrong", direct)
	}
}
