package schema_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"sallyport.dev/control/schema"
	"sallyport.dev/errs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCompileRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s.json")
	if err := os.WriteFile(file, []byte(`{"type":"string"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, raw := range map[string]string{
		"a file":          `{"$ref":"file://` + file + `"}`,
		"an address":      `{"$ref":"https://example.org/schema.json"}`,
		"another schema":  `{"$schema":"https://example.org/dialect"}`,
		"no JSON":         `{`,
		"twice":           `{"type":"string","type":"object"}`,
		"no schema":       `{"type":5}`,
		"a bad pattern":   `{"pattern":"("}`,
		"look-ahead":      `{"pattern":"(?=x)"}`,
		"nowhere in it":   `{"$ref":"#/$defs/none"}`,
		"relative":        `{"$ref":"other.json"}`,
		"nothing at all":  ``,
		"a bare word":     `yes`,
		"a deep one":      strings.Repeat(`{"not":`, 101) + `{}` + strings.Repeat(`}`, 101),
		"bad UTF-8 in it": "{\"title\":\"\xff\"}",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := schema.Compile([]byte(raw)); errs.CodeOf(err) != errs.Invalid {
				t.Fatalf("got %v", err)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	const raw = `{"type":"object","properties":{
		"title":{"type":"string","minLength":2,"maxLength":4,"pattern":"^[a-z]+$"},"n":{"type":"integer","maximum":9007199254740992},
		"kind":{"enum":["a","b",3]},"who":{"const":"me"},"list":{"type":"array","items":{"$ref":"#/$defs/item"}},"any":{"anyOf":[{"type":"string"},{"type":"null"}]}},
		"required":["title"],"additionalProperties":false,"$defs":{"item":{"type":"object","required":["id"]}}}`
	s, err := schema.Compile([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	for args, says := range map[string]string{
		`{"title":"abc"}`:                           "",
		`{"title":"abc","n":9007199254740992}`:      "",
		`{"title":"abc","n":5.0}`:                   "",
		`{"title":"abc","n":9007199254740993}`:      "n: ",
		`{"title":"abc","n":1e400}`:                 "n: ",
		`{}`:                                        "the arguments lack title",
		`{"title":5}`:                               "title must be string, not number",
		`{"title":"a"}`:                             "title must have at least 2 characters",
		`{"title":"abcde"}`:                         "title must have at most 4 characters",
		`{"title":"ABC"}`:                           "title must match ^[a-z]+$",
		`{"title":"abc","kind":"c"}`:                `kind must be one of "a", "b", 3`,
		`{"title":"abc","who":"you"}`:               `who must be "me"`,
		`{"title":"abc","list":[{"id":1},{"x":1}]}`: "list.1 lacks id",
		`{"title":"abc","extra":1}`:                 "the arguments may not have extra",
		`{"title":"abc","any":5}`:                   "any must be string",
		`[]`:                                        "the arguments must be object, not array",
	} {
		err := s.Validate([]byte(args))
		if says == "" {
			if err != nil {
				t.Errorf("%s: %v", args, err)
			}
			continue
		}
		if errs.CodeOf(err) != errs.InvalidArguments || !strings.Contains(errs.Message(err), says) {
			t.Errorf("%s: got %v, want %q", args, err, says)
		}
	}
	// At most three are named.
	err = s.Validate([]byte(`{"a":1,"title":5,"n":"x","kind":"c","who":"x"}`))
	if !strings.Contains(errs.Message(err), "and 2 more") {
		t.Errorf("got %v", err)
	}
	// A message stays short, whatever the value is.
	err = s.Validate([]byte(`{"title":"abc","n":` + strings.Repeat("9", 10_000) + `}`))
	if m := errs.Message(err); len(m) > 500 {
		t.Errorf("a message of %d bytes", len(m))
	}
}

func TestExtra(t *testing.T) {
	s, err := schema.Compile([]byte(`{"type":"object","properties":{"a":{},"o":{"type":"object","properties":{"x":{}}},"l":{"type":"array","items":{"type":"object","properties":{"y":{}}}},"open":{"type":"object"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string][]string{
		`{"a":1}`: nil,
		`{"a":1,"b":2,"o":{"x":1,"z":2},"l":[{"y":1},{"w":1}],"open":{"free":1}}`: {"b", "o.z", "l.1.w"},
		`{"a":{"deep":1}}`: nil,
	} {
		if got := s.Extra([]byte(args)); !slices.Equal(got, want) {
			t.Errorf("%s: got %v", args, got)
		}
	}
}

func FuzzValidate(f *testing.F) {
	s, err := schema.Compile([]byte(`{"type":"object","properties":{"n":{"type":"integer","multipleOf":3},"s":{"type":"string","pattern":"^a*$"}},"unevaluatedProperties":false}`))
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"n":3,"s":"aa"}`))
	f.Add([]byte(`{"n":1e9999999}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := s.Validate(b); err != nil && errs.CodeOf(err) != errs.InvalidArguments {
			t.Fatal(err)
		}
	})
}
