package acceptance

import (
	"context"
	"slices"
	"strings"
	"testing"

	"sallyport.dev/test/fixture/fault"
	"sallyport.dev/test/fixture/mcpserver"
	"sallyport.dev/test/fixture/model"
	"sallyport.dev/test/rig"
)

// TestRestarts: one session of each agent lives through the death of every part, and through a revocation. All of them go step by step together: what
// is killed is everybody's.
func TestRestarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, []connection{{name: "tracker", options: mcpserver.Options{}}, {name: "legacy", options: mcpserver.Options{Eras: mcpserver.Legacy, Framing: mcpserver.SSE}}}, profiles(map[string]string{
		"dev": `    attended: true
    hold: 90s
    grants:
      - {tools: [tracker/echo, tracker/slow, legacy/slow], rule: allow}
      - {tools: [tracker/create_issue, legacy/create_issue], rule: ask}
`,
	}))
	paused := func(name, arguments, key string) model.Step {
		s := tool(name, arguments)
		s.Pause = "TOKEN " + key
		return s
	}
	const lost, late = `{"project":"web","title":"TOKEN: the worker dies"}`, `{"project":"web","title":"TOKEN: control dies"}`
	g := &group{t: t, w: w}
	for _, a := range agents {
		g.sessions = append(g.sessions, w.run(t, a, "dev",
			tool("tracker_slow", `{"key":"TOKEN 0"}`),
			tool("tracker_create_issue", lost),
			paused("tracker_echo", `{"text":"TOKEN 2"}`, "worker"),
			tool("legacy_create_issue", late),
			tool("legacy_slow", `{"key":"TOKEN 4"}`),
			paused("tracker_echo", `{"text":"TOKEN 5"}`, "revoked"),
			paused("tracker_echo", `{"text":"TOKEN 6"}`, "restored"),
			tool("tracker_create_issue", lost),
			model.Say("lived TOKEN"),
		))
	}

	g.each(func(s *session) { must(s.t, w.servers["tracker"].Waiting(s.ctx, s.token+" 0", 1)) })
	g.kill(rig.Host) // while it waits for answers
	g.each(func(s *session) { w.servers["tracker"].Release(s.token + " 0") })

	hold := w.servers["tracker"].Hold("create_issue", fault.AfterEffect)
	g.each(func(s *session) { s.approve(s.question("approval", "the worker dies")) })
	must(t, hold.Arrived(t.Context(), len(g.sessions)))
	g.kill(rig.Worker) // the server has done it, and has not said so
	hold.Open()
	g.each(func(s *session) { must(s.t, w.model.Paused(s.ctx, s.token+" worker")) })
	g.each(func(s *session) { w.model.Release(s.token + " worker") })

	g.each(func(s *session) { s.question("approval", "control dies") })
	g.kill(rig.Control) // while people are asked
	g.each(func(s *session) { s.approve(s.question("approval", "control dies")) })
	g.each(func(s *session) { must(s.t, w.servers["legacy"].Waiting(s.ctx, s.token+" 4", 1)) })
	g.kill(rig.Control) // while servers work
	g.each(func(s *session) { w.servers["legacy"].Release(s.token + " 4") })

	g.each(func(s *session) { must(s.t, w.model.Paused(s.ctx, s.token+" revoked")) })
	w.cli(t, "revoke", "connection", "tracker", "--reason", "a test")
	g.each(func(s *session) { w.model.Release(s.token + " revoked") })
	g.each(func(s *session) { must(s.t, w.model.Paused(s.ctx, s.token+" restored")) })
	w.cli(t, "restore", "connection", "tracker")
	g.each(func(s *session) { w.model.Release(s.token + " restored") })

	// The same again is a question of its own, which names what may have happened already.
	uncertain := map[*session]string{}
	g.each(func(s *session) {
		uncertain[s] = s.journal()[1].GetCall().GetId()
		q := s.question("approval", "the worker dies")
		if len(q.GetTwins()) != 1 || q.GetTwins()[0].GetId() != uncertain[s] {
			t.Errorf("%s: the question names the twins %+v, want %s", s.agent.name, q.GetTwins(), uncertain[s])
		}
		s.deny(q, "it is there")
	})
	for _, whole := range g.sessions {
		t.Run(whole.agent.name, func(t *testing.T) {
			s, first := whole.in(t), uncertain[whole]
			s.end("lived TOKEN")
			for n, want := range []string{
				"done: TOKEN 0", "", "TOKEN 2", `"title":"TOKEN: control dies"`, "done: TOKEN 4", "", "TOKEN 6",
			} {
				if got := s.got(n); want != "" && (got.IsError || !strings.Contains(got.Text, s.fill(want))) {
					t.Errorf("result %d is %+v, want %s", n, got, s.fill(want))
				}
			}
			s.failed(1, "tracker_create_issue was sent to tracker, but the answer was lost: it may or may not have happened (call "+first+", outcome_uncertain). Do not repeat it.")
			s.failed(5, "Access to tracker was withdrawn at ")
			s.effects("tracker", "create_issue", lost, 1, 1)
			s.effects("legacy", "create_issue", late, 1, 1)
			s.effects("tracker", "echo", `{"text":"TOKEN 5"}`, 0, 0)
			s.effects("tracker", "slow", `{"key":"TOKEN 0"}`, 1, 0)
			s.failed(7, `A person declined tracker_create_issue: "it is there" (approval_denied).`)
			w.cli(t, "calls", "resolve", first, "done", "--note", "found at the server")
			var states []string
			for _, c := range s.journal() {
				states = append(states, c.GetCall().GetState())
			}
			want := []string{"answered", "resolved_done", "answered", "answered", "answered", "refused", "answered", "denied"}
			if !slices.Equal(states, want) {
				t.Errorf("the journal says %q, want %q", states, want)
			}
		})
	}
	w.unspilled(t, "tracker")
}

// group is several sessions that go in step.
type group struct {
	t        *testing.T
	w        *world
	sessions []*session
}

// each does something for every session, one after another.
func (g *group) each(do func(*session)) {
	g.t.Helper()
	for _, s := range g.sessions {
		do(s)
	}
}

// kill ends a part dead in its tracks, and waits until it was started again and serves.
func (g *group) kill(part string) {
	g.t.Helper()
	before, err := g.w.rig.PID(part)
	must(g.t, err)
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	must(g.t, g.w.rig.KillPart(ctx, part))
	until(ctx, g.t, "another "+part, func() bool {
		pid, err := g.w.rig.PID(part)
		return err == nil && pid != before
	})
	for _, p := range []string{rig.Control, rig.Worker, rig.Host} {
		must(g.t, g.w.rig.AwaitLink(ctx, p))
	}
}
