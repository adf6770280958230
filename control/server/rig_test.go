package server_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/connect/v2/connectproto"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.uber.org/goleak"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/control/audit"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journalkey"
	"sallyport.dev/control/server"
	"sallyport.dev/control/sqlstore"
	"sallyport.dev/errs"
	"sallyport.dev/identity"
	"sallyport.dev/identity/enrol"
	"sallyport.dev/identity/link"
	"sallyport.dev/intent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a whole control: real store, real pipeline, real sockets and certificates.
type rig struct {
	t      *testing.T
	store  *sqlstore.Store
	server *server.Server
	ca     *identity.CA
	id     spiffeid.ID
	link   string // address
	people sallyportv1connect.OperatorClient
	passes sallyportv1connect.PeopleClient
}

func newRig(t *testing.T) *rig {
	t.Helper()
	// Unix sockets have short paths.
	dir, err := os.MkdirTemp("", "sp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &rig{t: t}
	key := must(journalkey.Create(filepath.Join(dir, "journal.key")))
	auditKey := must(audit.CreateKey(filepath.Join(dir, "audit.key")))
	r.store = must(sqlstore.Open(t.Context(), sqlstore.Options{Dir: filepath.Join(dir, "c"), Key: key, Audit: auditKey, Node: "one", Log: slog.New(slog.DiscardHandler)}))
	r.ca = must(identity.NewCA("test.internal", time.Now()))
	r.id = must(identity.Name{Role: identity.Control, Name: "one", Domain: "test.internal"}.ID())
	root, node := must(intent.GenerateKey()), must(intent.GenerateKey())
	source := must(identity.NewSource(must(enrol.Issue(r.ca, r.id, time.Now())), time.Now()))
	r.link = "unix:" + filepath.Join(dir, "link.sock")
	log := slog.New(slog.DiscardHandler)
	r.server = server.New(server.Config{
		Build: "test", Node: "one", Source: source, CA: r.ca, Root: root, Key: node, Address: r.link, Durable: true, Web: "https://sallyport.example.org", Log: log,
	}, server.StoresOf(r.store))
	pipeline := call.New(call.Config{
		Run: r.store.Health().Run, Store: r.store, Sessions: r.store, Credentials: r.server.Credentials(), Workers: r.server.Workers(), Signer: r.server.Signer(),
		Hosts: r.server.Hosts(), Log: log, Observe: r.server.Observe,
	})
	r.server.Attach(pipeline)
	if err := pipeline.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	links := must(net.Listen("unix", filepath.Join(dir, "link.sock")))
	people := must(net.Listen("unix", filepath.Join(dir, "control.sock")))
	go func() { done <- r.server.ServeLinks(ctx, links) }()
	go func() { done <- r.server.ServePeople(ctx, people) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, "control.sock"))
	}}
	client := connect.NewClient(connecthttp.NewTransport(&http.Client{Transport: transport}, "http://control"))
	r.people, r.passes = sallyportv1connect.NewOperatorClient(client), sallyportv1connect.NewPeopleClient(client)
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		pipeline.Stop()
		if err := r.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) //nolint:forbidigo // a test's own set-up
	}
	return v
}

// machine enrols a machine and returns its identity.
func (r *rig) machine(role identity.Role, pool, name string) *identity.Source {
	r.t.Helper()
	n := identity.Name{Role: role, Pool: pool, Name: name, Domain: "test.internal"}
	if err := r.server.EnrolLocal(r.t.Context(), n); err != nil {
		r.t.Fatal(err)
	}
	return must(identity.NewSource(must(enrol.Issue(r.ca, must(n.ID()), time.Now())), time.Now()))
}

func (r *rig) workerClient(source *identity.Source) sallyportv1.WorkerClient {
	conn := must(link.Dial(source, r.id, r.link))
	r.t.Cleanup(func() { conn.Close() })
	return sallyportv1.NewWorkerClient(conn)
}

func (r *rig) hostClient(source *identity.Source) sallyportv1.HostClient {
	conn := must(link.Dial(source, r.id, r.link))
	r.t.Cleanup(func() { conn.Close() })
	return sallyportv1.NewHostClient(conn)
}

// codeOf is our code of an API error.
func codeOf(t *testing.T, err error) errs.Code {
	t.Helper()
	var ce *connect.Error
	if !errors.As(err, &ce) {
		t.Fatalf("not an API error: %v", err)
	}
	for _, d := range ce.Details() {
		if m, err := connectproto.UnmarshalErrorDetail(d); err == nil {
			if f, ok := m.(*sallyportv1.Failure); ok {
				return errs.Code(f.GetCode())
			}
		}
	}
	return ""
}
