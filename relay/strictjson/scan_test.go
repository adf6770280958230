package strictjson

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"go.uber.org/goleak"

	"sallyport.dev/errs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func nested(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

var valid = []string{
	`0`, `-0`, `1.5e-10`, `1E+2`, `12345678901234567890`, `1e400`,
	`true`, `false`, `null`, `""`, `"\u00e9\ud83d\ude00\/\b"`, `"é😀"`, "\"\u007f\"",
	`[]`, `{}`, ` [ 1 , 2 ] `, "\r\n\t{\"a\":{}}\n",
	`{"a":1,"b":2,"A":3}`, `{"a":{"a":1},"b":{"a":2}}`, `[{"a":1},{"a":1}]`, `{"":1}`,
	`{"\u0000":1,"":2}`,
	nested(MaxDepth),
}

var invalid = []struct{ text, want string }{
	{``, "unexpected end"},
	{` `, "unexpected end"},
	{`tru`, "invalid literal"},
	{`truE`, "invalid literal"},
	{`nul`, "invalid literal"},
	{`+1`, "unexpected character"},
	{`01`, "leading zero"},
	{`-`, "digit"},
	{`-01`, "leading zero"},
	{`1.`, "digit"},
	{`.5`, "unexpected character"},
	{`1e`, "digit"},
	{`1e+`, "digit"},
	{`0x10`, "text after"},
	{`NaN`, "unexpected character"},
	{`1 2`, "text after"},
	{`{}{}`, "text after"},
	{`[1,]`, "unexpected character"},
	{`[1 2]`, "comma"},
	{`[`, "unexpected end"},
	{`[1`, "unexpected end"},
	{`{`, "member name"},
	{`{"a"`, "colon"},
	{`{"a":`, "unexpected end"},
	{`{"a":1`, "unexpected end"},
	{`{"a":1,}`, "member name"},
	{`{"a" 1}`, "colon"},
	{`{a:1}`, "member name"},
	{`{"a":1 "b":2}`, "comma"},
	{`"abc`, "unterminated string"},
	{`"\`, "unterminated escape"},
	{`"\x"`, "invalid escape"},
	{`"\u12"`, "invalid escape"},
	{`"\u12g4"`, "invalid escape"},
	{"\"a\nb\"", "control character"},
	{"\"a\x00\"", "control character"},
	{"\"0123456789\x1fabc\"", "control character"},
	{"\"\xff\"", "invalid UTF-8"},
	{"\"\xc0\xaf\"", "invalid UTF-8"},               // overlong
	{"\"\xed\xa0\x80\"", "invalid UTF-8"},           // a surrogate, encoded
	{"\"\xf4\x90\x80\x80\"", "invalid UTF-8"},       // beyond U+10FFFF
	{"\"01234567890123\xe2\x82\"", "invalid UTF-8"}, // cut
	{`"\ud800"`, "lone surrogate"},
	{`"\udc00"`, "lone surrogate"},
	{`"\ud800\u0041"`, "lone surrogate"},
	{`"\ud800\ud800"`, "lone surrogate"},
	{`"\ud83dx\ude00"`, "lone surrogate"},
	{`{"a":1,"a":1}`, "duplicate"},
	{`{"a":1,"\u0061":1}`, "duplicate"},
	{`{"\u0061":1,"a":1}`, "duplicate"},
	{`{"\u0061":1,"\u0061":1}`, "duplicate"},
	{`{"\ud83d\ude00":1,"😀":1}`, "duplicate"},
	{`{"/":1,"\/":2}`, "duplicate"},
	{`[{"x":{"b":1,"c":2,"b":3}}]`, "duplicate"},
	{"\ufeff{}", "unexpected character"},
	{nested(MaxDepth + 1), "too many nested"},
	{strings.Repeat(`{"a":`, MaxDepth+1) + `1` + strings.Repeat(`}`, MaxDepth+1), "too many nested"},
}

func TestCheck(t *testing.T) {
	for _, text := range valid {
		if err := Check([]byte(text)); err != nil {
			t.Errorf("%.60q: %v", text, err)
		}
	}
	for _, tc := range invalid {
		err := Check([]byte(tc.text))
		if !errs.Is(err, errs.Invalid) || !strings.Contains(errs.Message(err), tc.want) {
			t.Errorf("%.60q: got %v, want an error with %q", tc.text, err, tc.want)
		}
	}
}

// A large object is searched by an index: duplicates must be found wherever they stand, also between plain and escaped spellings.
func TestCheckFindsDuplicatesInLargeObjects(t *testing.T) {
	for _, size := range []int{indexFrom - 1, indexFrom, indexFrom + 1, 5000} {
		var b strings.Builder
		b.WriteByte('{')
		for i := range size {
			fmt.Fprintf(&b, `"n%d":{"n1":1,"n2":2},`, i)
		}
		text := b.String()
		if err := Check([]byte(text + `"last":0}`)); err != nil {
			t.Errorf("%d names: %v", size, err)
		}
		for _, name := range []string{`"n0"`, `"\u006e0"`, fmt.Sprintf(`"n%d"`, size-1)} {
			if err := Check([]byte(text + name + `:0}`)); !errs.Is(err, errs.Invalid) {
				t.Errorf("%d names and %s again: got %v", size, name, err)
			}
		}
	}
}

func TestObject(t *testing.T) {
	data := []byte(" {\"a\": 1 , \"b\\u0063\":\t{\"x\":[1, 2]}\n,\"\":\"}\"} ")
	got, err := Object(data, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []struct{ name, value string }{{"a", "1"}, {"bc", `{"x":[1, 2]}`}, {"", `"}"`}}
	if len(got) != len(want) {
		t.Fatalf("%d members", len(got))
	}
	for i, w := range want {
		if string(got[i].Name) != w.name || string(got[i].Value) != w.value {
			t.Errorf("member %d: %q %q", i, got[i].Name, got[i].Value)
		}
	}
	for _, bad := range []string{`[]`, `1`, `{"a":1,"a":2}`, ``} {
		if _, err := Object([]byte(bad), nil); !errs.Is(err, errs.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestArray(t *testing.T) {
	got, err := Array([]byte(` [ {"a":[]} , "]," ,3] `), nil)
	if err != nil {
		t.Fatal(err)
	}
	if s := fmt.Sprintf("%s", got); s != `[{"a":[]} "]," 3]` {
		t.Errorf("got %s", s)
	}
	if _, err := Array([]byte(`{}`), nil); !errs.Is(err, errs.Invalid) {
		t.Errorf("an object: %v", err)
	}
}

func TestLookup(t *testing.T) {
	data := []byte(`{"params":{"_meta":{"io/key":"v","progressToken":12}, "name":"x"},"params2":1}`)
	for _, tc := range []struct {
		path []string
		want string
		ok   bool
	}{
		{[]string{"params", "_meta", "progressToken"}, "12", true},
		{[]string{"params", "name"}, `"x"`, true},
		{[]string{"params2"}, "1", true},
		{[]string{"params2", "x"}, "", false},
		{[]string{"param"}, "", false},
		{nil, string(data), true},
	} {
		got, ok := Lookup(data, tc.path...)
		if ok != tc.ok || string(got) != tc.want {
			t.Errorf("%q: %q %v", tc.path, got, ok)
		}
	}
}

func TestText(t *testing.T) {
	for _, s := range []string{"", "plain", "q\"b\\s/\b\f\n\r\t\x01", "é😀\u2028\x7f", "\x00"} {
		raw := AppendQuote(nil, s)
		if err := Check(raw); err != nil {
			t.Errorf("%q: %v", s, err)
		}
		if got, ok := Unquote(raw); !ok || got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
	if got := string(AppendQuote(nil, "a\xffb")); got != `"a`+"\ufffd"+`b"` {
		t.Errorf("bad UTF-8 became %q", got)
	}
	if _, ok := Unquote([]byte(`12`)); ok {
		t.Error("a number was unquoted")
	}
}

func TestAppendLine(t *testing.T) {
	in := []byte("{\n  \"a\": \"x\\ny\",\r\n\t\"b\": 1}\n")
	got := AppendLine([]byte("keep\n"), in)
	if want := "keep\n{   \"a\": \"x\\ny\",  \t\"b\": 1} "; string(got) != want {
		t.Errorf("got %q", got)
	}
}

func TestInt(t *testing.T) {
	for raw, want := range map[string]int64{"0": 0, "-1": -1, "9223372036854775807": 1<<63 - 1, "-9223372036854775808": -1 << 63} {
		if got, ok := Int([]byte(raw)); !ok || got != want {
			t.Errorf("%s: %d %v", raw, got, ok)
		}
	}
	for _, raw := range []string{"", "-0", "1.0", "1e3", "9223372036854775808", `"1"`, "+1", "0000000000000000000000001", "null"} {
		if _, ok := Int([]byte(raw)); ok {
			t.Errorf("%s is an integer", raw)
		}
	}
}

// FuzzCheck compares with another strict parser: both accept the same texts, and cut the same members.
func FuzzCheck(f *testing.F) {
	for _, s := range valid {
		f.Add([]byte(s))
	}
	for _, tc := range invalid {
		f.Add([]byte(tc.text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		err := Check(data)
		want := jsontext.Value(data).IsValid() && depth(data) <= MaxDepth
		if (err == nil) != want {
			t.Fatalf("%q: %v, the other parser says %v", data, err, want)
		}
		members, err := Object(data, nil)
		if err == nil {
			compare(t, data, members)
		}
		// The walkers want checked text, and must survive any other.
		for name, value := range Each(data) {
			_, _ = Unquote(value)
			_ = appendUnescaped(nil, name)
		}
		for value := range Elements(data) {
			_, _ = Int(value)
		}
		Lookup(data, "a", "b")
	})
}

// depth is the deepest nesting of a valid text.
func depth(data []byte) (most int) {
	d := jsontext.NewDecoder(bytes.NewReader(data))
	for {
		if _, err := d.ReadToken(); err != nil {
			return most
		}
		most = max(most, d.StackDepth())
	}
}

func compare(t *testing.T, data []byte, members []Member) {
	t.Helper()
	d := jsontext.NewDecoder(bytes.NewReader(data))
	if _, err := d.ReadToken(); err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		name, err := d.ReadToken()
		if err != nil || name.String() != string(m.Name) {
			t.Fatalf("%q: name %q, the other parser has %q (%v)", data, m.Name, name, err)
		}
		value, err := d.ReadValue()
		if err != nil || string(value) != string(m.Value) {
			t.Fatalf("%q: value %q, the other parser has %q (%v)", data, m.Value, value, err)
		}
	}
	if end, err := d.ReadToken(); err != nil || end.Kind() != '}' {
		t.Fatalf("%q: the other parser has more members: %v %v", data, end, err)
	}
}

func BenchmarkCheck(b *testing.B) {
	record := []byte(`{"v":1,"id":"x","arguments":{"project":"web","labels":["a","b"],"body":"` + strings.Repeat("some text, ", 60) + `"}}`)
	big := []byte(`{"text":"` + strings.Repeat("a line of a large result\\n", 40000) + `"}`)
	for _, tc := range []struct {
		name string
		data []byte
	}{{"record", record}, {"1MiB", big}} {
		b.Run(tc.name, func(b *testing.B) {
			b.SetBytes(int64(len(tc.data)))
			b.ReportAllocs()
			for b.Loop() {
				if err := Check(tc.data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Walking a checked text skips strings by their quotes; a quote behind backslashes is one only where they are even.
func TestWalkSkipsEscapedQuotes(t *testing.T) {
	for _, text := range []string{`\"`, `\\`, `\\\"`, `\"\"`, `a\\`, `a\"b\\`, strings.Repeat(`\\`, 1000), strings.Repeat(`\"`, 1000), ``} {
		object := []byte(`{"` + text + `x":["` + text + `",{"` + text + `":"` + text + `"}],"last":1}`)
		if err := Check(object); err != nil {
			t.Fatalf("%.40s: %v", object, err)
		}
		if last, ok := Lookup(object, "last"); !ok || string(last) != "1" {
			t.Errorf("%.40s: %q", object, last)
		}
		for element := range Elements([]byte(`["` + text + `"]`)) {
			if string(element) != `"`+text+`"` {
				t.Errorf("%.40s: %.40s", text, element)
			}
		}
	}
}
