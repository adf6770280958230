package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/test/fixture/fault"
	"sallyport.dev/test/fixture/mcpserver"
)

type holder = *fault.Hold

// cmdFixture starts the MCP server of the fixtures in this process and sets URL: fixture [SECRET]
func cmdFixture(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 1 {
		ts.Fatalf("usage: fixture [SECRET]")
	}
	opts := mcpserver.Options{}
	if len(args) == 1 {
		opts.Auth = mcpserver.Auth{Kind: mcpserver.Bearer, Secret: args[0]}
	}
	serveFixture(ts, opts)
}

func serveFixture(ts *testscript.TestScript, opts mcpserver.Options) {
	s, err := mcpserver.New(opts)
	ts.Check(err)
	w := worldOf(ts)
	if w.fixture != nil {
		w.fixture.Close()
	}
	w.fixture = s
	ts.Setenv("URL", s.URL())
}

// cmdEffects wants that the server did something so often: effects TOOL N
func cmdEffects(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: effects TOOL N")
	}
	want, err := strconv.Atoi(args[1])
	ts.Check(err)
	if got := worldOf(ts).fixture.Effects().Count(args[0]); got != want {
		ts.Fatalf("the server did %s %d times, want %d", args[0], got, want)
	}
}

// cmdHold makes the server stop at a tool, or waits until a call is there: hold TOOL after-effect|before-effect, hold TOOL arrived
func cmdHold(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: hold TOOL before-effect|after-effect|arrived")
	}
	w := worldOf(ts)
	if args[1] != "arrived" {
		w.holds[args[0]] = w.fixture.Hold(args[0], fault.Where(args[1]))
		return
	}
	ctx, cancel := within()
	defer cancel()
	ts.Check(w.holds[args[0]].Arrived(ctx, 1))
}

// cmdRedescribe gives a tool of the server another description: redescribe TOOL TEXT
func cmdRedescribe(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: redescribe TOOL TEXT")
	}
	ts.Check(worldOf(ts).fixture.Describe(args[0], args[1]))
}

// cmdRelease lets go what stands anywhere: release
func cmdRelease(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: release")
	}
	worldOf(ts).fixture.Holds.Clear()
}

// api is the people's API of the script's installation.
func api(ts *testscript.TestScript) sallyportv1connect.OperatorClient {
	g := Globals{State: worldOf(ts).state}
	client, err := g.client()
	ts.Check(err)
	return client
}

// cmdHost joins a host with the token in a file, as sallyport enrol prints it: host TOKENFILE
func cmdHost(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: host TOKENFILE")
	}
	ctx, cancel := within()
	defer cancel()
	w := worldOf(ts)
	h, err := joinHost(ctx, strings.TrimSpace(ts.ReadFile(args[0])), hostDir(ts.Getenv("WORK"), strconv.Itoa(len(w.calls))))
	ts.Check(err)
	w.host = h
}

// cmdHello says hello to control as a host of another build, and makes the refusal the last standard error: hello WIRE PROTECTED
func cmdHello(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: hello WIRE PROTECTED")
	}
	wire, err := strconv.Atoi(args[0])
	ts.Check(err)
	protected, err := strconv.Atoi(args[1])
	ts.Check(err)
	ctx, cancel := within()
	defer cancel()
	if err = worldOf(ts).host.hello(ctx, int32(wire), int32(protected)); err != nil {
		fmt.Fprintln(ts.Stderr(), err)
	}
	if (err != nil) != neg {
		ts.Fatalf("the hello: %v", err)
	}
}

// cmdRecord sends bytes as the record of a call, as a guest of another build would: record SESSION BYTES
func cmdRecord(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: record SESSION BYTES")
	}
	worldOf(ts).host.record(args[0], []byte(args[1]))
}

