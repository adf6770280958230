package main

import (
	"strings"
	"testing"
	"time"

	"sallyport.dev/control/config"
)

// A first sallyport.yaml reads as it is, and still does when its connection is uncommented up to its credential.
func TestStarterReads(t *testing.T) {
	first := starter
	for _, line := range []string{"connections:", "  tracker:", "    url: https://mcp.tracker.example.org/mcp", "    auth: {type: bearer}"} {
		if !strings.Contains(first, "\n#"+line+"\n") {
			t.Fatalf("the starter does not offer %q", line)
		}
		first = strings.Replace(first, "\n#"+line+"\n", "\n"+line+"\n", 1)
	}
	for name, text := range map[string]string{"as it is": starter, "a first connection": first} {
		policy, problems := config.Read([]byte(text), nil, nil, time.Now())
		if len(problems) > 0 {
			t.Errorf("%s: %v\n%s", name, problems, text)
			continue
		}
		if want := strings.Count(text, "\n  tracker:"); len(policy.Connections) != want {
			t.Errorf("%s: %d connections, not %d", name, len(policy.Connections), want)
		}
	}
}
