package call

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

// Every end of a call has a sentence of its own, with its code, and says what to do.
func TestTexts(t *testing.T) {
	at := time.Date(2026, 11, 29, 14, 2, 0, 0, time.UTC)
	base := text{harness: "claude", tool: "new_issue", connection: "tracker", id: "3f", at: at}
	with := func(f func(*text)) text {
		n := base
		f(&n)
		return n
	}
	for want, in := range map[string]text{
		`Sallyport did not run new_issue: project "ops" is not allowed by the rule for this tool (rule_denied). Repeating the call will not help. Use a project in web, api, or go on without it.`: with(func(t *text) {
			t.code, t.reason, t.hint = errs.RuleDenied, `project "ops" is not allowed by the rule for this tool`, "Use a project in web, api, or go on without it."
		}),
		`A person declined new_issue: "duplicate of #41" (approval_denied). Do not repeat it. Follow the reason, or say so in your answer.`: with(func(t *text) {
			t.code, t.reason = errs.ApprovalDenied, "duplicate of #41"
		}),
		`new_issue waits for a person (call 3f, approval_pending). It has not run. Go on with other work, then call mcp__sallyport__await_call with {"call":"3f"}. Do not call new_issue again for this.`: with(func(t *text) {
			t.code = errs.ApprovalPending
		}),
		`new_issue was sent to tracker and has no answer yet (call 3f, still_running). Do not repeat it. Go on, then call mcp__sallyport__await_call with {"call":"3f"}.`: with(func(t *text) {
			t.code = errs.StillRunning
		}),
		`tracker refused new_issue (HTTP 403) and says that it did not run (call 3f, rejected). Do not repeat it unchanged.`: with(func(t *text) {
			t.code, t.status = errs.Rejected, 403
		}),
		`tracker refused new_issue (error -32602) and says that it did not run (call 3f, rejected). Do not repeat it unchanged.`: with(func(t *text) {
			t.code, t.status, t.rpcCode = errs.Rejected, 200, -32602
		}),
		`Nobody decided new_issue within 1 h; it did not run (approval_expired). Say so; call it again only if it is still needed.`: with(func(t *text) {
			t.code, t.expires = errs.ApprovalExpired, time.Hour
		}),
		`new_issue was sent to tracker, but the answer was lost: it may or may not have happened (call 3f, outcome_uncertain). Do not repeat it. A person was asked to check. Say this in your answer.`: with(func(t *text) {
			t.code = errs.OutcomeUncertain
		}),
		`Access to tracker was withdrawn at 14:02 UTC; new_issue did not run (revoked). Do not repeat it.`: with(func(t *text) { t.code = errs.Revoked }),
		`tracker is not connected for this person; new_issue did not run (not_connected). Ask them to connect it.`: with(func(t *text) {
			t.code = errs.NotConnected
		}),
		`tracker could not be reached; nothing was sent (not_sent). It is safe to call new_issue again later.`: with(func(t *text) { t.code = errs.NotSent }),
		`This is the recorded answer of call 3f from 14:02 UTC; new_issue was not run a second time (recorded_answer).`: with(func(t *text) {
			t.code = errs.RecordedAnswer
		}),
		`new_issue was answered, and its answer is recorded (call 3f, result_waits). It is long, and other long answers are handed over first. Do not repeat it. Go on, then call mcp__sallyport__await_call with {"call":"3f"}.`: with(func(t *text) {
			t.code = errs.ResultWaits
		}),
	} {
		got, isError := in.render()
		if got != want {
			t.Errorf("\ngot  %s\nwant %s", got, want)
		}
		calm := in.code == errs.ApprovalPending || in.code == errs.StillRunning || in.code == errs.RecordedAnswer ||
			in.code == errs.ResultWaits
		if isError == calm {
			t.Errorf("%s: isError %v", in.code, isError)
		}
	}
	for _, code := range []errs.Code{
		errs.UnknownTool, errs.InvalidArguments, errs.LimitReached, errs.Busy, errs.Voided, errs.Cancelled, errs.Abandoned, errs.DeadlineExceeded, errs.UnknownCall,
		errs.NoAnswer, errs.ResolvedDone, errs.ResolvedNotDone, errs.Unavailable, errs.Quarantined, errs.StoreFull, errs.NotAllowed, errs.Conflict, errs.Internal,
	} {
		in := base
		in.code = code
		got, isError := in.render()
		if !isError || !strings.Contains(got, string(code)) || !strings.HasSuffix(got, ".") {
			t.Errorf("%s: %q, isError %v", code, got, isError)
		}
	}
}

