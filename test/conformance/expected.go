package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/goccy/go-yaml"
)

// expected is what is known to fail: expected-failures.yaml.
type expected struct {
	Client []entry `yaml:"client"`
	Server []entry `yaml:"server"`
}

// entry is a reason why scenarios fail.
type entry struct {
	Suite     string   `yaml:"suite"`     // released or alpha; "" is each
	Spec      string   `yaml:"spec"`      // a revision of the protocol; "" is each
	Scenarios []string `yaml:"scenarios"` // what fails
	Checks    []string `yaml:"checks"`    // and in it what; none: all that fails
	Reason    string   `yaml:"reason"`
}

func readExpected(path string) (*expected, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var e expected
	if err := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict()).Decode(&e); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, list := range [][]entry{e.Client, e.Server} {
		for _, entry := range list {
			if entry.Reason == "" || len(entry.Scenarios) == 0 {
				return nil, errors.New(path + ": every entry names its scenarios and a reason")
			}
		}
	}
	return &e, nil
}

// applies reports whether the entry speaks of a run.
func (e *entry) applies(r *run, scenario string) bool {
	return r.scenario == scenario && (e.Suite == "" || e.Suite == r.suite) && (e.Spec == "" || e.Spec == r.spec)
}

// verdict is how runs compare with what is expected.
type verdict struct {
	passed     int      // checks
	known      int      // checks that fail as expected
	unexpected []string // failures without an entry
	stale      []string // entries, or parts of them, that nothing fails for
}

// judge compares runs with the entries. Where whole, every scenario of the suite was run, so that an entry for none of them is stale, too.
func judge(entries []entry, runs []run, whole bool) verdict {
	var v verdict
	for i := range runs {
		r := &runs[i]
		for _, c := range r.checks {
			switch {
			case c.Status == success:
				v.passed++
			case !c.failed():
			case slices.ContainsFunc(entries, func(e entry) bool {
				return e.applies(r, r.scenario) && slices.Contains(e.Scenarios, r.scenario) && (len(e.Checks) == 0 || slices.Contains(e.Checks, c.ID))
			}):
				v.known++
			default:
				v.unexpected = append(v.unexpected, fmt.Sprintf("%s: %s: %s", r, c.ID, c.why()))
			}
		}
	}
	for i := range entries {
		for _, scenario := range entries[i].Scenarios {
			v.stale = append(v.stale, stale(&entries[i], scenario, runs, whole)...)
		}
	}
	return v
}

// stale says what of an entry does not fail any more for one of its scenarios.
func stale(e *entry, scenario string, runs []run, whole bool) (out []string) {
	ran := false
	for i := range runs {
		r := &runs[i]
		if !e.applies(r, scenario) {
			continue
		}
		ran = true
		if len(e.Checks) == 0 && !slices.ContainsFunc(r.checks, check.failed) {
			out = append(out, r.String()+": nothing fails")
		}
		for _, id := range e.Checks {
			of := func(c check) bool { return c.ID == id }
			if slices.ContainsFunc(r.checks, of) && !slices.ContainsFunc(r.checks, func(c check) bool { return of(c) && (c.failed() || c.Status != success) }) {
				out = append(out, r.String()+": "+id+" passes")
			}
		}
	}
	if whole && !ran {
		out = append(out, scenario+": the suite has no such scenario")
	}
	return out
}
