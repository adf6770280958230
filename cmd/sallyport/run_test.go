package main

import (
	"os"
	"slices"
	"testing"

	"sallyport.dev/errs"
)

// What a person names with --env reaches the agent, or is refused in words: nothing is left out silently.
func TestNamedVariables(t *testing.T) {
	t.Setenv("SALLYPORT_TEST_KEPT", "a=b c")
	t.Setenv("SALLYPORT_TEST_EMPTY", "")
	t.Setenv("SALLYPORT_TEST_GONE", "")
	if err := os.Unsetenv("SALLYPORT_TEST_GONE"); err != nil {
		t.Fatal(err)
	}
	c := &runCmd{Env: []string{"A=1", "SALLYPORT_TEST_KEPT", "SALLYPORT_TEST_EMPTY", "B=", "C=x=y"}}
	got, err := c.named()
	if want := []string{"A=1", "SALLYPORT_TEST_KEPT=a=b c", "SALLYPORT_TEST_EMPTY=", "B=", "C=x=y"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q %v, want %q", got, err, want)
	}
	for given, want := range map[string]string{
		"SALLYPORT_TEST_GONE": "--env SALLYPORT_TEST_GONE keeps a variable that is not set here: set it, or give a value with --env SALLYPORT_TEST_GONE=VALUE",
		"1A=x":                `--env "1A=x" names no variable: a name has letters, digits and _, and begins with no digit`,
		"=x":                  `--env "=x" names no variable: a name has letters, digits and _, and begins with no digit`,
		"a-b":                 `--env "a-b" names no variable: a name has letters, digits and _, and begins with no digit`,
	} {
		if got, err := (&runCmd{Env: []string{"A=1", given}}).named(); !errs.Is(err, errs.Invalid) || errs.Message(err) != want || got != nil {
			t.Errorf("%q: %q %v", given, got, err)
		}
	}
}
