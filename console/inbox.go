package console

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
)

func (c *console) inbox(w http.ResponseWriter, r *http.Request) error {
	state := r.URL.Query().Get("state")
	list, err := c.api.ListApprovals(r.Context(), &sallyportv1.ListApprovalsRequest{State: state})
	if err != nil {
		return err
	}
	return c.render(w, r, http.StatusOK, "inbox.html", view{Title: "Inbox", Here: "inbox", Live: "question", Data: struct {
		State string
		Rows  []*sallyportv1.ApprovalRow
	}{state, list.GetApprovals()}})
}

// question is what the page of a question shows.
type question struct {
	*sallyportv1.ShowApprovalResponse
	Open  bool
	Diff  []line
	Error string // what became of a decision that was not taken
	Code  errs.Code
	Said  string // what was typed, kept
}

func (c *console) question(w http.ResponseWriter, r *http.Request) error {
	return c.showQuestion(w, r, http.StatusOK, question{})
}

func (c *console) showQuestion(w http.ResponseWriter, r *http.Request, status int, q question) error {
	var err error
	if q.ShowApprovalResponse, err = c.api.ShowApproval(r.Context(), &sallyportv1.ShowApprovalRequest{Id: r.PathValue("id")}); err != nil {
		return err
	}
	a := q.GetApproval()
	q.Open = a.GetState() == "open" && (a.GetExpiresMs() == 0 || a.GetExpiresMs() > c.cfg.Now().UnixMilli())
	if len(q.GetLastArguments()) > 0 {
		q.Diff = diff(indented(q.GetLastArguments()), indented(q.GetArguments()))
	}
	return c.render(w, r, status, "question.html", view{Title: a.GetConnection() + "/" + a.GetTool(), Here: "inbox", Live: "question", Data: q})
}

// decide sends what a person said, with the digest of what they were shown. Whoever was first won; the page then says who.
func (c *console) decide(w http.ResponseWriter, r *http.Request) error {
	req := &sallyportv1.DecideRequest{
		Approval: r.PathValue("id"), Digest: r.PostFormValue("digest"), Decision: r.PostFormValue("decision"), Reason: strings.TrimSpace(r.PostFormValue("reason")),
	}
	switch req.GetDecision() {
	case "grant":
		g, err := sessionGrant(r)
		if err != nil {
			return err
		}
		req.Decision, req.Grant = "approve", g
	case "answer":
		req.Answer = []byte(r.PostFormValue("answer"))
	case "deny":
		if req.GetReason() == "" {
			return c.showQuestion(w, r, http.StatusBadRequest, question{Error: "say why: the agent reads it, and knows what to do instead", Code: errs.Invalid})
		}
	}
	if _, err := c.api.Decide(r.Context(), req); err != nil {
		code, message, status := failure(err)
		if status == http.StatusUnauthorized || status == http.StatusNotFound || status == http.StatusInternalServerError {
			return err
		}
		return c.showQuestion(w, r, status, question{Error: message, Code: code, Said: req.GetReason()})
	}
	http.Redirect(w, r, "/inbox/"+r.PathValue("id"), http.StatusSeeOther)
	return nil
}

func sessionGrant(r *http.Request) (*sallyportv1.SessionGrant, error) {
	calls, err := strconv.ParseInt(r.PostFormValue("calls"), 10, 32)
	if err != nil {
		return nil, errs.New(errs.Invalid, "a session grant is for a number of calls")
	}
	minutes, err := strconv.ParseInt(r.PostFormValue("minutes"), 10, 32)
	if err != nil {
		return nil, errs.New(errs.Invalid, "a session grant is for a number of minutes")
	}
	return &sallyportv1.SessionGrant{When: strings.TrimSpace(r.PostFormValue("when")), Calls: int32(calls), Seconds: minutes * int64(time.Minute/time.Second)}, nil
}
