package rig_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"sallyport.dev/relay"
	"sallyport.dev/test/rig"
)

const badInputProfiles = `profiles:
  work:
    attended: true
    attached: allow
    approval: {expires: 1s}
    sandbox: {driver: process, closed: "no"}
    grants:
      - {tools: [tracker/echo, tracker/get_issue], rule: allow}
      - {tools: [tracker/create_issue], rule: ask}
`

// bad is one bad input: what it does, and what must be read of it where.
type bad struct {
	name     string
	params   string               // of tools/call
	command  []string             // of the operator, and what it is given
	yaml     string               // in place of sallyport.yaml
	change   func() (undo func()) // around it
	model    string               // what the model reads, or the JSON-RPC error
	journal  string               // code: reason of the newest refused row
	terminal []string             // what the command prints
}

// Each bad input says what to do, in the terminal, in the journal and to the model, where it is theirs; and a good call goes on after each. What needs
// more than an installation stands elsewhere: a full disk and a locked store in TestStoreThatCannotBeWritten, missing user namespaces in
// TestNoUserNamespaces, a port in use in the script badstart (cmd/sallyport), a guest that is too old in TestRig.
func TestBadInput(t *testing.T) {
	programs := programs(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	up, err := rig.StartUpstream(ctx, programs, "s3cret", "--auth", "bearer")
	must(t, err)
	defer up.Close()
	r, err := rig.Start(ctx, rig.Options{Programs: programs, Apart: true})
	must(t, err)
	defer func() {
		if t.Failed() {
			t.Log(r.Log())
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	tracker := rig.Connection{Name: "tracker", URL: up.URL, Auth: "{type: bearer}", Secret: "s3cret", Reads: []string{"echo", "get_issue"}, Writes: []string{"create_issue"}}
	must(t, r.Configure(ctx, []rig.Connection{tracker}, badInputProfiles))
	good, err := os.ReadFile(r.Path("sallyport.yaml"))
	must(t, err)
	s, err := r.Open(ctx, rig.SessionOptions{Profile: "work", Attended: true})
	must(t, err)

	withoutWorker := func() func() {
		must(t, r.StopPart(ctx, rig.Worker))
		return func() {
			must(t, r.StartPart(ctx, rig.Worker))
			must(t, r.AwaitLink(ctx, rig.Worker))
		}
	}
	apply := []string{"apply", "--yes"}
	addInside := func() func() {
		more := strings.Replace(string(good), "connections:\n", "connections:\n  inside:\n    url: https://10.1.2.3/mcp\n", 1)
		must(t, os.WriteFile(r.Path("sallyport.yaml"), []byte(more), 0o600))
		if out, err := r.CLI(ctx, "", apply...); err == nil {
			t.Errorf("a connection to a private address is in service: %s", out)
		}
		return func() {}
	}
	for _, b := range []bad{
		{
			name: "a wrong YAML", command: apply, yaml: string(good) + "  other: {attended: perhaps, granst: []}\n",
			terminal: []string{
				"profiles.other.attended: must be true or false\n",
				"profiles.other.granst: is not a member here; known members are attended, attached, on_disconnect, approvers, hold, approval, grants, sandbox, network, model\n",
				"sallyport: 2 problems in sallyport.yaml; nothing was changed (invalid)\n",
			},
		},
		{
			name: "an allow on a write", command: apply, yaml: strings.Replace(string(good), "create_issue], rule: ask", "create_issue], rule: allow", 1),
			terminal: []string{"profiles.work.grants[1]: allows a write (create_issue): a write is asked for (rule: ask), or an administrator gives a standing grant (standing:)\n"},
		},
		{
			name: "a private address", command: []string{"connections", "test", "inside"}, change: addInside,
			terminal: []string{
				"the address 10.1.2.3 is private; an administrator can name its prefix in the connection's network.allow\n",
				"sallyport: inside did not pass its test (unreachable)\n",
			},
		},
		{
			name: "an unknown tool", params: `{"name":"drop_all","arguments":{}}`,
			model:   `"error":{"code":-32602,"message":"unknown tool: use a name that tools/list gives"}`,
			journal: "unknown_tool: the agent called a tool that this session does not have; its guest refused it",
		},
		{
			name: "arguments that break the schema", params: `{"name":"tracker_echo","arguments":{"text":5}}`,
			model:   "Sallyport did not run tracker_echo: text must be string, not number (invalid_arguments). Correct the arguments, then call it again.",
			journal: "invalid_arguments: text must be string, not number",
		},
		{
			name: "duplicate keys", params: `{"name":"tracker_echo","arguments":{"text":"a","text":"b"}}`,
			model:   `"error":{"code":-32700,"message":"parse error: json: duplicate member name at byte `,
			journal: "invalid: the agent sent a line that is not strict JSON: broken, a name twice, not UTF-8, or too deep; its guest served nothing of it",
		},
		{
			name: "an oversize line", params: `{"name":"tracker_echo","arguments":{"text":"` + strings.Repeat("x", relay.MaxLine) + `"}}`,
			model:   `"error":{"code":-32600,"message":"the line is longer than 8388608 bytes; nothing of it was served"}`,
			journal: "oversize: the agent sent a line or arguments over the bound; its guest served nothing of it",
		},
		{
			name: "an expired approval", params: `{"name":"tracker_create_issue","arguments":{"project":"web","title":"late"}}`,
			model:   "Nobody decided tracker_create_issue within 1 s; it did not run (approval_expired). Say so; call it again only if it is still needed.",
			journal: "approval_expired: nobody decided in time",
		},
		{
			name: "a worker that is down", params: `{"name":"tracker_echo","arguments":{"text":"nobody"}}`, change: withoutWorker,
			model:   "tracker could not be reached; nothing was sent (not_sent). It is safe to call tracker_echo again later.",
			journal: "not_sent: no worker of pool default is up; start one with sallyport worker",
		},
	} {
		t.Run(b.name, func(t *testing.T) {
			before := refusedRows(t, ctx, r)
			undo := func() {}
			if b.yaml != "" {
				must(t, os.WriteFile(r.Path("sallyport.yaml"), []byte(b.yaml), 0o600))
			}
			if b.change != nil {
				undo = b.change()
			}
			if b.command != nil {
				out, err := r.CLI(ctx, "", b.command...)
				for _, want := range b.terminal {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("the terminal says %q, %v; want %q", out, err, want)
					}
				}
			}
			if b.params != "" {
				line, err := s.Request(ctx, "tools/call", []byte(b.params))
				must(t, err)
				if !strings.Contains(string(line), b.model) {
					t.Errorf("the model reads %s, want %q", line, b.model)
				}
			}
			undo()
			if b.journal != "" {
				var rows []string
				for len(rows) <= len(before) {
					rows = refusedRows(t, ctx, r)
					must(t, ctx.Err())
				}
				if rows[0] != b.journal {
					t.Errorf("the journal says %q, want %q", rows[0], b.journal)
				}
			}
			// Nothing is lost: the session goes on.
			text := fmt.Sprintf("after %s", b.name)
			if got, err := s.Call(ctx, "tracker_echo", fmt.Sprintf(`{"text":%q}`, text)); err != nil || got.Text != text {
				t.Errorf("a good call after it: %+v, %v", got, err)
			}
		})
	}
}

// refusedRows are the calls that did not run, newest first, as code: reason.
func refusedRows(t *testing.T, ctx context.Context, r *rig.Rig) (rows []string) {
	t.Helper()
	out, err := r.CLI(ctx, "", "--json", "calls", "list")
	must(t, err)
	var list struct {
		Calls []struct{ State, Code, Reason string }
	}
	must(t, json.Unmarshal([]byte(out), &list))
	for _, c := range list.Calls {
		if c.State != "answered" {
			rows = append(rows, c.Code+": "+c.Reason)
		}
	}
	return rows
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
