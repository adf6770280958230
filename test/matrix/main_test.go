package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	events := ""
	for _, h := range harnesses {
		for _, r := range rows {
			for _, test := range r.tests {
				action := "pass"
				if h == "pi" && strings.Contains(test, "ExpiredWrite") {
					action = "fail"
				}
				if h == "codex" && strings.Contains(test, "Isolated") {
					continue
				}
				name := strings.ReplaceAll(test, "HARNESS", h)
				if strings.Contains(test, "Read/") {
					name += "/numbers" // the case is the test above it
				}
				events += `{"Action":"output","Test":"` + name + `","Output":"words of ` + name + `\n"}` + "\n" + `{"Action":"` + action + `","Test":"` + name + `"}` + "\n"
			}
		}
	}
	var log, out bytes.Buffer
	results, err := read(strings.NewReader("a build's words\n"+events), &log)
	if err != nil {
		t.Fatal(err)
	}
	if got := log.String(); got != "a build's words\nwords of TestGoverned/cases/ExpiredWrite/pi\n" {
		t.Errorf("the log has %q", got)
	}
	if passed, failed, none := table(&out, results); passed != 25 || failed != 2 || none != 9 {
		t.Errorf("%d passed, %d failed, %d not built", passed, failed, none)
	}
	for _, line := range []string{
		`(?m)^6 write, denied and expired +passed +passed +FAILED *$`, `(?m)^10 revocation in a live session +not built +not built +not built *$`,
		`(?m)^12 isolation, closed boot +passed +NOT RUN +passed +not built of it: the allowlist proxy and its tricks$`,
	} {
		if !regexp.MustCompile(line).MatchString(out.String()) {
			t.Errorf("no line %s in\n%s", line, out.String())
		}
	}
}

// A test that the matrix names is one of the acceptance tests: a case that is renamed there is not silently "not run" here.
func TestNames(t *testing.T) {
	source, err := os.ReadFile("../acceptance/governed_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		for _, test := range r.tests {
			name, ok := strings.CutPrefix(test, governed)
			if name, _, _ = strings.Cut(name, "/"); ok && !bytes.Contains(source, []byte(`"`+name+`": `)) {
				t.Errorf("%s is no case", name)
			}
		}
	}
}