func TestHarnessNames(t *testing.T) {
	for harness, want := range map[string]string{
		"claude": "mcp__sallyport__await_call", "pi": "mcp__sallyport__await_call", "codex": "await_call (namespace mcp__sallyport)", "json": "await_call", "": "await_call",
	} {
		if got := harnessName(harness, AwaitTool); got != want {
			t.Errorf("%s: %s", harness, got)
		}
	}
}

func TestWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Hour: "1 h", 45 * time.Second: "45 s", 30 * time.Minute: "30 min", 7 * 24 * time.Hour: "7 days", 90 * time.Second: "90 s", 90 * time.Minute: "90 min",
	} {
		if got := words(d); got != want {
			t.Errorf("%s: %s", d, got)
		}
	}
}

// A result that is given again keeps every byte of the first, behind a note.
func TestRecorded(t *testing.T) {
	const note = `{"type":"text","text":"n"}`
	for in, want := range map[string]string{
		`{"content":[{"type":"text","text":"\u00e9"}], "x":1.10}`: `{"content":[` + note + `,{"type":"text","text":"\u00e9"}], "x":1.10}`,
		`{"content":[],"isError":false}`:                          `{"content":[` + note + `],"isError":false}`,
		`{"content":[ ]}`:                                         `{"content":[` + note + ` ]}`,
		`{"structuredContent":{"content":[1]}}`:                   `{"content":[` + note + `],"structuredContent":{"content":[1]}}`,
		`{}`:                                                      `{"content":[` + note + `]}`,
	} {
		got := recorded([]byte(in), "n")
		if string(got) != want {
			t.Errorf("%s: got %s", in, got)
		}
		if err := strictjson.Check(got); err != nil {
			t.Errorf("%s: %v", in, err)
		}
	}
}

// Parts that are too long become files with exactly their bytes; everything else keeps its own.
func TestHandOver(t *testing.T) {
	c := &control.Call{Name: "t", State: journal.Answered}
	whole := func(f *File) (b []byte) {
		for p := range f.Pieces() {
			b = append(b, p...)
		}
		return b
	}
	image := bytes.Repeat([]byte{0, 1, 255, 254, 63}, 100_000)
	encoded := base64.StdEncoding.EncodeToString(image)
	text := strings.Repeat(`a\\b \u00e9\ud83d\ude00\n/`, 50_000)
	plain, _ := strictjson.Unquote([]byte(`"` + text + `"`))
	many := `{"content":[` + strings.Repeat(`{"type":"text","text":"x"},`, 10_000) + `{"type":"text","text":"x"}]}`
	for name, one := range map[string]struct {
		in    string
		files []string
		keeps string
	}{
		"short":      {`{"content":[]}`, nil, `{"content":[]}`},
		"text":       {`{"content":[{"type":"text","text":"` + text + `"},{"type":"text","text":"\u0061"}],"x":1.10}`, []string{plain}, `{"type":"text","text":"\u0061"}],"x":1.10}`},
		"image":      {`{"content":[{"type":"image","mimeType":"image/png","data":"` + encoded + `"}],"isError":true}`, []string{string(image)}, "a name that ends in .png"},
		"escaped":    {`{"content":[{"type":"image","mimeType":"image/png","data":"` + strings.ReplaceAll(encoded, "/", `\/`) + `"}]}`, []string{string(image)}, ""},
		"no base64":  {`{"content":[{"type":"image","data":"` + encoded + `="}]}`, []string{`{"type":"image","data":"` + encoded + `="}`}, ""},
		"structured": {`{"content":[],"structuredContent":{"n":1.10,"s":"` + text + `"}}`, []string{`{"n":1.10,"s":"` + text + `"}`}, "The structured answer of t"},
		"the same":   {`{"content":[{"type":"text","text":"` + strings.Repeat("1", 9000) + `"}],"structuredContent":` + strings.Repeat("1", 9000) + `}`, []string{strings.Repeat("1", 9000)}, ""},
		"many":       {many, []string{many}, "the JSON of a tool's result"},
	} {
		h := handOver([]byte(one.in), c, "/files", 8<<10)
		if err := strictjson.Check(h.result); err != nil || len(h.result) > 8<<10 || !strings.Contains(string(h.result), one.keeps) || len(h.files) != len(one.files) {
			t.Errorf("%s: %d files, %v, %.300s", name, len(h.files), err, h.result)
			continue
		}
		for i, f := range h.files {
			if got := whole(f); string(got) != one.files[i] || f.Digest != control.Sum(got) || f.Size != int64(len(got)) ||
				!strings.Contains(string(h.result), "/files/"+f.Digest.String()) || !strings.Contains(h.cut, f.Digest.String()) {
				t.Errorf("%s: file %d has %d bytes, wanted %d", name, i, len(got), len(one.files[i]))
			}
		}
	}
}

