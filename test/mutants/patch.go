package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Mutant is one patch: it breaks one invariant on purpose, and one test must turn red by it.
type Mutant struct {
	Name      string // of the file, without .patch
	Path      string
	Invariant string // I1 to I16
	Package   string // ./control/call
	Test      string // the pattern of -run
	Breaks    string // what the patch breaks, for a person
}

// Case is the test with its package.
func (m *Mutant) Case() string { return m.Package + " " + m.Test }

// Func is the test's function, without a subtest.
func (m *Mutant) Func() string {
	name, _, _ := strings.Cut(m.Test, "/")
	return name
}

// Load reads the patches in dir, in the order of their names. A patch begins with three lines: Invariant, Test and Breaks.
func Load(dir string) ([]Mutant, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.patch"))
	if err != nil {
		return nil, err
	}
	slices.Sort(paths)
	var all []Mutant
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			return nil, err
		}
		m := Mutant{Name: strings.TrimSuffix(filepath.Base(p), ".patch"), Path: p}
		head, _, found := strings.Cut(string(text), "\ndiff --git ")
		if !found {
			return nil, fmt.Errorf("%s has no diff", p)
		}
		for line := range strings.Lines(head) {
			switch key, value, _ := strings.Cut(strings.TrimSpace(line), ": "); key {
			case "Invariant":
				m.Invariant = value
			case "Test":
				m.Package, m.Test, _ = strings.Cut(value, " ")
			case "Breaks":
				m.Breaks = value
			}
		}
		if m.Invariant == "" || m.Package == "" || m.Test == "" || m.Breaks == "" {
			return nil, fmt.Errorf("%s does not begin with the lines Invariant, Test (package and name) and Breaks", p)
		}
		all = append(all, m)
	}
	return all, nil
}

// Invariants reads ARCHITECTURE.md: the tests that each invariant names.
func Invariants(page string) (map[string][]string, error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	all := map[string][]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| (I\d+) \|.*\| (.*) \|$`).FindAllStringSubmatch(string(text), -1) {
		for _, name := range regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(row[2], -1) {
			all[row[1]] = append(all[row[1]], name[1])
		}
	}
	return all, nil
}
