package console_test

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectinprocess"
	"connectrpc.com/connect/v2/connectproto"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/console"
	"sallyport.dev/errs"
)

// nasty is what a server or an agent writes where it can: HTML, script, a right-to-left override, a tag character, an escape, a zero-width space.
const nasty = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\u202egnp.exe\u2066\u200b\x1b[2J\U000e0041\"'>{{.}}"

// secretOf are the sessions that the fake knows, by person.
var secretOf = map[string]string{"ada": "sps1.ada", "bea": "sps1.bea"}

// fake is the people's API in memory, as strict as the pages need it: who asks, one decision, the digest that was shown.
type fake struct {
	sallyportv1connect.UnimplementedOperatorHandler
	sallyportv1connect.UnimplementedPeopleHandler

	mu        sync.Mutex
	links     map[string]string
	ended     map[string]bool
	questions []*sallyportv1.ShowApprovalResponse
	calls     []*sallyportv1.ShowCallResponse
	switches  []*sallyportv1.SwitchRow
	roles     []string
	decisions int
	locked    bool
	subs      map[chan string]bool
}

func newFake() *fake {
	return &fake{links: map[string]string{}, ended: map[string]bool{}, roles: []string{"administrator"}, subs: map[chan string]bool{}}
}

func failed(code errs.Code, c connect.Code, message string) error {
	e := connect.NewError(c, message)
	if d, err := connectproto.NewErrorDetail(&sallyportv1.Failure{Code: string(code)}); err == nil {
		e = e.WithDetail(d)
	}
	return e
}

func (f *fake) who(ctx context.Context) (string, error) {
	info, _ := connect.CallInfoForServerContext(ctx)
	secret := strings.TrimPrefix(info.RequestHeader().Get("Authorization"), "Bearer ")
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.locked {
		return "", failed(errs.Unavailable, connect.CodeUnavailable, "the store is locked; try again")
	}
	for person, s := range secretOf {
		if s == secret && !f.ended[secret] {
			return person, nil
		}
	}
	return "", failed(errs.NotAllowed, connect.CodeUnauthenticated, "sign in first")
}

func (f *fake) Enter(_ context.Context, r *sallyportv1.EnterRequest) (*sallyportv1.EnterResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	person := f.links[r.GetSecret()]
	delete(f.links, r.GetSecret())
	if person == "" {
		return nil, failed(errs.NotAllowed, connect.CodePermissionDenied, "this link is used, or older than 5 minutes; ask for a new one: sallyport console")
	}
	return &sallyportv1.EnterResponse{Session: secretOf[person], ExpiresMs: time.Now().Add(time.Hour).UnixMilli(), Person: person}, nil
}

func (f *fake) Leave(ctx context.Context, _ *sallyportv1.LeaveRequest) (*sallyportv1.LeaveResponse, error) {
	person, err := f.who(ctx)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended[secretOf[person]] = true
	return &sallyportv1.LeaveResponse{}, nil
}

func (f *fake) ListPasses(ctx context.Context, _ *sallyportv1.ListPassesRequest) (*sallyportv1.ListPassesResponse, error) {
	person, err := f.who(ctx)
	return &sallyportv1.ListPassesResponse{Passes: []*sallyportv1.PassRow{{Id: "p1", Kind: "session", Person: person, CreatedMs: ago(time.Minute), ExpiresMs: ago(-time.Hour)}}}, err
}

func (f *fake) ListPeople(ctx context.Context, _ *sallyportv1.ListPeopleRequest) (*sallyportv1.ListPeopleResponse, error) {
	_, err := f.who(ctx)
	return &sallyportv1.ListPeopleResponse{People: []*sallyportv1.PersonRow{{Name: "bea", Roles: []string{"approver"}, Connections: []string{"tracker"}, Groups: []string{nasty}}}}, err
}

func (f *fake) Status(ctx context.Context, _ *sallyportv1.StatusRequest) (*sallyportv1.StatusResponse, error) {
	person, err := f.who(ctx)
	if err != nil {
		return nil, err
	}
	return &sallyportv1.StatusResponse{Person: person, Roles: f.roles, Machines: machines()}, nil
}

func machines() []*sallyportv1.Machine {
	return []*sallyportv1.Machine{
		{Role: "host", Name: "build-1", State: "up", Build: "v0.3.1", Sessions: 2, SeenMs: ago(2 * time.Second)},
		{Role: "worker", Name: "edge-1", Pool: "default", State: "up", Build: "v0.3.1", Confinement: "full: no files, no exec, no listening", SeenMs: ago(time.Second)},
	}
}

func (f *fake) ListMachines(ctx context.Context, _ *sallyportv1.ListMachinesRequest) (*sallyportv1.ListMachinesResponse, error) {
	_, err := f.who(ctx)
	return &sallyportv1.ListMachinesResponse{Machines: machines()}, err
}

func (f *fake) ListApprovals(ctx context.Context, r *sallyportv1.ListApprovalsRequest) (*sallyportv1.ListApprovalsResponse, error) {
	if _, err := f.who(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &sallyportv1.ListApprovalsResponse{}
	want := r.GetState()
	if want == "" {
		want = "open"
	}
	for _, q := range f.questions {
		if q.GetApproval().GetState() == want {
			out.Approvals = append(out.Approvals, q.GetApproval())
		}
	}
	return out, nil
}

func (f *fake) find(id string) *sallyportv1.ShowApprovalResponse {
	i := slices.IndexFunc(f.questions, func(q *sallyportv1.ShowApprovalResponse) bool {
		return q.GetApproval().GetId() == id || q.GetApproval().GetCall() == id
	})
	if i < 0 {
		return nil
	}
	return f.questions[i]
}

func (f *fake) ShowApproval(ctx context.Context, r *sallyportv1.ShowApprovalRequest) (*sallyportv1.ShowApprovalResponse, error) {
	if _, err := f.who(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.find(r.GetId())
	if q == nil {
		return nil, failed(errs.NotFound, connect.CodeNotFound, "there is no such thing, or it is not yours to see")
	}
	return q, nil
}

func (f *fake) Decide(ctx context.Context, r *sallyportv1.DecideRequest) (*sallyportv1.DecideResponse, error) {
	person, err := f.who(ctx)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.find(r.GetApproval())
	switch {
	case q == nil:
		return nil, failed(errs.NotFound, connect.CodeNotFound, "there is no such thing, or it is not yours to see")
	case q.GetApproval().GetState() != "open":
		return nil, failed(errs.Conflict, connect.CodeAborted, "this was decided already, or does not wait any more: it is "+q.GetApproval().GetState())
	case q.GetApproval().GetExpiresMs() <= time.Now().UnixMilli():
		return nil, failed(errs.ApprovalExpired, connect.CodeFailedPrecondition, "the time for this decision is over")
	case q.GetApproval().GetDigest() != r.GetDigest():
		return nil, failed(errs.Conflict, connect.CodeAborted, "what you looked at is not what would run now; look at it again")
	}
	f.decisions++
	next := map[string]string{"approve": "approved", "deny": "denied", "answer": "answered"}[r.GetDecision()]
	f.changeLocked(r.GetApproval(), next, person, r.GetReason())
	return &sallyportv1.DecideResponse{Approval: q.GetApproval()}, nil
}

// change is a decision of somebody else, or a policy that changed.
func (f *fake) change(id, state, by string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changeLocked(id, state, by, "")
}

// changeLocked replaces a question's row: a decision, or what makes one unneeded.
func (f *fake) changeLocked(id, state, by, reason string) {
	for i, q := range f.questions {
		if q.GetApproval().GetId() == id {
			next := clone(q)
			next.Approval.State, next.Approval.DecidedBy, next.Approval.Reason = state, by, reason
			f.questions[i] = next
		}
	}
	f.tellLocked("question")
}

func (f *fake) tellLocked(kind string) {
	for c := range f.subs {
		select {
		case c <- kind:
		default:
		}
	}
}

func (f *fake) Watch(ctx context.Context, _ *sallyportv1.WatchRequest, stream sallyportv1connect.OperatorWatchServerStream) error {
	if _, err := f.who(ctx); err != nil {
		return err
	}
	c := make(chan string, 16)
	f.mu.Lock()
	f.subs[c] = true
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.subs, c)
	}()
	if err := stream.Send(&sallyportv1.WatchResponse{Kind: "watching"}); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case k := <-c:
			if err := stream.Send(&sallyportv1.WatchResponse{Kind: k}); err != nil {
				return err
			}
		}
	}
}

