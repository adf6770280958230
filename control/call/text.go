package call

import (
	"fmt"
	"strconv"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

// Reserved tools: every session has them.
const (
	AwaitTool   = "await_call"
	ConnectTool = "request_connection"
)

// harnessName is how a harness's model must name a tool of ours to call it.
func harnessName(harness, tool string) string {
	switch harness {
	case "claude", "pi":
		return "mcp__sallyport__" + tool
	case "codex":
		return tool + " (namespace mcp__sallyport)"
	}
	return tool
}

// text is what the model reads of a call that has no answer of its own: what happened, whether to repeat, what to do instead, and where a person
// finds it. Only safe words go in: names, codes, a person's reason, and the arguments' own values where the rule speaks of them.
type text struct {
	harness    string
	tool       string // in the sandbox
	connection string
	id         string
	code       errs.Code
	reason     string
	hint       string
	at         time.Time     // of a switch, or of a recorded answer
	expires    time.Duration // of the approval
	status     int
	rpcCode    int64
	waiting    bool // it may run, and has not begun
	asked      bool // the server asked for more
}

func (t *text) await() string {
	return harnessName(t.harness, AwaitTool) + ` with {"call":"` + t.id + `"}`
}

func (t *text) server() string {
	if t.connection == "" {
		return "the server"
	}
	return t.connection
}

// render returns the sentence, and whether the result is an error for the model.
func (t *text) render() (sentence string, isError bool) {
	switch t.code {
	case errs.ApprovalPending:
		if t.asked {
			return fmt.Sprintf("%s waits for a person: %s asked for more before it can finish (call %s, %s). Go on with other work, then call %s. Do not call %s again for this.",
				t.tool, t.server(), t.id, t.code, t.await(), t.tool), false
		}
		return fmt.Sprintf("%s waits for a person (call %s, %s). It has not run. Go on with other work, then call %s. Do not call %s again for this.",
			t.tool, t.id, t.code, t.await(), t.tool), false
	case errs.StillRunning:
		if t.waiting {
			return fmt.Sprintf("%s has not run yet: it waits for its turn at %s (call %s, %s). Do not repeat it. Go on, then call %s.",
				t.tool, t.server(), t.id, t.code, t.await()), false
		}
		return fmt.Sprintf("%s was sent to %s and has no answer yet (call %s, %s). Do not repeat it. Go on, then call %s.",
			t.tool, t.server(), t.id, t.code, t.await()), false
	case errs.ResultWaits:
		return fmt.Sprintf("%s was answered, and its answer is recorded (call %s, %s). It is long, and other long answers are handed over first. "+
			"Do not repeat it. Go on, then call %s.", t.tool, t.id, t.code, t.await()), false
	case errs.RecordedAnswer:
		return fmt.Sprintf("This is the recorded answer of call %s from %s; %s was not run a second time (%s).", t.id, clock(t.at), t.tool, t.code), false
	case errs.ApprovalDenied:
		said := ""
		if t.reason != "" {
			said = ": " + strconv.Quote(t.reason)
		}
		return fmt.Sprintf("A person declined %s%s (%s). Do not repeat it. Follow the reason, or say so in your answer.", t.tool, said, t.code), true
	case errs.ApprovalExpired:
		within := "in time"
		if t.expires > 0 {
			within = "within " + words(t.expires)
		}
		return fmt.Sprintf("Nobody decided %s %s; it did not run (%s). Say so; call it again only if it is still needed.", t.tool, within, t.code), true
	case errs.OutcomeUncertain:
		return fmt.Sprintf("%s was sent to %s, but the answer was lost: it may or may not have happened (call %s, %s). Do not repeat it. "+
			"A person was asked to check. Say this in your answer.", t.tool, t.server(), t.id, t.code), true
	case errs.Rejected:
		how := "HTTP " + strconv.Itoa(t.status)
		if t.status == 200 || t.status == 0 {
			how = "error " + strconv.FormatInt(t.rpcCode, 10)
		}
		return fmt.Sprintf("%s refused %s (%s) and says that it did not run (call %s, %s). Do not repeat it unchanged.",
			t.server(), t.tool, how, t.id, t.code), true
	case errs.Revoked:
		when := ""
		if !t.at.IsZero() {
			when = " at " + clock(t.at)
		}
		return fmt.Sprintf("Access to %s was withdrawn%s; %s did not run (%s). Do not repeat it.", t.server(), when, t.tool, t.code), true
	case errs.NotConnected:
		why, how := "", ""
		if t.reason != "" {
			why, how = ": "+t.reason, ": sallyport credentials connect "+t.connection
		}
		return fmt.Sprintf("%s is not connected for this person%s; %s did not run (%s). Ask them to connect it%s.", t.server(), why, t.tool, t.code, how), true
	case errs.NotSent:
		return fmt.Sprintf("%s could not be reached; nothing was sent (%s). It is safe to call %s again later.", t.server(), t.code, t.tool), true
	case errs.NoAnswer:
		return fmt.Sprintf("%s did not answer %s (%s, call %s). It only reads, so it is safe to call it again.", t.server(), t.tool, t.code, t.id), true
	case errs.Voided:
		return fmt.Sprintf("%s did not run: %s (%s). What was asked before does not count any more; call it again only if it is still needed.",
			t.tool, or(t.reason, "something that it was bound to changed"), t.code), true
	case errs.Cancelled:
		return fmt.Sprintf("%s was cancelled before anything was sent (%s).", t.tool, t.code), true
	case errs.DeadlineExceeded:
		return fmt.Sprintf("%s was not taken up in time; it did not run (%s). It is safe to call it again.", t.tool, t.code), true
	case errs.Abandoned:
		said := ""
		if t.reason != "" {
			said = ": " + strconv.Quote(t.reason)
		}
		return fmt.Sprintf("%s asked a person for more before it could finish %s, and got no answer%s (call %s, %s). Do not repeat it; say so in your answer.",
			t.server(), t.tool, said, t.id, t.code), true
	case errs.UnknownTool:
		return fmt.Sprintf("There is no tool %s in this session (%s). Repeating the call will not help. Use the tools that are listed.", t.tool, t.code), true
	case errs.UnknownCall:
		return fmt.Sprintf("This session has no call %s (%s). Use the id that a pending call named.", t.id, t.code), true
	case errs.InvalidArguments:
		return fmt.Sprintf("Sallyport did not run %s: %s (%s). Correct the arguments, then call it again.", t.tool, t.reason, t.code), true
	case errs.Busy, errs.StoreFull, errs.Unavailable, errs.Quarantined, errs.Unreachable:
		return fmt.Sprintf("Sallyport did not run %s: %s (%s). Nothing was sent. Go on without it, or call it again later.", t.tool, t.reason, t.code), true
	case errs.ResolvedDone:
		return fmt.Sprintf("A person checked %s: it did happen (call %s, %s). Its answer was lost. Do not repeat it.", t.tool, t.id, t.code), true
	case errs.ResolvedNotDone:
		return fmt.Sprintf("A person checked %s: it did not happen (call %s, %s). Call it again only if it is still needed.", t.tool, t.id, t.code), true
	}
	return fmt.Sprintf("Sallyport did not run %s: %s (%s). Repeating the call will not help. %s",
		t.tool, or(t.reason, "it is not allowed"), or(string(t.code), string(errs.RuleDenied)), or(t.hint, "Go on without it, and say so in your answer.")), true
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// clock is a time of day as the model reads it.
func clock(t time.Time) string { return t.UTC().Format("15:04 UTC") }

// words is a duration as people say it: 1 h, 30 min, 45 s. It is the difference of two instants that were taken a moment apart, so it is rounded.
func words(d time.Duration) string {
	d = d.Round(time.Second)
	for _, u := range []struct {
		of   time.Duration
		word string
	}{{24 * time.Hour, "days"}, {time.Hour, "h"}, {time.Minute, "min"}} {
		if d >= u.of && d%u.of == 0 {
			return fmt.Sprintf("%d %s", d/u.of, u.word)
		}
	}
	return fmt.Sprintf("%d s", d/time.Second)
}

// textOf is what a call that ended, or that nobody can wait for any longer, tells the model. expires is how long its approval could be given.
func textOf(c *control.Call, harness string, expires time.Duration) text {
	t := text{
		harness: harness, tool: c.Name, connection: c.Connection, id: c.ID, code: c.Code, reason: c.Reason, status: c.HTTPStatus, rpcCode: c.RPCCode,
		at: c.SettledAt, expires: expires,
	}
	switch c.State {
	case journal.Asking:
		t.code = errs.ApprovalPending
	case journal.InputWanted:
		t.code, t.asked = errs.ApprovalPending, true
	case journal.Admitted, journal.Approved, journal.Retrying:
		t.code, t.waiting = errs.StillRunning, true
	case journal.Dispatching, journal.Working:
		t.code = errs.StillRunning
	case journal.Denied:
		t.code = errs.ApprovalDenied
	case journal.Cancelled:
		t.code = errs.Cancelled
	case journal.Uncertain:
		t.code = errs.OutcomeUncertain
	case journal.Rejected:
		t.code = errs.Rejected
	case journal.Abandoned:
		t.code = errs.Abandoned
	case journal.ResolvedDone:
		t.code = errs.ResolvedDone
	case journal.ResolvedNotDone:
		t.code = errs.ResolvedNotDone
	}
	return t
}
