package main

import (
	"os/exec"
	"slices"
	"testing"
)

// Every invariant has a patch that breaks it, every patch applies to the tree as it stands, and its test is one that ARCHITECTURE.md names for the
// invariant. That each turns its test red is make mutants' to say.
func TestPatchesApply(t *testing.T) {
	all, err := Load(".")
	if err != nil {
		t.Fatal(err)
	}
	invariants, err := Invariants("../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	broken := map[string]bool{}
	for _, m := range all {
		broken[m.Invariant] = true
		if !slices.Contains(invariants[m.Invariant], m.Func()) {
			t.Errorf("%s breaks %s by %s, which ARCHITECTURE.md does not name for it", m.Name, m.Invariant, m.Func())
		}
		cmd := exec.CommandContext(t.Context(), "git", "apply", "--check", "test/mutants/"+m.Path)
		cmd.Dir = "../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s does not apply any more (%v): make it anew\n%s", m.Name, err, out)
		}
	}
	for i := range invariants {
		if !broken[i] {
			t.Errorf("no patch breaks %s", i)
		}
	}
}