func (f *fake) ListCalls(ctx context.Context, r *sallyportv1.ListCallsRequest) (*sallyportv1.ListCallsResponse, error) {
	if _, err := f.who(ctx); err != nil {
		return nil, err
	}
	out := &sallyportv1.ListCallsResponse{}
	for _, c := range f.calls {
		if r.GetState() == "" || r.GetState() == c.GetCall().GetState() {
			out.Calls = append(out.Calls, c.GetCall())
		}
	}
	return out, nil
}

func (f *fake) ShowCall(ctx context.Context, r *sallyportv1.ShowCallRequest) (*sallyportv1.ShowCallResponse, error) {
	if _, err := f.who(ctx); err != nil {
		return nil, err
	}
	for _, c := range f.calls {
		if c.GetCall().GetId() == r.GetId() {
			return c, nil
		}
	}
	return nil, failed(errs.NotFound, connect.CodeNotFound, "there is no such thing, or it is not yours to see")
}

func (f *fake) Explain(ctx context.Context, _ *sallyportv1.ExplainRequest) (*sallyportv1.ExplainResponse, error) {
	_, err := f.who(ctx)
	return &sallyportv1.ExplainResponse{Verdict: "ask", Steps: []string{"rule 2 of dev: ask tracker/create_issue when args.project in [\"web\", \"api\"]: holds"}}, err
}

