package acceptance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sallyport.dev/test/fixture/mcpserver"
	"sallyport.dev/test/rig"
)

// TestGoverned is every case that leaves the installation as it was: they share one, and run at the same time.
func TestGoverned(t *testing.T) {
	t.Parallel()
	w := newWorld(t, []connection{
		{name: "modern-json", options: mcpserver.Options{Eras: mcpserver.Modern, Framing: mcpserver.JSON}},
		{name: "modern-sse", options: mcpserver.Options{Eras: mcpserver.Modern, Framing: mcpserver.SSE}},
		{name: "legacy-json", options: mcpserver.Options{Eras: mcpserver.Legacy, Framing: mcpserver.JSON}},
		{name: "legacy-sse", options: mcpserver.Options{Eras: mcpserver.Legacy, Framing: mcpserver.SSE}},
	}, governed(), rig.Connection{Name: "everything", URL: everything(t), Reads: []string{"echo", "get-sum"}})
	t.Run("cases", func(t *testing.T) { cases(t, w) })
	w.unspilled(t, "modern-json")
}

func cases(t *testing.T, w *world) {
	for name, test := range map[string]func(*testing.T, *world, agent){
		"Read": read, "ApprovedWrite": approvedWrite, "DeniedWrite": deniedWrite, "ExpiredWrite": expiredWrite, "PendingWrite": pendingWrite, "AwaitedWrite": awaitedWrite,
		"UnattendedWrite": unattendedWrite, "LeftAlone": leftAlone, "UncertainWrite": uncertainWrite, "Isolated": isolated, "Foreign": foreign,
	} {
		for _, a := range agents {
			t.Run(name+"/"+a.name, func(t *testing.T) {
				t.Parallel()
				test(t, w, a)
			})
		}
	}
	for name, test := range map[string]func(*testing.T, *world){
		"Spoken": spoken, "Isolated/program": isolatedProgram, "Interactive": interactive, "Inspector": inspector, "ExitCodes": exitCodes, "Streams": streams, "Signals": signals,
		"NothingRuns": nothingRuns, "Ended": ended,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, w)
		})
	}
}

// governed is what agents may do here.
func governed() string {
	var read, write []string
	for _, c := range []string{"modern-json", "modern-sse", "legacy-json", "legacy-sse"} {
		for _, r := range reads {
			read = append(read, c+"/"+r)
		}
		write = append(write, c+"/create_issue", c+"/add_comment")
	}
	grants := "    grants:\n      - {tools: [" + strings.Join(read, ", ") + "], rule: allow}\n      - {tools: [" + strings.Join(write, ", ") + "], rule: ask}\n"
	yaml := profiles(map[string]string{
		"dev":     "    attended: true\n" + grants,
		"brief":   "    attended: true\n    approval: {expires: 2s}\n" + grants,
		"later":   "    attended: true\n    hold: 0s\n" + grants,
		"soon":    "    attended: true\n    hold: 5s\n" + grants,
		"foreign": "    attended: true\n    grants:\n      - {tools: [everything/*], rule: allow}\n",
		"bot":     "    attended: false\n" + grants,
	}) + "standing:\n"
	for _, provider := range []string{"anthropic", "openai"} {
		yaml += fmt.Sprintf("  %s-nightly: {profile: %s-bot, tools: [modern-json/create_issue], when: 'args.project == \"web\"', calls: 100, until: %s, reason: \"the bot files issues\"}\n",
			provider, provider, time.Now().AddDate(0, 0, 7).Format(time.DateOnly))
	}
	return yaml
}
