package oauth

import "testing"

func TestParseChallenge(t *testing.T) {
	for value, want := range map[string]Challenge{
		"": {},
		`Bearer resource_metadata="https://a/b", scope="x y", error="insufficient_scope"`: {"https://a/b", "x y", "insufficient_scope"},
		`bearer scope=x`: {Scope: "x"},
		`Basic realm="scope=no", Bearer realm="a \"b\", scope=no", scope="x"`: {Scope: "x"},
		`Bearer scope="x", Basic scope="y"`:                                   {Scope: "x"},
		`Bearer scope="x", scope="y"`:                                         {},
		`Bearer scope="x`:                                                     {},
		`Basic scope="x"`:                                                     {},
	} {
		if got := ParseChallenge(value); got != want {
			t.Errorf("%s: %+v", value, got)
		}
	}
}

func FuzzParseChallenge(f *testing.F) {
	f.Add(`Bearer resource_metadata="https://a/b", scope="x y"`)
	f.Add(`Basic abc==, Bearer a=b`)
	f.Fuzz(func(t *testing.T, s string) {
		c := ParseChallenge(s)
		if len(c.Scope)+len(c.ResourceMetadata)+len(c.Error) > len(s) {
			t.Errorf("%q reads as %+v", s, c)
		}
	})
}
