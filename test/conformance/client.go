package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/test/rig"
)

// Names of the environment: of ours, the folder with the programs; of the suite's, the scenario and what its client should call.
const (
	programsEnv = "SALLYPORT_CONFORMANCE_PROGRAMS"
	scenarioEnv = "MCP_CONFORMANCE_SCENARIO"
	contextEnv  = "MCP_CONFORMANCE_CONTEXT"
)

// clients runs the client scenarios, one after the other: the suite starts this program again as the client, see [drive].
func clients(ctx context.Context, suite installation, programs rig.Programs, runs []run, _ bool) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.Setenv(programsEnv, programs.Dir); err != nil {
		return err
	}
	return suite.tryEach(ctx, runs, "client", "--command", self+" drive")
}

// drive is the client of a scenario: an installation of its own whose one upstream is the scenario's server, a session, and an agent that calls
// each tool that is offered, once. A person says yes to whatever the server asks, with the form's defaults.
func drive(ctx context.Context, url string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, scenarioTime)
	defer cancel()
	r, err := rig.Start(ctx, rig.Options{Programs: rig.Programs{Dir: os.Getenv(programsEnv)}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	// The name stands for two addresses, of which one is not in the network that the rig lets in.
	server := rig.Connection{Name: "server", URL: strings.Replace(url, "//localhost", "//127.0.0.1", 1)}
	as := map[string]string{} // the server's names by ours
	server.Review = func(names []string) (reads []string) {
		for i, name := range names {
			ours := "tool_" + strconv.Itoa(i)
			as[ours] = name
			reads = append(reads, name+"="+ours)
		}
		return reads
	}
	err = r.Configure(ctx, []rig.Connection{server}, "profiles:\n  suite:\n    attended: true\n    grants:\n      - {tools: [\"server/*\"], rule: allow}\n")
	if err != nil || len(as) == 0 {
		return err
	}
	// In a sandbox: what a person answers on this machine counts for no agent that could answer in its place.
	work := r.Path("work")
	if err := os.Mkdir(work, 0o755); err != nil {
		return err
	}
	cmd := r.Command(ctx, "run", "--profile", "suite", "--workspace", work, "--",
		"/bin/sh", "-c", "exec /run/sallyport/in/bin/sallyport-guest shim --in /run/sallyport/in --out /run/sallyport/out")
	cmd.Stderr = os.Stderr
	s, err := rig.StartShim(cmd)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.Initialize(ctx); err != nil {
		return err
	}
	answering, done := context.WithCancel(ctx)
	calling, stop := context.WithCancel(ctx) // a question that cannot be answered ends the calls that wait for it
	answered := make(chan error, 1)
	go func() {
		defer stop()
		answered <- answerAll(answering, r)
	}()
	err = callAll(calling, s, as)
	done()
	return errors.Join(err, <-answered)
}

// toolList is what tools/list gives.
type toolList struct {
	Result struct {
		Tools []struct {
			Name        string
			InputSchema json.RawMessage
		}
	}
}

// callAll calls every tool. What a call comes to is the scenario's to judge, not ours: it is printed for who reads the suite's output.
func callAll(ctx context.Context, s *rig.Shim, as map[string]string) error {
	line, err := s.Request(ctx, "tools/list", []byte("{}"))
	if err != nil {
		return err
	}
	var list toolList
	if err := json.Unmarshal(line, &list); err != nil {
		return err
	}
	var given struct {
		ToolCalls []struct {
			Name      string
			Arguments json.RawMessage
		}
	}
	if text := os.Getenv(contextEnv); text != "" {
		if err := json.Unmarshal([]byte(text), &given); err != nil {
			return err
		}
	}
	for _, t := range list.Result.Tools {
		name, ours := as[t.Name]
		if !ours {
			continue
		}
		arguments := fill(t.InputSchema)
		for _, c := range given.ToolCalls {
			if c.Name == name {
				arguments = c.Arguments
			}
		}
		if os.Getenv(scenarioEnv) == "json-schema-2020-12-preservation" {
			if !strings.Contains(string(t.InputSchema), `"schema"`) {
				continue
			}
			// What our client made of the other tool's schema is sent back.
			for _, other := range list.Result.Tools {
				if as[other.Name] == "json_schema_2020_12_tool" {
					arguments = append(append([]byte(`{"schema":`), other.InputSchema...), '}')
				}
			}
		}
		result, err := s.Call(ctx, t.Name, string(arguments))
		if err != nil {
			return err
		}
		fmt.Printf("%s %s: %s%s\n", name, arguments, result.Raw, result.Error)
	}
	return nil
}

// fill makes a value that fits a simple schema: its default, the first of a choice, or something of its type.
func fill(schema []byte) []byte {
	var s struct {
		Type       json.RawMessage
		Default    json.RawMessage
		Enum       []json.RawMessage
		Properties map[string]json.RawMessage
	}
	if json.Unmarshal(schema, &s) != nil {
		return []byte("{}")
	}
	switch {
	case s.Default != nil:
		return s.Default
	case len(s.Enum) > 0:
		return s.Enum[0]
	}
	switch string(s.Type) {
	case `"string"`:
		return []byte(`"text"`)
	case `"number"`, `"integer"`:
		return []byte("5")
	case `"boolean"`:
		return []byte("true")
	case `"array"`:
		return []byte("[]")
	case `"null"`:
		return []byte("null")
	}
	names := make([]string, 0, len(s.Properties))
	for name := range s.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	var b strings.Builder
	b.WriteByte('{')
	for i, name := range names {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%q:%s", name, fill(s.Properties[name]))
	}
	b.WriteByte('}')
	return []byte(b.String())
}

// answerAll answers every question of an upstream until ctx ends.
func answerAll(ctx context.Context, r *rig.Rig) error {
	api := r.Operator()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		list, err := api.ListApprovals(ctx, &sallyportv1.ListApprovalsRequest{})
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the calls are over
		}
		if err != nil {
			return err
		}
		for _, row := range list.GetApprovals() {
			shown, err := api.ShowApproval(ctx, &sallyportv1.ShowApprovalRequest{Id: row.GetId()})
			if err == nil {
				_, err = api.Decide(ctx, &sallyportv1.DecideRequest{Approval: row.GetId(), Digest: row.GetDigest(), Decision: "answer", Answer: fill(shown.GetForm())})
			}
			if err != nil && ctx.Err() == nil {
				return fmt.Errorf("answering %s: %w", filepath.Base(row.GetId()), err)
			}
		}
	}
}