func (f *fake) Resolve(ctx context.Context, r *sallyportv1.ResolveRequest) (*sallyportv1.ResolveResponse, error) {
	if _, err := f.who(ctx); err != nil {
		return nil, err
	}
	if r.GetNote() == "" {
		return nil, failed(errs.Invalid, connect.CodeInvalidArgument, "say with --note what was found: it stays in the journal")
	}
	for _, c := range f.calls {
		if c.GetCall().GetId() == r.GetCall() {
			c.Call.State = "resolved_" + strings.ReplaceAll(r.GetResolution(), "-", "_")
			return &sallyportv1.ResolveResponse{Call: c.GetCall()}, nil
		}
	}
	return nil, failed(errs.NotFound, connect.CodeNotFound, "no such call")
}

func (f *fake) ListSessions(ctx context.Context, _ *sallyportv1.ListSessionsRequest) (*sallyportv1.ListSessionsResponse, error) {
	_, err := f.who(ctx)
	return &sallyportv1.ListSessionsResponse{Sessions: []*sallyportv1.SessionRow{
		{Id: "kq3v5w2m7abcdefghijklmnopq", State: "open", Owner: "ada", Profile: "dev", Host: "build-1", Driver: "bwrap", Harness: "claude", Closed: "proven", Attended: true, CreatedMs: ago(42 * time.Minute), Calls: 2, OpenQuestions: 1},
		{Id: "pz7v5w2m7abcdefghijklmnopq", State: "open", Owner: "ci", Profile: "nightly", Host: "build-1", Driver: "bwrap", Harness: nasty, Closed: "asserted", CreatedMs: ago(3 * time.Hour)},
	}}, err
}

func (f *fake) ListConnections(ctx context.Context, _ *sallyportv1.ListConnectionsRequest) (*sallyportv1.ListConnectionsResponse, error) {
	_, err := f.who(ctx)
	return &sallyportv1.ListConnectionsResponse{Connections: []*sallyportv1.ConnectionRow{
		{Name: "tracker", Origin: "https://mcp.tracker.example.org", Path: "/mcp", Pool: "default", State: "enabled", Auth: "oauth", Protocol: "2026-07-28", Tools: 12, Uncertain: 1},
		{Name: "deploys", Origin: "https://platform.internal.example.org", Path: "/agent-tools", Pool: "default", State: "disabled", Auth: "signature", Protocol: nasty, Tools: 3},
	}}, err
}

func (f *fake) ListCredentials(ctx context.Context, _ *sallyportv1.ListCredentialsRequest) (*sallyportv1.ListCredentialsResponse, error) {
	_, err := f.who(ctx)
	return &sallyportv1.ListCredentialsResponse{Credentials: []*sallyportv1.CredentialRow{
		{Connection: "tracker", Subject: "shared", State: "good", Account: "u-77", Name: "sallyport-bot", Version: 4, ExpiresMs: ago(-50 * time.Minute)},
		{Connection: "deploys", Subject: "ada", State: "broken", Account: nasty, Version: 1},
	}}, err
}