// cmdSession opens a session of a profile and its gate: session VARIABLE PROFILE [unattended]
func cmdSession(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: session VARIABLE PROFILE [unattended]")
	}
	ctx, cancel := within()
	defer cancel()
	attended := len(args) == 2
	id := ""
	t, err := answer(api(ts).SessionTicket(ctx, &sallyportv1.SessionTicketRequest{Profile: args[1], Attended: attended}))
	if err == nil {
		id, err = worldOf(ts).host.open(ctx, args[1], t.GetTicket(), attended)
	}
	if neg {
		if err == nil {
			ts.Fatalf("the session opened")
		}
		fmt.Fprintln(ts.Stderr(), err)
		return
	}
	ts.Check(err)
	ts.Setenv(args[0], id)
}

// cmdEnded waits until control ended a session, and makes its reason the last standard output: ended SESSION
func cmdEnded(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: ended SESSION")
	}
	ctx, cancel := within()
	defer cancel()
	h := worldOf(ts).host
	why, ended := "", false
	ts.Check(h.wait(ctx, "the end of "+args[0], func() bool { why, ended = h.ended[args[0]]; return ended }))
	fmt.Fprintln(ts.Stdout(), why)
}

// cmdCall sends a call and sets a variable to its record: call VARIABLE SESSION TOOL ARGUMENTS
func cmdCall(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 {
		ts.Fatalf("usage: call VARIABLE SESSION TOOL ARGUMENTS")
	}
	w := worldOf(ts)
	id, err := w.host.call(args[1], args[2], args[3])
	ts.Check(err)
	w.calls[id] = args[1]
	ts.Setenv(args[0], id)
}

// cmdResult waits for the result of a record and makes what the model reads the last standard output: result RECORD. With ! it must be an error.
func cmdResult(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: result RECORD")
	}
	ctx, cancel := within()
	defer cancel()
	text, isError, err := worldOf(ts).host.result(ctx, args[0])
	ts.Check(err)
	fmt.Fprintln(ts.Stdout(), text)
	if isError != neg {
		ts.Fatalf("isError is %v: %s", isError, text)
	}
}

// cmdAck says that the agent has a result: ack RECORD
func cmdAck(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: ack RECORD")
	}
	w := worldOf(ts)
	w.host.acknowledge(w.calls[args[0]], args[0])
}

// each asks again after every event, until found is true.
func each(ts *testscript.TestScript, what string, found func(context.Context, sallyportv1connect.OperatorClient) (bool, error)) {
	ctx, cancel := within()
	defer cancel()
	client := api(ts)
	stream, err := client.Watch(ctx, &sallyportv1.WatchRequest{Kinds: []string{"watching", "question", "call"}})
	ts.Check(err)
	defer stream.Close()
	for {
		if _, err := stream.Receive(); err != nil {
			ts.Fatalf("waiting for %s: %v", what, err)
		}
		ok, err := found(ctx, client)
		ts.Check(err)
		if ok {
			return
		}
	}
}

// journaled finds the call of a record.
func journaled(ctx context.Context, client sallyportv1connect.OperatorClient, record string) (*sallyportv1.CallRow, error) {
	r, err := answer(client.ListCalls(ctx, &sallyportv1.ListCallsRequest{Limit: 500}))
	if err != nil {
		return nil, err
	}
	for _, c := range r.GetCalls() {
		if c.GetRecordId() == record {
			return c, nil
		}
	}
	return nil, nil
}

// cmdCallID waits until a record is journaled and sets a variable to its call: callid VARIABLE RECORD
func cmdCallID(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: callid VARIABLE RECORD")
	}
	each(ts, "the call of "+args[1], func(ctx context.Context, client sallyportv1connect.OperatorClient) (bool, error) {
		c, err := journaled(ctx, client, args[1])
		ts.Setenv(args[0], c.GetId())
		return c != nil, err
	})
}

// cmdState waits until the call of a record is in a state: state RECORD STATE
func cmdState(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: state RECORD STATE")
	}
	each(ts, args[0]+" to be "+args[1], func(ctx context.Context, client sallyportv1connect.OperatorClient) (bool, error) {
		c, err := journaled(ctx, client, args[0])
		return c.GetState() == args[1], err
	})
}

