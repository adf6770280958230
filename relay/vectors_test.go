package relay

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport.dev/errs"
)

// vector is one entry of testdata/vectors, which is part of the format's documentation: other implementations read the same files.
type vector struct {
	Name      string          `json:"name"`
	Record    string          `json:"record"`
	RecordHex string          `json:"record_hex"` // instead of record, where that is not UTF-8
	SHA256    string          `json:"sha256"`
	Accept    bool            `json:"accept"`
	Error     errs.Code       `json:"error"`
	Fields    json.RawMessage `json:"fields"`
	Canonical bool            `json:"canonical"` // writing the fields gives these bytes
}

func (v *vector) bytes(t *testing.T) []byte {
	t.Helper()
	if v.RecordHex == "" {
		return []byte(v.Record)
	}
	b, err := hex.DecodeString(v.RecordHex)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func load[T any](t *testing.T, name string) []T {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "vectors", name))
	if err != nil {
		t.Fatal(err)
	}
	var all []T
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&all); err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("no vectors")
	}
	return all
}

// runVectors parses each record into the shape of the vectors' fields, and writes it again.
func runVectors[F any](t *testing.T, file string, read func([]byte) (F, error), write func(F) ([]byte, error)) {
	t.Helper()
	for _, v := range load[vector](t, file) {
		t.Run(v.Name, func(t *testing.T) {
			record := v.bytes(t)
			if got := Sum(record).String(); got != v.SHA256 {
				t.Errorf("digest %s", got)
			}
			got, err := read(record)
			if !v.Accept {
				if !errs.Is(err, v.Error) {
					t.Fatalf("got %v, want the code %s", err, v.Error)
				}
				if len(record) > 20 && bytes.Contains([]byte(err.Error()), record[:20]) {
					t.Errorf("the error quotes the record: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var want F
			d := json.NewDecoder(bytes.NewReader(v.Fields))
			d.DisallowUnknownFields()
			if err := d.Decode(&want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			again, err := write(got)
			if err != nil {
				t.Fatal(err)
			}
			if v.Canonical && !bytes.Equal(again, record) {
				t.Errorf("written again:\n%s\nwant\n%s", again, record)
			}
			if back, err := read(again); err != nil || !cmp.Equal(back, got) {
				t.Errorf("read again: %v\n%s", err, cmp.Diff(got, back))
			}
		})
	}
}

type callFields struct {
	Session     string `json:"session"`
	Epoch       int64  `json:"epoch"`
	Shim        string `json:"shim"`
	ID          string `json:"id"`
	Tool        string `json:"tool"`
	Arguments   string `json:"arguments"`
	TimeoutMS   int64  `json:"timeout_ms"`
	Progress    bool   `json:"progress"`
	Trace       string `json:"trace"`
	HarnessCall string `json:"harness_call"`
}

func TestCallVectors(t *testing.T) {
	runVectors(t, "call.json", func(data []byte) (callFields, error) {
		c, err := ParseCall(data)
		return callFields{c.Session, c.Epoch, c.Shim, c.ID, c.Tool, string(c.Arguments), c.TimeoutMS, c.Progress, c.Trace, c.HarnessCall}, err
	}, func(f callFields) ([]byte, error) {
		return AppendCall(nil, &Call{
			Session: f.Session, Epoch: f.Epoch, Shim: f.Shim, ID: f.ID, Tool: f.Tool, Arguments: []byte(f.Arguments),
			TimeoutMS: f.TimeoutMS, Progress: f.Progress, Trace: f.Trace, HarnessCall: f.HarnessCall,
		})
	})
}

func TestResultVectors(t *testing.T) {
	type fields struct {
		ID     string `json:"id"`
		Call   string `json:"call"`
		State  string `json:"state"`
		Result string `json:"result"`
	}
	runVectors(t, "result.json", func(data []byte) (fields, error) {
		r, err := ParseResult(data)
		return fields{r.ID, r.Call.String(), r.State, string(r.Result)}, err
	}, func(f fields) ([]byte, error) {
		call, err := ParseDigest(f.Call)
		if err != nil {
			return nil, err
		}
		return AppendResult(nil, &Result{ID: f.ID, Call: call, State: f.State, Result: []byte(f.Result)})
	})
}

func TestCancelVectors(t *testing.T) {
	type fields struct {
		Session string `json:"session"`
		Epoch   int64  `json:"epoch"`
		ID      string `json:"id"`
		Why     Why    `json:"why"`
	}
	runVectors(t, "cancel.json", func(data []byte) (fields, error) {
		c, err := ParseCancel(data)
		return fields{c.Session, c.Epoch, c.ID, c.Why}, err
	}, func(f fields) ([]byte, error) {
		return AppendCancel(nil, &Cancel{Session: f.Session, Epoch: f.Epoch, ID: f.ID, Why: f.Why})
	})
}

func TestRefusedVectors(t *testing.T) {
	type fields struct {
		Session string    `json:"session"`
		Epoch   int64     `json:"epoch"`
		ID      string    `json:"id"`
		Code    errs.Code `json:"code"`
		Tool    string    `json:"tool"`
		More    int64     `json:"more"`
	}
	runVectors(t, "refused.json", func(data []byte) (fields, error) {
		r, err := ParseRefused(data)
		return fields{r.Session, r.Epoch, r.ID, r.Code, r.Tool, r.More}, err
	}, func(f fields) ([]byte, error) {
		return AppendRefused(nil, &Refused{Session: f.Session, Epoch: f.Epoch, ID: f.ID, Code: f.Code, Tool: f.Tool, More: f.More})
	})
}

func TestGateVectors(t *testing.T) {
	type fields struct {
		Session string `json:"session"`
		Epoch   int64  `json:"epoch"`
		Build   string `json:"build"`
		NetNS   string `json:"netns"`
		Probe   string `json:"probe"`
	}
	runVectors(t, "gate.json", func(data []byte) (fields, error) {
		g, err := ParseGate(data)
		return fields{g.Session, g.Epoch, g.Build, g.NetNS, string(g.Probe)}, err
	}, func(f fields) ([]byte, error) {
		return AppendGate(nil, &Gate{Session: f.Session, Epoch: f.Epoch, Build: f.Build, NetNS: f.NetNS, Probe: []byte(f.Probe)})
	})
}

func TestProgressVectors(t *testing.T) {
	type fields struct {
		ID       string  `json:"id"`
		N        int64   `json:"n"`
		Progress float64 `json:"progress"`
		Total    float64 `json:"total"`
		Message  string  `json:"message"`
	}
	runVectors(t, "progress.json", func(data []byte) (fields, error) {
		p, err := ParseProgress(data)
		return fields{p.ID, p.N, p.Progress, p.Total, p.Message}, err
	}, func(f fields) ([]byte, error) {
		return AppendProgress(nil, &Progress{ID: f.ID, N: f.N, Progress: f.Progress, Total: f.Total, Message: f.Message})
	})
}

func TestSessionVectors(t *testing.T) {
	type limits struct {
		Line           int64 `json:"line"`
		Arguments      int64 `json:"arguments"`
		InFlight       int64 `json:"in_flight"`
		Unacknowledged int64 `json:"unacknowledged"`
	}
	type fields struct {
		Session   string `json:"session"`
		Epoch     int64  `json:"epoch"`
		Build     string `json:"build"`
		Server    string `json:"server"`
		Await     string `json:"await"`
		HoldMS    int64  `json:"hold_ms"`
		TimeoutMS int64  `json:"timeout_ms"`
		Limits    limits `json:"limits"`
	}
	runVectors(t, "session.json", func(data []byte) (fields, error) {
		s, err := ParseSession(data)
		return fields{s.Session, s.Epoch, s.Build, s.Server, s.Await, s.HoldMS, s.TimeoutMS, limits(s.Limits)}, err
	}, func(f fields) ([]byte, error) {
		return AppendSession(nil, &Session{
			Session: f.Session, Epoch: f.Epoch, Build: f.Build, Server: f.Server, Await: f.Await,
			HoldMS: f.HoldMS, TimeoutMS: f.TimeoutMS, Limits: Limits(f.Limits),
		})
	})
}

func TestToolsVectors(t *testing.T) {
	type tool struct {
		Name string `json:"name"`
		Raw  string `json:"raw"`
	}
	type fields struct {
		Tools []tool `json:"tools"`
	}
	runVectors(t, "tools.json", func(data []byte) (fields, error) {
		tools, err := ParseTools(data)
		f := fields{Tools: []tool{}}
		for _, x := range tools {
			f.Tools = append(f.Tools, tool{x.Name, string(x.Raw)})
		}
		return f, err
	}, func(f fields) ([]byte, error) {
		var raw [][]byte
		for _, x := range f.Tools {
			raw = append(raw, []byte(x.Raw))
		}
		return AppendTools(nil, raw)
	})
}

func TestNameVectors(t *testing.T) {
	kinds := map[string]Kind{"none": KindNone, "call": KindCall, "cancel": KindCancel, "ack": KindAck, "gate": KindGate, "refused": KindRefused}
	type name struct {
		Name string `json:"name"`
		Kind string `json:"kind"`
		ID   string `json:"id"`
	}
	for _, v := range load[name](t, "names.json") {
		if kind, id := ParseName(v.Name); kind != kinds[v.Kind] || id != v.ID {
			t.Errorf("%q: %v %q, want %s", v.Name, kind, id, v.Kind)
		}
	}
}

func TestDeadlineVectors(t *testing.T) {
	type deadline struct {
		Timeout int64 `json:"timeout_ms"`
		Ask     int64 `json:"ask_ms"`
		Answer  int64 `json:"answer_ms"`
	}
	for _, v := range load[deadline](t, "deadlines.json") {
		if got := AskAt(time.Duration(v.Timeout) * time.Millisecond).Milliseconds(); got != v.Ask {
			t.Errorf("%d ms: asked at %d, want %d", v.Timeout, got, v.Ask)
		}
		if got := AnswerAt(time.Duration(v.Timeout) * time.Millisecond).Milliseconds(); got != v.Answer {
			t.Errorf("%d ms: answered at %d, want %d", v.Timeout, got, v.Answer)
		}
	}
}

// loadSeeds returns the records of a vector file, for fuzzing.
func loadSeeds(f *testing.F, name string) (all [][]byte) {
	f.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "vectors", name))
	if err != nil {
		f.Fatal(err)
	}
	var vectors []vector
	if err := json.Unmarshal(data, &vectors); err != nil {
		f.Fatal(err)
	}
	for _, v := range vectors {
		if v.RecordHex == "" {
			all = append(all, []byte(v.Record))
		}
	}
	return all
}
