package server_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control/catalog"
	"sallyport.dev/errs"
	"sallyport.dev/identity"
	"sallyport.dev/intent"
)

// listing is a worker's Link that answers tests and catalogs, and tells of the catalogs. An empty list is a server that does not answer.
type listing struct {
	list  atomic.Pointer[string]
	asked chan struct{} // of the last catalog that was answered
}

func (l *listing) serve(stream sallyportv1.Worker_LinkClient) {
	for {
		jobs, err := stream.Recv()
		if err != nil {
			return
		}
		for _, j := range jobs.GetJobs() {
			if j.GetIntent() == nil {
				continue
			}
			in, err := intent.Parse(j.GetIntent().GetIntent())
			if err != nil {
				return
			}
			o := &sallyportv1.Outcome{Intent: in.ID, Transport: sallyportv1.Transport_TRANSPORT_ANSWERED, Protocol: "2026-07-28"}
			switch in.Kind {
			case intent.Probe:
				o.Output = []byte(`{"ok":true,"protocol":"2026-07-28","needs_credential":false,"steps":[]}`)
			case intent.Catalog:
				if o.Output = []byte(*l.list.Load()); len(o.Output) == 0 {
					o.Transport, o.Failure = sallyportv1.Transport_TRANSPORT_SENT, "timeout"
				}
			default:
			}
			f := &sallyportv1.WorkerFrames{Frames: []*sallyportv1.WorkerFrame{{Frame: &sallyportv1.WorkerFrame_Outcome{Outcome: o}}}}
			if stream.Send(f) != nil {
				return
			}
			if in.Kind == intent.Catalog {
				select {
				case l.asked <- struct{}{}:
				default:
				}
			}
		}
	}
}

func listOf(tools ...string) string {
	var raw []string
	for _, t := range tools {
		name, words, _ := strings.Cut(t, ":")
		raw = append(raw, fmt.Sprintf(`{"name":%q,"description":%q,"inputSchema":{"type":"object"}}`, name, words))
	}
	return `{"v":1,"tools":[` + strings.Join(raw, ",") + `]}`
}

// TestCatalogsAreChecked: on a schedule, without anybody's asking, a change makes a draft; what cannot be read, or not whole, changes nothing.
func TestCatalogsAreChecked(t *testing.T) {
	r := newRig(t)
	l := &listing{asked: make(chan struct{}, 1)}
	set := func(list string) { l.list.Store(&list) }
	set(listOf("a:one", "b:two"))
	stream := up(t, r, r.machine(identity.Worker, "default", "one"))
	go l.serve(stream)
	entries := must(catalog.Parse([]byte(*l.list.Load())))
	yaml := fmt.Sprintf(`version: 1
connections:
  tracker:
    url: https://mcp.tracker.example.org/mcp
    catalog: {file: tracker.json, digest: %q, on_change: {removed: stop}}
    tools: {a: {effect: read}, b: {effect: read}}
`, catalog.Digest(entries))
	out, err := r.people.Apply(t.Context(), &sallyportv1.ApplyRequest{Yaml: []byte(yaml), Files: []*sallyportv1.ConfigFile{{Name: "tracker.json", Data: []byte(*l.list.Load())}}})
	if err != nil || len(out.GetProblems()) > 0 || len(out.GetTests()) != 1 || !out.GetTests()[0].GetOk() {
		t.Fatalf("%v %v", out, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.server.CheckCatalogs(ctx, 40*time.Millisecond)
	}()
	defer func() {
		cancel()
		<-done
	}()
	drafts := func() []*sallyportv1.Draft {
		t.Helper()
		got, err := r.people.ListDrafts(t.Context(), &sallyportv1.ListDraftsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return got.GetDrafts()
	}
	// until asks again until something is true.
	until := func(what string, f func() bool) {
		t.Helper()
		for !f() {
			if t.Context().Err() != nil {
				t.Fatal(what)
			}
		}
	}
	checked := func(times int) {
		t.Helper()
		for range times {
			select {
			case <-l.asked:
			case <-t.Context().Done():
				t.Fatal("it is not looked at")
			}
		}
	}
	checked(2)
	if got := drafts(); len(got) != 0 {
		t.Fatalf("drafts of what was reviewed: %v", got)
	}

	set(listOf("a:other words", "c:new"))
	until("no draft", func() bool { return len(drafts()) == 1 })
	draft := drafts()[0]
	said := map[string]string{}
	for _, c := range draft.GetChanges() {
		said[c.GetTool()] = strings.Join(c.GetClasses(), " ") + " " + c.GetEffect()
	}
	if want := (map[string]string{"a": "description void", "b": "removed stop", "c": "added note"}); fmt.Sprint(said) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", said, want)
	}
	until("the drift is not marked", func() bool {
		p, err := r.store.Policy(t.Context(), nil)
		return err == nil && p.Drift["tracker"]["a"] && p.Stopped["tracker"]["b"] && !p.Stopped["tracker"]["a"] && !p.Drift["tracker"]["c"]
	})

	for name, list := range map[string]string{"no answer": "", "not JSON": "{", "a tool without a schema": `{"v":1,"tools":[{"name":"a"}]}`} {
		set(list)
		checked(3)
		p := must(r.store.Policy(t.Context(), nil))
		if got := drafts(); len(got) != 1 || got[0].GetDigest() != draft.GetDigest() || !p.Stopped["tracker"]["b"] || len(p.Catalogs["tracker"].Tools) != 2 {
			t.Errorf("%s: %v, %+v", name, got, p.Stopped)
		}
		if _, err := r.people.CheckCatalog(t.Context(), &sallyportv1.CheckCatalogRequest{Connection: "tracker"}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}

	// It is as reviewed again.
	set(listOf("a:one", "b:two"))
	until("the draft stays", func() bool { return len(drafts()) == 0 })
	if _, err := r.people.ReviewDraft(t.Context(), &sallyportv1.ReviewDraftRequest{Connection: "tracker", Digest: draft.GetDigest(), Approve: true}); codeOf(t, err) != errs.Conflict {
		t.Errorf("a draft that is over: %v", err)
	}
	until("the drift stays", func() bool {
		p, err := r.store.Policy(t.Context(), nil)
		return err == nil && len(p.Drift) == 0
	})
}