// cmdQuestion waits until the call of a record asks, and sets a variable to its approval: question VARIABLE RECORD [KIND]
func cmdQuestion(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: question VARIABLE RECORD [KIND]")
	}
	kind := "approval"
	if len(args) == 3 {
		kind = args[2]
	}
	each(ts, "the question of "+args[1], func(ctx context.Context, client sallyportv1connect.OperatorClient) (bool, error) {
		c, err := journaled(ctx, client, args[1])
		if c == nil || err != nil {
			return false, err
		}
		r, err := answer(client.ListApprovals(ctx, &sallyportv1.ListApprovalsRequest{}))
		if err != nil {
			return false, err
		}
		for _, a := range r.GetApprovals() {
			if a.GetCall() == c.GetId() && a.GetKind() == kind {
				ts.Setenv(args[0], a.GetId())
				return true, nil
			}
		}
		return false, nil
	})
}

// cmdJSONGet sets a variable from the last standard output, which must be one JSON document: jsonget VARIABLE PATH, such as calls.0.id
func cmdJSONGet(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: jsonget VARIABLE PATH")
	}
	var v any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &v))
	for _, step := range strings.Split(args[1], ".") {
		switch in := v.(type) {
		case map[string]any:
			v = in[step]
		case []any:
			i, err := strconv.Atoi(step)
			ts.Check(err)
			if i >= len(in) {
				ts.Fatalf("%s: only %d are there", args[1], len(in))
			}
			v = in[i]
		}
	}
	if v == nil {
		ts.Fatalf("there is no %s", args[1])
	}
	ts.Setenv(args[0], fmt.Sprint(v))
}

var digestMember = regexp.MustCompile(`digest: "([0-9a-f]{64})"`)

// cmdPolicy applies the policy that most scripts need, whole: the fixture as the connection tracker, its credential, its catalog, and what a file says
// of profiles: policy SECRET PROFILESFILE
func cmdPolicy(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: policy SECRET PROFILESFILE")
	}
	connection := fmt.Sprintf("version: 1\nconnections:\n  tracker:\n    url: %s\n    network: {allow: [127.0.0.0/8], http: true}\n    auth: {type: bearer}\n", ts.Getenv("URL"))
	write := func(name, text string) { ts.Check(writeText(ts.MkAbs(name), text)) }
	write("sallyport.yaml", connection)
	ts.Exec("sallyport", "apply", "--yes") //nolint:errcheck // it cannot pass its test before it has its credential
	write("secret", args[0])
	ts.Check(ts.Exec("sallyport", "credentials", "set", "tracker", "--file", "secret"))
	ts.Check(ts.Exec("sallyport", "catalogs", "pull", "tracker"))
	m := digestMember.FindStringSubmatch(ts.ReadFile("stdout"))
	if m == nil {
		ts.Fatalf("pull printed no digest")
	}
	write("sallyport.yaml", connection+fmt.Sprintf(`    catalog: {file: catalogs/tracker.json, digest: "%s"}
    tools:
      echo:         {effect: read}
      list_issues:  {effect: read, repeat: true}
      fail:         {effect: read}
      choose:       {effect: read}
      create_issue: {effect: write, as: new_issue}
      add_comment:  {effect: write}
`, m[1])+ts.ReadFile(args[1]))
	ts.Check(ts.Exec("sallyport", "apply", "--yes"))
}

func writeText(path, text string) error { return os.WriteFile(path, []byte(text), 0o600) }

// cmdMoved moves the connection of sallyport.yaml to the pool lab: moved
func cmdMoved(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: moved")
	}
	text := strings.Replace(ts.ReadFile("sallyport.yaml"), "    auth:", "    pool: lab\n    auth:", 1)
	ts.Check(writeText(ts.MkAbs("sallyport.yaml"), text))
}

// cmdReadToken sets a variable to the line in a file: readtoken VARIABLE FILE
func cmdReadToken(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: readtoken VARIABLE FILE")
	}
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile(args[1])))
}

// cmdTamper changes one word of a record, in its middle: tamper FILE
func cmdTamper(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: tamper FILE")
	}
	text := ts.ReadFile(args[0])
	changed := strings.Replace(text, "answered", "rejected", 1)
	if changed == text {
		ts.Fatalf("%s has nothing to change", args[0])
	}
	ts.Check(writeText(ts.MkAbs(args[0]), changed))
}
