package upstream

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"sallyport.dev/test/fixture/mcpserver"
	"sallyport.dev/worker/netguard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const writeArgs = `{"project":"web","title":"Fix the login","estimate":1.10}`

// client makes a client that trusts s, and ends with the test.
func client(t testing.TB, s *mcpserver.Server) *Client {
	t.Helper()
	c := New(&netguard.Guard{RootCAs: s.Pool()}, "test")
	t.Cleanup(c.Close)
	return c
}

// target is s as a connection.
func target(s *mcpserver.Server, protocol string) *Target {
	origin, path, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(s.URL(), "https://"), "http://"), "/")
	scheme := "http://"
	if strings.HasPrefix(s.URL(), "https://") {
		scheme = "https://"
	}
	return &Target{Origin: scheme + origin, Path: "/" + path, Allow: []string{"127.0.0.0/8"}, PlainHTTP: scheme == "http://", Protocol: protocol, Owner: "session/connection"}
}

// deadline bounds a test that waits for the network.
func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// dispatch prepares and sends.
func dispatch(t testing.TB, c *Client, target *Target, call *Call, hooks Hooks) Outcome {
	t.Helper()
	p, err := c.Prepare(deadline(t), target, call, hooks)
	if err != nil {
		t.Fatalf("prepare: %v", err)
	}
	return p.Send(deadline(t))
}

var protocols = []string{v20260728, v20251125, v20250618, v20250326}