func TestCallbackResult(t *testing.T) {
	for body, want := range map[string]string{
		`{"content":[],"x":1}`: `{"content":[],"x":1}`,
		`{"n":1.10}`:           `{"content":[{"type":"text","text":"{\"n\":1.10}"}],"structuredContent":{"n":1.10}}`,
		`[1]`:                  `{"content":[{"type":"text","text":"[1]"}],"structuredContent":[1]}`,
		`{"content":"x"}`:      `{"content":[{"type":"text","text":"{\"content\":\"x\"}"}],"structuredContent":{"content":"x"}}`,
	} {
		c := &control.Call{State: journal.Answered, Body: []byte(body)}
		if got := resultOf(c, true, text{}); string(got) != want {
			t.Errorf("%s: got %s", body, got)
		}
	}
}

// Two argument texts are twins exactly when they have the same members with the same literals.
func TestCanonical(t *testing.T) {
	for _, same := range [][2]string{
		{`{"a":1,"b":[1,{"x":"y"}]}`, ` { "b" : [ 1 , {"x":"y"} ] , "a" : 1 } `},
		{`{"\u0061":1}`, `{"a":1}`}, // a name is the same name however it is written
		{`{}`, "{ \n }"},
		{`[]`, `[ ]`},
	} {
		if a, b := canonical(nil, []byte(same[0])), canonical(nil, []byte(strings.TrimSpace(same[1]))); string(a) != string(b) {
			t.Errorf("%s and %s: %s and %s", same[0], same[1], a, b)
		}
	}
	for _, other := range [][2]string{
		{`{"n":1}`, `{"n":1.0}`},
		{`{"n":9007199254740993}`, `{"n":9007199254740992}`},
		{`{"s":"é"}`, `{"s":"\u00e9"}`},
		{`[1,2]`, `[2,1]`},
		{`{"a":null}`, `{}`},
		{`{"a":"1"}`, `{"a":1}`},
		{`{"a":{"b":1}}`, `{"a":[{"b":1}]}`},
	} {
		if string(canonical(nil, []byte(other[0]))) == string(canonical(nil, []byte(other[1]))) {
			t.Errorf("%s and %s are one call", other[0], other[1])
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		raw := []byte(rapid.StringMatching(`\{"[a-c]":([0-9]|"[a-z]*"|\[[0-9](,[0-9])*\]|\{"[x-z]":[0-9]\})(,"[d-f]":[0-9])?\}`).Draw(t, "json"))
		if strictjson.Check(raw) != nil {
			return
		}
		once := canonical(nil, raw)
		if twice := canonical(nil, once); string(once) != string(twice) || strictjson.Check(once) != nil {
			t.Fatalf("%s: %s, then %s", raw, once, twice)
		}
	})
}
