package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"sallyport.dev/api/sallyport/v1"
)

// states that a person may look for, in the order of a call's life.
var states = []string{
	"admitted", "asking", "approved", "dispatching", "retrying", "working", "input_wanted", "answered", "rejected", "failed", "uncertain", "refused", "denied",
	"cancelled", "expired", "voided", "abandoned", "resolved_done", "resolved_not_done", "superseded",
}

// page of the journal.
const pageOf = 50

func (c *console) calls(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	req := &sallyportv1.ListCallsRequest{
		Session: q.Get("session"), State: q.Get("state"), Connection: q.Get("connection"), Owner: q.Get("owner"), Profile: q.Get("profile"), Tool: q.Get("tool"),
		Outcome: q.Get("outcome"), Unread: q.Get("unread") != "", Before: q.Get("before"), Limit: pageOf, Bounded: true,
	}
	if since, ok := ranges[q.Get("since")]; ok {
		req.SinceMs = c.cfg.Now().Add(-since).UnixMilli()
	}
	list, err := c.api.ListCalls(r.Context(), req)
	if err != nil {
		return err
	}
	older := ""
	if list.GetNext() != "" {
		next := cloned(q)
		next.Set("before", list.GetNext())
		older = "/calls?" + next.Encode()
	}
	return c.render(w, r, http.StatusOK, "calls.html", view{Title: "Calls", Here: "calls", Live: "call", Data: struct {
		Query  url.Values
		States []string
		Rows   []*sallyportv1.CallRow
		Older  string
	}{q, states, list.GetCalls(), older}})
}

func cloned(q url.Values) url.Values {
	out := url.Values{}
	for k, v := range q {
		out[k] = slices.Clone(v)
	}
	return out
}

var ranges = map[string]time.Duration{"1h": time.Hour, "24h": 24 * time.Hour, "7d": 7 * 24 * time.Hour}

// phase is one stretch of a call's life: a bar of its timeline.
type phase struct {
	State, Event, Actor, Detail string
	At                          int64
	Attempt                     int32
	Took                        time.Duration
	Last                        bool
	X, W                        int // of a thousand
	Kind                        string
}

// timeline is a call's life as bars: a short phase is still seen, and what it took stands beside it.
func timeline(events []*sallyportv1.CallEvent) []phase {
	if len(events) == 0 {
		return nil
	}
	const width, least = 1000, 6
	first, last := events[0].GetAtMs(), events[len(events)-1].GetAtMs()
	whole := max(last-first, 1)
	out := make([]phase, 0, len(events))
	for i, e := range events {
		p := phase{
			State: e.GetTo(), Event: e.GetEvent(), Actor: e.GetActor(), Detail: e.GetDetail(), At: e.GetAtMs(), Attempt: e.GetAttempt(), Last: i == len(events)-1,
			Kind: kindOf(e.GetTo()),
		}
		end := last
		if !p.Last {
			end = events[i+1].GetAtMs()
		}
		p.Took = time.Duration(end-e.GetAtMs()) * time.Millisecond
		p.X = min(int((e.GetAtMs()-first)*width/whole), width-least)
		p.W = min(max(int((end-e.GetAtMs())*width/whole), least), width-p.X)
		out = append(out, p)
	}
	return out
}

// kindOf is what colour a state has: who it waits for, or how it ended.
func kindOf(state string) string {
	switch state {
	case "asking", "input_wanted":
		return "person"
	case "dispatching", "working", "retrying", "admitted", "approved":
		return "run"
	case "answered", "resolved_done", "used":
		return "good"
	case "uncertain":
		return "doubt"
	}
	return "bad"
}

func (c *console) call(w http.ResponseWriter, r *http.Request) error {
	show, err := c.api.ShowCall(r.Context(), &sallyportv1.ShowCallRequest{Id: r.PathValue("id"), Bodies: true})
	if err != nil {
		return err
	}
	var why *sallyportv1.ExplainResponse
	if show.GetCall().GetConnection() != "" {
		if why, err = c.api.Explain(r.Context(), &sallyportv1.ExplainRequest{Call: show.GetCall().GetId()}); err != nil {
			why = nil // a profile or tool that is gone explains nothing
		}
	}
	return c.render(w, r, http.StatusOK, "call.html", view{Title: show.GetCall().GetConnection() + "/" + show.GetCall().GetTool(), Here: "calls", Live: "call", Data: struct {
		*sallyportv1.ShowCallResponse
		Timeline []phase
		Why      *sallyportv1.ExplainResponse
		Question bool
		Error    string
	}{ShowCallResponse: show, Timeline: timeline(show.GetEvents()), Why: why, Question: show.GetCall().GetState() == "asking"}})
}

func (c *console) uncertain(w http.ResponseWriter, r *http.Request) error {
	list, err := c.api.ListCalls(r.Context(), &sallyportv1.ListCallsRequest{State: "uncertain", Limit: maxRows})
	if err != nil {
		return err
	}
	slices.Reverse(list.GetCalls()) // the oldest first: it waits longest
	return c.render(w, r, http.StatusOK, "uncertain.html", view{Title: "Uncertain", Here: "uncertain", Live: "call", Data: list.GetCalls()})
}

const maxRows = 500

func (c *console) resolve(w http.ResponseWriter, r *http.Request) error {
	got, err := c.api.Resolve(r.Context(), &sallyportv1.ResolveRequest{
		Call: r.PathValue("id"), Resolution: r.PostFormValue("resolution"), Note: strings.TrimSpace(r.PostFormValue("note")),
		OverrideUnattested: r.PostFormValue("override") == "yes",
	})
	if err != nil {
		return err
	}
	to := got.GetCall().GetId()
	if got.GetRetry() != "" {
		to = got.GetRetry()
	}
	http.Redirect(w, r, "/calls/"+url.PathEscape(to), http.StatusSeeOther)
	return nil
}
