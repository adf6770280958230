package house

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// guards are the linter's rules of imports, as .golangci.yml has them.
type guards map[string]struct {
	Mode  string   `yaml:"list-mode"`
	Files []string `yaml:"files"`
	Allow []string `yaml:"allow"`
	Deny  []struct {
		Pkg string `yaml:"pkg"`
	} `yaml:"deny"`
}

func readGuards(t *testing.T) guards {
	t.Helper()
	data, err := os.ReadFile("../../.golangci.yml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Linters struct {
			Enable   []string `yaml:"enable"`
			Settings struct {
				Depguard struct {
					Rules guards `yaml:"rules"`
				} `yaml:"depguard"`
			} `yaml:"settings"`
		} `yaml:"linters"`
	}
	if err := yaml.Unmarshal(data, &config); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(config.Linters.Enable, " "), "depguard") {
		t.Fatal("depguard is not enabled")
	}
	return config.Linters.Settings.Depguard.Rules
}

// refuses says which rule of the linter refuses that a file of a package (no test) imports another.
func (g guards) refuses(from, imported string) string {
	file := "/src/" + strings.TrimPrefix(from, module+"/") + "/file.go"
	for name, r := range g {
		applies := false
		for _, f := range r.Files {
			if !strings.HasPrefix(f, "!") {
				pattern := strings.NewReplacer(`\*\*/`, "(.*/)?", `\*`, "[^/]*").Replace(regexp.QuoteMeta(f))
				applies = applies || regexp.MustCompile("^"+pattern+"$").MatchString(file)
			}
		}
		if !applies {
			continue
		}
		// A list's entry is a prefix, or with $ the whole; the longer match decides.
		longest := func(list []string) (n int) {
			for _, p := range list {
				whole, exact := strings.CutSuffix(p, "$")
				if exact && whole == imported || !exact && strings.HasPrefix(imported, p) {
					n = max(n, len(whole))
				}
			}
			return n
		}
		var denied []string
		for _, d := range r.Deny {
			denied = append(denied, d.Pkg)
		}
		no, yes := longest(denied), longest(r.Allow)
		if r.Mode == "strict" && yes == 0 && strings.Contains(imported, ".") || no > yes {
			return name
		}
	}
	return ""
}

// Whatever TestZones refuses between rooms that exist, the linter refuses too: an editor shows it as it is typed. And it refuses nothing that stands.
func TestLinterProvesTheHouse(t *testing.T) {
	g, pkgs := readGuards(t), list(t, "./...")
	pairs := 0
	for _, from := range pkgs {
		for _, to := range pkgs {
			if why := allowed(from.ImportPath, to.ImportPath); why != "" {
				if pairs++; g.refuses(from.ImportPath, to.ImportPath) == "" {
					t.Errorf("the linter lets %s import %s: %s", from.ImportPath, to.ImportPath, why)
				}
			}
		}
		for _, imp := range from.Imports {
			if rule := g.refuses(from.ImportPath, imp); rule != "" {
				t.Errorf("the linter's rule %s refuses that %s imports %s, which the house allows", rule, from.ImportPath, imp)
			}
		}
	}
	if pairs < 1000 {
		t.Errorf("only %d pairs are refused: the list is wrong", pairs)
	}
	for _, c := range [][2]string{{"relay", "net"}, {"relay/hostside", "net/http"}, {"worker/link", "database/sql"}, {"errs", "golang.org/x/sys/unix"}} {
		if g.refuses(module+"/"+c[0], c[1]) == "" {
			t.Errorf("the linter lets %s import %s", c[0], c[1])
		}
	}
}