func (f *fake) ListProfiles(ctx context.Context, _ *sallyportv1.ListProfilesRequest) (*sallyportv1.ListProfilesResponse, error) {
	_, err := f.who(ctx)
	return &sallyportv1.ListProfilesResponse{Profiles: []*sallyportv1.ProfileRow{{
		Name: "dev", Attended: true, Version: 7, Rules: []string{"allow tracker/list_issues", "ask tracker/create_issue when args.project in [\"web\", \"api\"] limit 20 calls per 1h", "deny deploys/*"},
		Settings: []string{"attended: true", "hold: 45s"}, Tools: []*sallyportv1.ProfileTool{{Name: "tracker_list_issues", Connection: "tracker", Tool: "list_issues", Effect: "read"}, {Name: "new_issue", Connection: "tracker", Tool: nasty, Effect: "write"}},
	}}}, err
}

func (f *fake) ListGrants(ctx context.Context, _ *sallyportv1.ListGrantsRequest) (*sallyportv1.ListGrantsResponse, error) {
	_, err := f.who(ctx)
	return &sallyportv1.ListGrantsResponse{Grants: []*sallyportv1.GrantRow{{
		Id: "nightly", Kind: "standing", Profile: "ci", Tool: "tracker/create_issue", When: `args.project == "web"`, Calls: 50, Used: 12, UntilMs: ago(-20 * 24 * time.Hour), By: "local:root", Reason: "triage bot", State: "active",
	}}}, err
}

func (f *fake) ListSwitches(ctx context.Context, _ *sallyportv1.ListSwitchesRequest) (*sallyportv1.ListSwitchesResponse, error) {
	if _, err := f.who(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return &sallyportv1.ListSwitchesResponse{Switches: slices.Clone(f.switches)}, nil
}

func (f *fake) Revoke(ctx context.Context, r *sallyportv1.RevokeRequest) (*sallyportv1.RevokeResponse, error) {
	person, err := f.who(ctx)
	if err != nil {
		return nil, err
	}
	out := &sallyportv1.RevokeResponse{Hits: []string{"2 sessions", "1 open question"}}
	if r.GetDryRun() {
		return out, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.switches = append(f.switches, &sallyportv1.SwitchRow{Id: "s", Kind: r.GetKind(), Name: r.GetName(), By: person, Reason: r.GetReason(), AtMs: time.Now().UnixMilli()})
	out.TookUs = 1840
	return out, nil
}

func (f *fake) Restore(ctx context.Context, _ *sallyportv1.RestoreRequest) (*sallyportv1.RestoreResponse, error) {
	_, err := f.who(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.switches = nil
	return &sallyportv1.RestoreResponse{TookUs: 900}, err
}

func (f *fake) CloseOwnedSession(ctx context.Context, _ *sallyportv1.CloseOwnedSessionRequest) (*sallyportv1.CloseOwnedSessionResponse, error) {
	_, err := f.who(ctx)
	return &sallyportv1.CloseOwnedSessionResponse{}, err
}

func ago(d time.Duration) int64 { return time.Now().Add(-d).UnixMilli() }

// site serves the console over a fake, as control does.
type site struct {
	*fake
	web *httptest.Server
}

func (s *site) link(person string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	secret := "spl1." + person + time.Now().Format("150405.000000000")
	s.links[secret] = person
	return s.web.URL + "/enter#" + secret
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{fake: newFake()}
	s.web = httptest.NewUnstartedServer(nil)
	public := &url.URL{Scheme: "http", Host: s.web.Listener.Addr().String()}
	server := connect.NewServer()
	sallyportv1connect.RegisterOperatorHandler(server, s.fake)
	sallyportv1connect.RegisterPeopleHandler(server, s.fake)
	h, err := console.Handler(console.Config{API: connectinprocess.New(server), Public: public, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.web.Config.Handler = h
	s.web.Start()
	t.Cleanup(func() {
		s.web.CloseClientConnections()
		s.web.Close()
	})
	return s
}
