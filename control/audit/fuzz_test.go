package audit

import (
	"strings"
	"testing"

	"sallyport.dev/errs"
)

// Whatever an export holds, it is verified or refused with a line number: no panic, and never more rows than lines.
func FuzzVerify(f *testing.F) {
	c := &chain{lines: []Line{{Head: &Head{V: 1, Org: "o"}}}}
	c.start("a") // short seeds: long ones keep the fuzzer minimizing
	f.Add(text(f, c.lines))
	_, key := keys(f)
	c.lines = c.lines[:1]
	c.checkpoint(f, key)
	f.Add(text(f, c.lines))
	f.Add(`{"head":{"v":1,"org":"default","seq":9,"run":"a","link":""}}`)
	f.Fuzz(func(t *testing.T, in string) {
		rep, err := Verify(strings.NewReader(in), Options{})
		if err != nil && !errs.Is(err, errs.Invalid) {
			t.Fatalf("not an error of the input: %v", err)
		}
		if rep.Records > int64(strings.Count(in, "\n"))+1 {
			t.Fatalf("%d rows in %d lines", rep.Records, strings.Count(in, "\n")+1)
		}
	})
}
