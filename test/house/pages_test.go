package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every test that ARCHITECTURE.md names must exist: an invariant without its test is a wish.
func TestArchitectureNamesRealTests(t *testing.T) {
	page, err := os.ReadFile("../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	err = filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllStringSubmatch(string(b), -1) {
			have[m[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| (I\d+) \|.*\| (.*) \|$`).FindAllStringSubmatch(string(page), -1)
	if len(rows) != 16 {
		t.Fatalf("%d invariants, want 16", len(rows))
	}
	for _, row := range rows {
		names := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(row[2], -1)
		if len(names) == 0 {
			t.Errorf("%s names no test", row[1])
		}
		for _, n := range names {
			if !have[n[1]] {
				t.Errorf("%s names %s, which does not exist", row[1], n[1])
			}
		}
	}
}

// Links between the pages lead somewhere.
func TestPagesLinkToFiles(t *testing.T) {
	pages, err := filepath.Glob("../../*.md")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)#]+?)(#[^)]*)?\)`)
	for _, p := range append(pages, more...) {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(b), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(p), m[1])); err != nil {
				t.Errorf("%s links to %s, which is not there", filepath.Base(p), m[1])
			}
		}
	}
}
