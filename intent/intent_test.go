package intent

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport.dev/errs"
)

var epoch = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// sample is a write of the sample connection, as the vectors have it.
func sample() Intent {
	args := []byte(`{"title":"hello","n":12345678901234567890}`)
	return Intent{
		V: Protected, ID: "intentaaaaaaaaaaaaaaaaaaaa", Org: "default", Kind: Call,
		Call: "callaaaaaaaaaaaaaaaaaaaaaa", Attempt: 1, Session: "sessionaaaaaaaaaaaaaaaaaaa", Epoch: 3,
		Binding: Digest([]byte("binding")), Connection: "tracker", Revision: 7, Pool: "default",
		Transport: TransportMCP, Origin: "https://mcp.tracker.example.org", Path: "/mcp?v=1", Allow: []string{"10.20.0.0/16"},
		AuthType: AuthHeader, AuthHeader: "X-Api-Key", Subject: "shared", Version: 4, Account: "bot", Scopes: []string{"issues:write"},
		Protocol: "2026-07-28", Tool: "create_issue", Schema: Digest([]byte("tool")), Effect: Write, Arguments: Digest(args),
		Authority: "approval:apprvlaaaaaaaaaaaaaaaaaaaa", Owner: "local:zoë \"<&>", Attended: true, ResultBytes: 1 << 20,
		ConnectMS: 5000, AnswerMS: 120_000, SilenceMS: 120_000,
		NotBefore: epoch.UnixMilli(), StartBefore: epoch.Add(30 * time.Second).UnixMilli(), FinishBefore: epoch.Add(3 * time.Minute).UnixMilli(),
		Audience: "runaaaaaaaaaaaaaaaaaaaaaaa",
	}
}

