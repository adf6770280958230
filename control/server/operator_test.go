package server_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/errs"
	"sallyport.dev/identity"
	"sallyport.dev/intent/seal"
)

const yaml = `version: 1
connections:
  tracker: {url: "https://mcp.tracker.example.org/mcp", auth: {type: bearer}}
profiles:
  dev: {attended: true}
`

func (r *rig) apply(text string) *sallyportv1.ApplyResponse {
	r.t.Helper()
	out, err := r.people.Apply(r.t.Context(), &sallyportv1.ApplyRequest{Yaml: []byte(text)})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func TestPersonIsThePeerOfTheSocket(t *testing.T) {
	r := newRig(t)
	s, err := r.people.Status(t.Context(), &sallyportv1.StatusRequest{})
	if err != nil || !strings.HasPrefix(s.GetPerson(), "local:") || len(s.GetRoles()) != 1 || !s.GetDurable() {
		t.Errorf("%v %v", s, err)
	}
}

func TestApplyPlansTestsAndConflicts(t *testing.T) {
	r := newRig(t)
	plan, err := r.people.Plan(t.Context(), &sallyportv1.PlanRequest{Yaml: []byte(yaml)})
	if err != nil || len(plan.GetChanges()) != 3 {
		t.Fatalf("%v %v", plan, err)
	}
	out := r.apply(yaml)
	if len(out.GetTests()) != 1 || out.GetTests()[0].GetOk() || !strings.Contains(out.GetTests()[0].GetSteps()[0].GetDetail(), "no worker of pool default is up") {
		t.Errorf("without a worker: %v", out)
	}
	if _, err := r.people.Apply(t.Context(), &sallyportv1.ApplyRequest{Yaml: []byte(yaml), PlanDigest: plan.GetDigest()}); codeOf(t, err) != errs.Conflict {
		t.Errorf("an old plan: %v", err)
	}
	bad, err := r.people.Apply(t.Context(), &sallyportv1.ApplyRequest{Yaml: []byte("version: 1\nprofiles: {dev: {atended: true}}\nstanding: {x: {}}\n")})
	if err != nil || len(bad.GetProblems()) < 2 || bad.GetProblems()[0].GetLine() != 2 {
		t.Errorf("problems: %v %v", bad, err)
	}
}

// Control takes only what was sealed under exactly the next version's associated data, and cannot open it.
func TestCredentialsAreSealedForOnePlace(t *testing.T) {
	r := newRig(t)
	r.apply(yaml)
	key, err := seal.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.people.PoolKey(t.Context(), &sallyportv1.PoolKeyRequest{Connection: "tracker"}); codeOf(t, err) != errs.Unreachable {
		t.Errorf("no worker: %v", err)
	}
	source := r.machine(identity.Worker, "default", "w")
	stream, err := r.workerClient(source).Link(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h := hello("default")
	h.PoolKey = key.Public().Bytes()
	if err := stream.Send(helloFrames(h)); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	offered, err := r.people.PoolKey(t.Context(), &sallyportv1.PoolKeyRequest{Connection: "tracker"})
	if err != nil || offered.GetFingerprint() != key.Public().Fingerprint() || offered.GetVersion() != 1 {
		t.Fatalf("%v %v", offered, err)
	}
	put := func(bound []byte, version int64) error {
		sealed, err := seal.Seal(key.Public(), seal.Credential, bound, []byte("the-secret"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.people.PutCredential(t.Context(), &sallyportv1.PutCredentialRequest{Connection: "tracker", Version: version, Sealed: sealed, KeyFingerprint: offered.GetFingerprint()})
		return err
	}
	other := seal.Bound{Org: "default", Connection: "tracker", Subject: "shared", Version: 1, Origin: "https://evil.example.org", PathPrefix: "/mcp"}
	if err := put(other.Bytes(), 1); codeOf(t, err) != errs.Conflict {
		t.Errorf("sealed for another origin: %v", err)
	}
	// What is not sealed is a credential in clear: it is refused, and goes nowhere.
	if _, err := r.people.PutCredential(t.Context(), &sallyportv1.PutCredentialRequest{
		Connection: "tracker", Version: 1, Sealed: []byte("the-secret"), KeyFingerprint: offered.GetFingerprint(),
	}); codeOf(t, err) != errs.Invalid || strings.Contains(err.Error(), "the-secret") {
		t.Errorf("not sealed: %v", err)
	}
	if err := put(offered.GetAssociatedData(), 1); err != nil {
		t.Fatal(err)
	}
	if err := put(offered.GetAssociatedData(), 1); codeOf(t, err) != errs.Conflict {
		t.Errorf("the same version again: %v", err)
	}
	list, err := r.people.ListCredentials(t.Context(), &sallyportv1.ListCredentialsRequest{})
	if err != nil || len(list.GetCredentials()) != 1 || strings.Contains(list.String(), "the-secret") {
		t.Errorf("%v %v", list, err)
	}
}

func TestSwitchesNeedAnObject(t *testing.T) {
	r := newRig(t)
	r.apply(yaml)
	for name, c := range map[string]struct {
		kind, name string
		want       errs.Code
	}{
		"unknown kind":       {"planet", "earth", errs.Invalid},
		"unknown connection": {"connection", "trackr", errs.NotFound},
		"unknown tool":       {"tool", "tracker/x", errs.NotFound},
		"unknown session":    {"session", "aaaaaaaaaaaaaaaaaaaaaaaaaa", errs.NotFound},
		"unknown host":       {"host", "h", errs.NotFound},
		"unknown credential": {"credential", "tracker/shared", errs.NotFound},
		"unknown grant":      {"grant", "g", errs.NotFound},
		"everything by name": {"everything", "x", errs.Invalid},
		"no name":            {"connection", "", errs.Invalid},
	} {
		if _, err := r.people.Revoke(t.Context(), &sallyportv1.RevokeRequest{Kind: c.kind, Name: c.name}); codeOf(t, err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	preview, err := r.people.Revoke(t.Context(), &sallyportv1.RevokeRequest{Kind: "connection", Name: "tracker", DryRun: true})
	if err != nil || len(preview.GetHits()) == 0 || preview.GetId() != "" {
		t.Errorf("preview: %v %v", preview, err)
	}
	thrown, err := r.people.Revoke(t.Context(), &sallyportv1.RevokeRequest{Kind: "everything", Reason: "drill", Seconds: 60})
	if err != nil || thrown.GetId() == "" || thrown.GetTookUs() <= 0 {
		t.Fatalf("%v %v", thrown, err)
	}
	switches, err := r.people.ListSwitches(t.Context(), &sallyportv1.ListSwitchesRequest{})
	if err != nil || len(switches.GetSwitches()) != 1 || switches.GetSwitches()[0].GetUntilMs() == 0 {
		t.Errorf("%v %v", switches, err)
	}
	if _, err := r.people.Restore(t.Context(), &sallyportv1.RestoreRequest{Kind: "everything"}); err != nil {
		t.Error(err)
	}
	if _, err := r.people.Restore(t.Context(), &sallyportv1.RestoreRequest{Kind: "everything"}); codeOf(t, err) != errs.NotFound {
		t.Errorf("restored twice: %v", err)
	}
}

// Join: a token joins one machine, once; a broken request does not use it up; a renewal needs the identity that it renews.
func TestJoin(t *testing.T) {
	r := newRig(t)
	enrolled, err := r.people.Enrol(t.Context(), &sallyportv1.EnrolRequest{Role: "worker", Name: "two"})
	if err != nil {
		t.Fatal(err)
	}
	token, err := identity.ParseToken(enrolled.GetToken())
	if err != nil || token.Pool != "default" || token.Address != r.link {
		t.Fatalf("%v %v", token, err)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(r.link, "unix:"))
	}
	pinned := identity.JoinClient(token.CAKey, token.Control, time.Now)
	transport := &http.Transport{DialContext: dial, TLSClientConfig: pinned}
	defer transport.CloseIdleConnections()
	join := sallyportv1connect.NewJoinClient(connect.NewClient(connecthttp.NewTransport(&http.Client{Transport: transport}, "https://control")))
	if _, err := join.Join(t.Context(), &sallyportv1.JoinRequest{Token: enrolled.GetToken(), Csr: []byte("no csr")}); codeOf(t, err) != errs.Invalid {
		t.Errorf("a broken request: %v", err)
	}
	request, err := identity.NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := join.Renew(t.Context(), &sallyportv1.RenewRequest{Csr: request.CSR}); codeOf(t, err) != errs.NotAllowed {
		t.Errorf("a renewal without an identity: %v", err)
	}
	got, err := join.Join(t.Context(), &sallyportv1.JoinRequest{Token: enrolled.GetToken(), Csr: request.CSR})
	if err != nil {
		t.Fatal(err)
	}
	id, err := token.ID()
	if err != nil || got.GetSpiffeId() != id.String() {
		t.Errorf("joined as %s", got.GetSpiffeId())
	}
	if _, err := request.Accept(got.GetChain(), got.GetCa(), id, time.Now()); err != nil {
		t.Errorf("what came cannot be used: %v", err)
	}
	if _, err := join.Join(t.Context(), &sallyportv1.JoinRequest{Token: enrolled.GetToken(), Csr: request.CSR}); codeOf(t, err) != errs.NotAllowed {
		t.Errorf("the token again: %v", err)
	}
	if _, err := r.people.Enrol(t.Context(), &sallyportv1.EnrolRequest{Role: "worker", Name: "two"}); codeOf(t, err) != errs.Conflict {
		t.Errorf("the name again: %v", err)
	}
}

func TestUnknownObjects(t *testing.T) {
	r := newRig(t)
	id := "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	for name, call := range map[string]func() error{
		"call": func() error {
			_, err := r.people.ShowCall(t.Context(), &sallyportv1.ShowCallRequest{Id: id})
			return err
		},
		"prefix": func() error {
			_, err := r.people.ShowCall(t.Context(), &sallyportv1.ShowCallRequest{Id: "aaaa"})
			return err
		},
		"approval": func() error {
			_, err := r.people.ShowApproval(t.Context(), &sallyportv1.ShowApprovalRequest{Id: id})
			return err
		},
		"session": func() error {
			_, err := r.people.CloseOwnedSession(t.Context(), &sallyportv1.CloseOwnedSessionRequest{Session: id})
			return err
		},
		"profile": func() error {
			_, err := r.people.SessionTicket(t.Context(), &sallyportv1.SessionTicketRequest{Profile: "x"})
			return err
		},
		"machine": func() error {
			_, err := r.people.RemoveMachine(t.Context(), &sallyportv1.RemoveMachineRequest{Role: "host", Name: "x"})
			return err
		},
		"connection": func() error {
			_, err := r.people.TestConnection(t.Context(), &sallyportv1.TestConnectionRequest{Connection: "x"})
			return err
		},
	} {
		if err := call(); codeOf(t, err) != errs.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := r.people.ShowCall(t.Context(), &sallyportv1.ShowCallRequest{Id: "a"}); codeOf(t, err) != errs.Invalid {
		t.Errorf("a short prefix: %v", err)
	}
	if _, err := r.people.ListCalls(t.Context(), &sallyportv1.ListCallsRequest{State: "weird"}); codeOf(t, err) != errs.Invalid {
		t.Errorf("an unknown state: %v", err)
	}
}

// A watcher hears what happens after its first event.
func TestWatch(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := r.people.Watch(ctx, &sallyportv1.WatchRequest{Kinds: []string{"watching", "machine"}})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	defer cancel()
	if e, err := stream.Receive(); err != nil || e.GetKind() != "watching" {
		t.Fatalf("%v %v", e, err)
	}
	up(t, r, r.machine(identity.Worker, "default", "w"))
	if e, err := stream.Receive(); err != nil || e.GetKind() != "machine" || e.GetState() != "up" {
		t.Fatalf("%v %v", e, err)
	}
}
