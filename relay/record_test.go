package relay

import (
	"bytes"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"sallyport.dev/errs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testCall() *Call {
	return &Call{Session: NewID(), Epoch: 1, Shim: NewID(), ID: NewID(), Tool: "echo", Arguments: []byte(`{}`), TimeoutMS: 1000}
}

func TestNewID(t *testing.T) {
	seen := make(map[string]bool)
	for range 1000 {
		id := NewID()
		if !ValidID(id) || seen[id] {
			t.Fatalf("%q", id)
		}
		seen[id] = true
	}
}

// The same two parts give control the same id: the vector was made by its own function.
func TestCallID(t *testing.T) {
	if got := CallID("aaaaaaaaaaaaaaaaaaaaaaaaaa", "mfrggzdfmztwq2lknnwg23tpoa"); got != "byesr4magbdocjtwibdgxaricm" || !ValidID(got) {
		t.Errorf("got %s", got)
	}
	if CallID("ab", "c") == CallID("a", "bc") {
		t.Error("two pairs share an id")
	}
}

// Whatever a writer is given, what it writes is read back as the same, and nothing given can spell a member of its own.
func TestCallRoundTrip(t *testing.T) {
	text := rapid.StringOfN(rapid.Rune(), 0, 30, MaxToolName)
	arguments := rapid.SampledFrom([]string{`{}`, `{"a":1}`, `{ "a" : [ {} ] }`, `{},"tool":"x"`, `{"a":1,"a":2}`, `[]`, ``, `{"x":"\ud800"}`, "{\"x\":\"\xff\"}"})
	rapid.Check(t, func(t *rapid.T) {
		c := testCall()
		c.Tool = text.Draw(t, "tool")
		c.HarnessCall = text.Draw(t, "harness call")
		c.Arguments = []byte(arguments.Draw(t, "arguments"))
		c.Progress = rapid.Bool().Draw(t, "progress")
		record, err := AppendCall([]byte("before"), c)
		if err != nil {
			if string(record) != "before" {
				t.Fatalf("an error left %q", record)
			}
			return
		}
		record = bytes.TrimPrefix(record, []byte("before"))
		got, err := ParseCall(record)
		if err != nil {
			t.Fatal(err)
		}
		if got.Tool != c.Tool || got.HarnessCall != c.HarnessCall || !bytes.Equal(got.Arguments, c.Arguments) || got.Progress != c.Progress {
			t.Fatalf("%+v became %+v", c, got)
		}
	})
}