func encode(t testing.TB, in Intent) []byte {
	t.Helper()
	b, err := Encode(in)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRoundTrip(t *testing.T) {
	in := sample()
	b := encode(t, in)
	got, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(in, got); d != "" {
		t.Error(d)
	}
	// Empty lists have one form, whether they were nil or not.
	in.Allow, in.Scopes = nil, nil
	nilLists := encode(t, in)
	in.Allow, in.Scopes = []string{}, []string{}
	if !bytes.Equal(nilLists, encode(t, in)) {
		t.Error("nil and empty lists encode differently")
	}
}

// members splits an encoded intent at its members, which it finds with a decoder of its own.
func members(t *testing.T, b []byte) []string {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	if _, err := d.Token(); err != nil {
		t.Fatal(err)
	}
	var out []string
	for d.More() {
		name, err := d.Token()
		if err != nil {
			t.Fatal(err)
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			t.Fatal(err)
		}
		out = append(out, `"`+name.(string)+`":`+string(raw))
	}
	return out
}

func object(members []string) []byte { return []byte("{" + strings.Join(members, ",") + "}") }

func TestParseRefusesEveryOtherForm(t *testing.T) {
	b := encode(t, sample())
	ms := members(t, b)
	if n := reflect.TypeFor[Intent]().NumField(); len(ms) != n || !bytes.Equal(object(ms), b) {
		t.Fatalf("%d members of %d, or the split is wrong", len(ms), n)
	}
	refuse := func(name string, in []byte) {
		t.Helper()
		if bytes.Equal(in, b) {
			t.Fatalf("%s: the input was not changed", name)
		}
		if _, err := Parse(in); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for i := range ms {
		cut := append(append([]string{}, ms[:i]...), ms[i+1:]...)
		refuse("without "+ms[i], object(cut))
		refuse("twice "+ms[i], object(append(append([]string{}, ms...), ms[i])))
		name, _, _ := strings.Cut(ms[i], ":")
		nulled := append([]string{}, ms...)
		nulled[i] = name + ":null"
		refuse("null "+ms[i], object(nulled))
		if i > 0 {
			swapped := append([]string{}, ms...)
			swapped[i-1], swapped[i] = swapped[i], swapped[i-1]
			refuse("swapped "+ms[i], object(swapped))
		}
		upper := append([]string{}, ms...)
		upper[i] = strings.ToUpper(name) + ms[i][len(name):]
		refuse("upper case "+ms[i], object(upper))
	}
	refuse("unknown member", object(append(append([]string{}, ms...), `"extra":1`)))
	refuse("white space", append([]byte(" "), b...))
	refuse("line feed", append(bytes.Clone(b), '\n'))
	refuse("two values", append(bytes.Clone(b), b...))
	refuse("bad UTF-8", bytes.Replace(b, []byte("create_issue"), []byte("create_\xffissu"), 1))
	refuse("escape", bytes.Replace(b, []byte("create_issue"), []byte(`create\u005fissue`), 1))
	refuse("escaped slash", bytes.Replace(b, []byte("/mcp?"), []byte(`\/mcp?`), 1))
	refuse("float", bytes.Replace(b, []byte(`"attempt":1`), []byte(`"attempt":1.0`), 1))
	refuse("exponent", bytes.Replace(b, []byte(`"attempt":1`), []byte(`"attempt":1e0`), 1))
	refuse("control character", bytes.Replace(b, []byte("create_issue"), []byte(`create\nissue`), 1))
	refuse("empty", nil)
	refuse("not an object", []byte("[]"))
	if _, err := Parse(make([]byte, MaxBytes+1)); !errs.Is(err, errs.Oversize) {
		t.Errorf("oversize: %v", err)
	}
	other := bytes.Replace(b, []byte(`{"v":1,`), []byte(`{"v":2,`), 1)
	if _, err := Parse(other); !errs.Is(err, errs.ProtectedNumber) {
		t.Errorf("other protected version: %v", err)
	}
}

func TestValidateRefuses(t *testing.T) {
	ok := sample()
	if err := ok.Validate(); err != nil {
		t.Fatal(err)
	}
	bad := map[string]func(*Intent){
		"id short":                  func(in *Intent) { in.ID = "abc" },
		"id upper case":             func(in *Intent) { in.ID = strings.ToUpper(in.ID) },
		"no org":                    func(in *Intent) { in.Org = "" },
		"unknown kind":              func(in *Intent) { in.Kind = "delete" },
		"call without call":         func(in *Intent) { in.Call = "" },
		"call without session":      func(in *Intent) { in.Session = "" },
		"call without attempt":      func(in *Intent) { in.Attempt = 0 },
		"call without tool":         func(in *Intent) { in.Tool = "" },
		"call without arguments":    func(in *Intent) { in.Arguments = "" },
		"call without binding":      func(in *Intent) { in.Binding = "" },
		"call without authority":    func(in *Intent) { in.Authority = "" },
		"arguments of a probe":      func(in *Intent) { in.Kind = Probe },
		"negative epoch":            func(in *Intent) { in.Epoch = -1 },
		"negative version":          func(in *Intent) { in.Version = -1 },
		"no connection":             func(in *Intent) { in.Connection = "" },
		"no pool":                   func(in *Intent) { in.Pool = "" },
		"no audience":               func(in *Intent) { in.Audience = "" },
		"unknown transport":         func(in *Intent) { in.Transport = "stdio" },
		"unknown effect":            func(in *Intent) { in.Effect = "delete" },
		"unknown auth":              func(in *Intent) { in.AuthType = "basic" },
		"subject without auth":      func(in *Intent) { in.AuthType, in.AuthHeader = AuthNone, "" },
		"header without name":       func(in *Intent) { in.AuthHeader = "" },
		"header name with space":    func(in *Intent) { in.AuthHeader = "X Key" },
		"header of bearer":          func(in *Intent) { in.AuthType = AuthBearer },
		"http":                      func(in *Intent) { in.Origin = "http://mcp.tracker.example.org" },
		"origin with path":          func(in *Intent) { in.Origin += "/x" },
		"origin with user":          func(in *Intent) { in.Origin = "https://a:b@mcp.tracker.example.org" },
		"origin upper case":         func(in *Intent) { in.Origin = "https://MCP.tracker.example.org" },
		"origin of another scheme":  func(in *Intent) { in.Origin, in.PlainHTTP = "ftp://mcp.tracker.example.org", true },
		"origin without host":       func(in *Intent) { in.Origin = "https://" },
		"relative path":             func(in *Intent) { in.Path = "mcp" },
		"path with fragment":        func(in *Intent) { in.Path = "/mcp#x" },
		"path with space":           func(in *Intent) { in.Path = "/m cp" },
		"allow not a CIDR":          func(in *Intent) { in.Allow = []string{"10.20.0.1"} },
		"allow not masked":          func(in *Intent) { in.Allow = []string{"10.20.0.1/16"} },
		"too many scopes":           func(in *Intent) { in.Scopes = make([]string, maxList+1) },
		"control character, scope":  func(in *Intent) { in.Scopes = []string{"a\nb"} },
		"long text":                 func(in *Intent) { in.Account = strings.Repeat("a", maxText+1) },
		"bad UTF-8":                 func(in *Intent) { in.Account = "\xff" },
		"no result bytes":           func(in *Intent) { in.ResultBytes = 0 },
		"too many result bytes":     func(in *Intent) { in.ResultBytes = MaxResultBytes + 1 },
		"no connect time":           func(in *Intent) { in.ConnectMS = 0 },
		"long connect time":         func(in *Intent) { in.ConnectMS = 30_001 },
		"no answer time":            func(in *Intent) { in.AnswerMS = 0 },
		"long answer time":          func(in *Intent) { in.AnswerMS = 30*60_000 + 1 },
		"no silence time":           func(in *Intent) { in.SilenceMS = 0 },
		"no not_before":             func(in *Intent) { in.NotBefore = 0 },
		"start before not_before":   func(in *Intent) { in.StartBefore = in.NotBefore - 1 },
		"finish before start":       func(in *Intent) { in.FinishBefore = in.StartBefore - 1 },
		"start long after":          func(in *Intent) { in.StartBefore = in.NotBefore + 5*60_000 + 1; in.FinishBefore = in.StartBefore },
		"digest in upper case":      func(in *Intent) { in.Binding = strings.ToUpper(in.Binding) },
		"digest of a wrong length":  func(in *Intent) { in.Meta = "abcd" },
		"schema digest not hex":     func(in *Intent) { in.Schema = strings.Repeat("g", 64) },
		"upstream digest not hex":   func(in *Intent) { in.Upstream = strings.Repeat("g", 64) },
		"arguments digest not hex":  func(in *Intent) { in.Arguments = strings.Repeat("g", 64) },
		"attempt of a probe is < 0": func(in *Intent) { in.Kind, in.Arguments, in.Attempt = Probe, "", -1 },
	}
	for name, change := range bad {
		in := sample()
		change(&in)
		if err := in.Validate(); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Encode(in); err == nil {
			t.Errorf("%s: encoded", name)
		}
	}
}

// Every text member refuses a control character: none can carry a header line, a log line or a terminal escape to the worker.
func TestNoMemberCarriesControlCharacters(t *testing.T) {
	for f := range reflect.TypeFor[Intent]().Fields() {
		if f.Type.Kind() != reflect.String {
			continue
		}
		for _, c := range []string{"\n", "\r", "\x00", "\x1b", "\x7f"} {
			in := sample()
			v := reflect.ValueOf(&in).Elem().FieldByIndex(f.Index)
			v.SetString(v.String() + c)
			if err := in.Validate(); !errs.Is(err, errs.Invalid) {
				t.Errorf("%s takes %q: %v", f.Name, c, err)
			}
		}
	}
}

func TestKindsWithoutArguments(t *testing.T) {
	for kind := range kinds {
		if kind == Call || kind == Poll {
			continue
		}
		in := sample()
		in.Kind, in.Call, in.Session, in.Tool, in.Arguments, in.Schema, in.Attempt = kind, "", "", "", "", "", 0
		in.AuthType, in.AuthHeader, in.Subject, in.Version, in.Account = AuthNone, "", "", 0, ""
		if err := in.Validate(); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestPoll(t *testing.T) {
	poll := func() Intent {
		in := sample()
		in.Kind, in.Effect, in.Arguments, in.Schema, in.Meta = Poll, Read, "", "", Digest([]byte(`{"task":"1"}`))
		return in
	}
	good := poll()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(in *Intent){
		"no call":       func(in *Intent) { in.Call = "" },
		"no session":    func(in *Intent) { in.Session = "" },
		"no task":       func(in *Intent) { in.Meta = "" },
		"a write":       func(in *Intent) { in.Effect = Write },
		"a callback":    func(in *Intent) { in.Transport = TransportCallback },
		"has arguments": func(in *Intent) { in.Arguments = Digest([]byte(`{}`)) },
	} {
		in := poll()
		change(&in)
		if err := in.Validate(); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	b := encode(f, sample())
	f.Add(b)
	f.Add(bytes.Replace(b, []byte(`"v":1`), []byte(`"v":1,"v":1`), 1))
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"v":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		in, err := Parse(b)
		if err != nil {
			if errs.CodeOf(err) == errs.Internal {
				t.Errorf("an error without a code: %v", err)
			}
			return
		}
		again, err := Encode(in)
		if err != nil || !bytes.Equal(again, b) {
			t.Errorf("parsed, but encodes to other bytes: %v\n%s\n%s", err, b, again)
		}
	})
}
