package main

import (
	"slices"
	"testing"
)

// What fails without an entry, what passes in spite of one, and an entry for nothing are each wrong; a reason is never missing.
func TestJudge(t *testing.T) {
	runs := []run{
		{alpha, "2025-11-25", "one", []check{{ID: "a", Name: "A", Status: "FAILURE", ErrorMessage: "broken"}, {ID: "b", Status: success}, {ID: "c", Status: "SKIPPED"}}},
		{alpha, "2026-07-28", "one", []check{{ID: "a", Status: success}, {ID: "b", Status: success}}},
		{released, "2025-11-25", "two", []check{{ID: "w", Name: "W", Status: "WARNING", ErrorMessage: "should"}}},
	}
	for name, c := range map[string]struct {
		entries           []entry
		unexpected, stale []string
		passed, known     int
	}{
		"nothing expected": {nil, []string{"alpha 2025-11-25 one: a: A: broken", "released 2025-11-25 two: w: W: should"}, nil, 3, 0},
		"all expected":     {[]entry{{Spec: "2025-11-25", Scenarios: []string{"one", "two"}}}, nil, nil, 3, 2},
		"by check":         {[]entry{{Spec: "2025-11-25", Scenarios: []string{"one"}, Checks: []string{"a", "c"}}, {Suite: released, Scenarios: []string{"two"}}}, nil, nil, 3, 2},
		"passes in one":    {[]entry{{Scenarios: []string{"one", "two"}}}, nil, []string{"alpha 2026-07-28 one: nothing fails"}, 3, 2},
		"a check passes": {
			[]entry{{Spec: "2025-11-25", Scenarios: []string{"one"}, Checks: []string{"a", "b"}}, {Scenarios: []string{"two"}}},
			nil,
			[]string{"alpha 2025-11-25 one: b passes"},
			3, 2,
		},
		"for nothing": {
			[]entry{{Spec: "2025-11-25", Scenarios: []string{"one", "two", "three"}}}, nil, []string{"three: the suite has no such scenario"}, 3, 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := judge(c.entries, runs, true)
			if !slices.Equal(v.unexpected, c.unexpected) || !slices.Equal(v.stale, c.stale) || v.passed != c.passed || v.known != c.known {
				t.Errorf("%+v", v)
			}
		})
	}
}

// The file of the repository is read strictly: every entry has its reason.
func TestExpectedFailuresAreReadable(t *testing.T) {
	if _, err := readExpected("expected-failures.yaml"); err != nil {
		t.Error(err)
	}
}