func TestBounds(t *testing.T) {
	big := func(n int) []byte { return []byte(`{"a":"` + strings.Repeat("x", n-8) + `"}`) }
	c := testCall()
	c.Arguments = big(MaxArguments)
	record, err := AppendCall(nil, c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseCall(record); err != nil {
		t.Error(err)
	}
	c.Arguments = big(MaxArguments + 1)
	if _, err := AppendCall(nil, c); !errs.Is(err, errs.Oversize) {
		t.Errorf("one byte more: %v", err)
	}
	record = bytes.Replace(record, []byte(`"a":"`), []byte(`"a":"x`), 1)
	if _, err := ParseCall(record); !errs.Is(err, errs.Oversize) {
		t.Errorf("one byte more, read: %v", err)
	}
	if _, err := ParseCall(big(MaxCall + 1)); !errs.Is(err, errs.Oversize) {
		t.Errorf("a record over its bound: %v", err)
	}
	r := &Result{ID: c.ID, State: "answered", Result: big(MaxInline)}
	if record, err = AppendResult(nil, r); err != nil {
		t.Fatal(err)
	}
	if _, err := ParseResult(record); err != nil {
		t.Error(err)
	}
	r.Result = big(MaxInline + 1)
	if _, err := AppendResult(nil, r); !errs.Is(err, errs.Oversize) {
		t.Errorf("a result over its bound: %v", err)
	}
	if _, err := AppendGate(nil, &Gate{Session: c.Session, Epoch: 1, Build: "b", NetNS: "4:1", Probe: big(MaxGate)}); !errs.Is(err, errs.Oversize) {
		t.Errorf("a gate over its bound: %v", err)
	}
	if _, err := ParseGate(big(MaxGate + 1)); !errs.Is(err, errs.Oversize) {
		t.Errorf("a gate over its bound, read: %v", err)
	}
	if _, err := ParseCancel(big(MaxNote + 1)); !errs.Is(err, errs.Oversize) {
		t.Errorf("a cancel over its bound: %v", err)
	}
	var tools [][]byte
	for i := range MaxToolCount + 1 {
		tools = append(tools, []byte(`{"name":"t`+strings.Repeat("x", i%50)+NewID()[:10]+`"}`))
	}
	if _, err := AppendTools(nil, tools); !errs.Is(err, errs.Oversize) {
		t.Errorf("one tool too many: %v", err)
	}
	if _, err := AppendTools(nil, [][]byte{big(MaxTools)}); !errs.Is(err, errs.Oversize) {
		t.Errorf("tools.json over its bound: %v", err)
	}
}

// What the arguments nest counts together with the record around them, on both sides.
func TestDepthIsTheSameForWriterAndReader(t *testing.T) {
	for _, deep := range []int{98, 99} {
		c := testCall()
		c.Arguments = []byte(`{"a":` + strings.Repeat("[", deep) + strings.Repeat("]", deep) + `}`)
		record, err := AppendCall(nil, c)
		if deep == 98 {
			if err != nil {
				t.Fatal(err)
			}
			if _, err := ParseCall(record); err != nil {
				t.Error(err)
			}
		} else if !errs.Is(err, errs.Invalid) {
			t.Errorf("%d deep: %v", deep, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, kind := range []string{"call", "result", "cancel", "gate", "progress", "session", "tools"} {
		for _, v := range loadSeeds(f, kind+".json") {
			f.Add(v)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := ParseCall(data); err == nil {
			again, err := AppendCall(nil, &c)
			if err != nil {
				t.Fatalf("read but not written: %v", err)
			}
			back, err := ParseCall(again)
			if err != nil || back.ID != c.ID || back.Tool != c.Tool || !bytes.Equal(back.Arguments, c.Arguments) {
				t.Fatalf("%+v became %+v (%v)", c, back, err)
			}
		}
		if r, err := ParseResult(data); err == nil {
			if _, err := AppendResult(nil, &r); err != nil {
				t.Fatalf("read but not written: %v", err)
			}
		}
		if c, err := ParseCancel(data); err == nil {
			if _, err := AppendCancel(nil, &c); err != nil {
				t.Fatalf("read but not written: %v", err)
			}
		}
		if g, err := ParseGate(data); err == nil {
			if _, err := AppendGate(nil, &g); err != nil && !errs.Is(err, errs.Oversize) {
				t.Fatalf("read but not written: %v", err)
			}
		}
		if p, err := ParseProgress(data); err == nil {
			if _, err := AppendProgress(nil, &p); err != nil {
				t.Fatalf("read but not written: %v", err)
			}
		}
		if s, err := ParseSession(data); err == nil {
			if _, err := AppendSession(nil, &s); err != nil {
				t.Fatalf("read but not written: %v", err)
			}
		}
		if tools, err := ParseTools(data); err == nil {
			var raw [][]byte
			for _, x := range tools {
				raw = append(raw, x.Raw)
			}
			if _, err := AppendTools(nil, raw); err != nil {
				t.Fatalf("read but not written: %v", err)
			}
		}
	})
}

func FuzzParseName(f *testing.F) {
	f.Add(CallName(NewID()))
	f.Add("gate.json")
	f.Add("../x.call")
	f.Fuzz(func(t *testing.T, name string) {
		kind, id := ParseName(name)
		switch kind {
		case KindNone:
			return
		case KindGate:
			if name != GateName {
				t.Fatalf("%q is a gate", name)
			}
			return
		}
		if strings.ContainsAny(name, "/\x00\n") || !ValidID(id) || !strings.HasPrefix(name, id+".") {
			t.Fatalf("%q has the id %q", name, id)
		}
	})
}
