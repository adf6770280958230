package acceptance

import (
	"testing"

	"sallyport.dev/test/fixture/mcpserver"
	"sallyport.dev/test/fixture/model"
)

// TestGoverned is every case that leaves the installation as it was: they share one, and run at the same time.
func TestGoverned(t *testing.T) {
	t.Parallel()
	w := newWorld(t, []connection{
		{name: "modern-json", options: mcpserver.Options{Eras: mcpserver.Modern, Framing: mcpserver.JSON}},
		{name: "modern-sse", options: mcpserver.Options{Eras: mcpserver.Modern, Framing: mcpserver.SSE}},
		{name: "legacy-json", options: mcpserver.Options{Eras: mcpserver.Legacy, Framing: mcpserver.JSON}},
		{name: "legacy-sse", options: mcpserver.Options{Eras: mcpserver.Legacy, Framing: mcpserver.SSE}},
	}, profiles(map[string]string{
		"dev": `    attended: true
    grants:
      - {tools: [` + all("reads") + `], rule: allow}
      - {tools: [modern-json/create_issue, legacy-sse/create_issue], rule: ask}
`,
	}))
	t.Run("cases", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *world, agent){
			"ApprovedWrite": approvedWrite,
		} {
			t.Run(name, func(t *testing.T) {
				eachAgent(t, func(t *testing.T, a agent) { test(t, w, a) })
			})
		}
	})
}

// all are the reads of all connections.
func all(string) string {
	out := ""
	for _, c := range []string{"modern-json", "modern-sse", "legacy-json", "legacy-sse"} {
		for _, r := range reads {
			if out != "" {
				out += ", "
			}
			out += c + "/" + r
		}
	}
	return out
}

// approvedWrite: nothing reaches the server before a person agrees; then it is done once, with the bytes that the person was shown.
func approvedWrite(t *testing.T, w *world, a agent) {
	const arguments = `{"project":"web","title":"TOKEN the button is blue"}`
	s := w.run(t, a, "dev", tool("modern_json_create_issue", arguments), model.Say("done: {{0}}"))
	q := s.question("approval", "the button is blue")
	if got := string(q.GetArguments()); got != s.fill(arguments) {
		t.Errorf("a person is shown %s", got)
	}
	s.effects("modern-json", "create_issue", arguments, 0, 0)
	s.approve(q)
	s.end("done: ")
	s.effects("modern-json", "create_issue", arguments, 1, 1)
	s.state(arguments, "answered")
	t.Logf("%+v", s.received())
}
