package acceptance

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport.dev/test/fixture/mcpserver"
	"sallyport.dev/test/fixture/model"
	"sallyport.dev/test/harness"
	"sallyport.dev/test/rig"
)

// world is one Sallyport, all of it as processes, with MCP servers to govern and a model whose script stands in the prompts.
type world struct {
	rig     *rig.Rig
	agents  *harness.Installed
	model   *model.Server
	servers map[string]*mcpserver.Server // by the connection's name
	canary  map[string]string            // secrets, by what they are: none may be found anywhere

	mu   sync.Mutex
	said strings.Builder // what the operator's commands printed
}

// The installation's secrets.
const (
	anthropicKey = "the key of the Anthropic model"
	openAIKey    = "the key of the OpenAI model"
)

func credentialOf(connection string) string { return "the credential of " + connection }

// connection is an MCP server of the fixture, as a connection.
type connection struct {
	name    string
	options mcpserver.Options
	limits  string
}

var reads = []string{
	"echo", "echo_raw", "get_issue", "list_issues", "numbers", "unknown", "unicode", "differs", "fail", "rpc_error", "media", "big", "slow",
}

// newWorld starts everything. yaml is what follows the connections in sallyport.yaml; MODEL in it stands for a profile's model, see profiles.
func newWorld(t *testing.T, connections []connection, yaml string, more ...rig.Connection) *world {
	t.Helper()
	bin, agents := programs(t)
	w := &world{agents: agents, servers: map[string]*mcpserver.Server{}, canary: map[string]string{
		anthropicKey: canary(), openAIKey: canary(),
	}}
	w.model = model.Start(t, model.Options{
		Anthropic: model.Credential{Header: "X-Api-Key", Value: w.canary[anthropicKey]},
		OpenAI:    model.Credential{Header: "Authorization", Value: "Bearer " + w.canary[openAIKey]},
	})
	var list []rig.Connection
	for _, c := range connections {
		what := credentialOf(c.name)
		w.canary[what] = canary()
		c.options.Auth = mcpserver.Auth{Kind: mcpserver.Bearer, Secret: w.canary[what]}
		w.servers[c.name] = mcpserver.Start(t, c.options)
		list = append(list, rig.Connection{
			Name: c.name, URL: w.servers[c.name].URL(), Auth: "{type: bearer}", Secret: w.canary[what], Limits: c.limits,
			Reads: reads, Writes: []string{"create_issue", "add_comment", "slow_write"},
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var err error
	w.rig, err = rig.Start(ctx, rig.Options{
		Programs: bin,
		Host: fmt.Sprintf("version: 1\nmodels:\n  anthropic: {provider: anthropic, url: %q, env: ACCEPTANCE_ANTHROPIC_KEY}\n  openai: {provider: openai, url: %q, env: ACCEPTANCE_OPENAI_KEY}\n",
			w.model.URL(), w.model.URL()+"/v1"),
		Env: []string{
			"ACCEPTANCE_ANTHROPIC_KEY=" + w.canary[anthropicKey], "ACCEPTANCE_OPENAI_KEY=" + w.canary[openAIKey],
		},
	})
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log:\n%s", clip([]byte(w.rig.Log())))
		}
		if err := w.rig.Close(); err != nil {
			t.Error(err)
		}
	})
	must(t, os.Mkdir(w.rig.Path("work"), 0o755))
	must(t, w.rig.Configure(ctx, append(list, more...), yaml))
	return w
}

// profiles writes each profile once for each provider of models, as PROVIDER-NAME. body has the members of a profile, each line indented by four.
func profiles(bodies map[string]string) string {
	var b strings.Builder
	b.WriteString("profiles:\n")
	for name, body := range bodies {
		fmt.Fprintf(&b, "  anthropic-%s:\n    model: {provider: anthropic, source: anthropic}\n%s", name, body)
		// Codex always declares the provider's own search of tools.
		fmt.Fprintf(&b, "  openai-%s:\n    model: {provider: openai, source: openai, allow: [tool_search]}\n%s", name, body)
	}
	return b.String()
}

// cli runs a command of an operator's. What it prints is kept, to be searched for secrets.
func (w *world) cli(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := w.rig.CLI(ctx, "", args...)
	w.mu.Lock()
	w.said.WriteString(out)
	if err != nil {
		w.said.WriteString(err.Error())
	}
	w.mu.Unlock()
	must(t, err)
	return out
}

// canary is a secret that is recognized wherever it turns up.
func canary() string { return canaryMark + token() }

// canaryMark begins every planted secret; 32 hexadecimal digits follow.
const canaryMark = "canary-"

// token is a text that stands nowhere else.
func token() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

// until asks again and again until ok.
func until(ctx context.Context, t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("waiting for %s: %v", what, ctx.Err())
		}
	}
}
