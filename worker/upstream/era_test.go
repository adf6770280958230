package upstream

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sallyport.dev/worker/netguard"
)

// An old server that answers every method that it does not know with an empty result is old, not one that nobody can speak with; one that lists
// revisions of which none is known here is the latter.
func TestEraOfServersThatAnswerEverything(t *testing.T) {
	for name, c := range map[string]struct{ discovered, protocol string }{
		"an empty result":        {`{}`, v20251125},
		"something else":         {`{"tools":[]}`, v20251125},
		"revisions unknown here": {`{"resultType":"complete","supportedVersions":["2031-01-01"],"capabilities":{}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body := make([]byte, r.ContentLength)
				r.Body.Read(body) //nolint:errcheck // what is missing shows below
				var m struct{ ID, Method string }
				m.ID, m.Method = text(body, "id"), text(body, "method")
				result := c.discovered
				switch {
				case m.ID == "":
					w.WriteHeader(http.StatusAccepted)
					return
				case m.Method == "initialize":
					result = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"old","version":"1"}}`
				case m.Method == "tools/list":
					result = `{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}`
				}
				w.Header().Set("Content-Type", "application/json")
				w.Write([]byte(`{"jsonrpc":"2.0","id":"` + m.ID + `","result":` + result + `}`)) //nolint:errcheck // the client would say it
			}))
			defer srv.Close()
			client := New(&netguard.Guard{}, "test")
			defer client.Close()
			list, err := client.ListTools(deadline(t), &Target{Origin: srv.URL, Path: "/", Allow: []string{"127.0.0.0/8"}, PlainHTTP: true, Owner: "o"})
			if c.protocol == "" {
				if err == nil || !strings.Contains(err.Error(), "no revision") || FailureOf(err) != FailInitialize {
					t.Errorf("%+v, %v", list, err)
				}
				return
			}
			if err != nil || list.Protocol != c.protocol || len(list.Tools) != 1 {
				t.Errorf("%+v, %v", list, err)
			}
		})
	}
}
