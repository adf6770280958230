package runner

import (
	"fmt"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/relay"
	"sallyport.dev/relay/strictjson"
)

// The results that a host writes itself. The model reads them: what happened, whether to repeat, what to do instead.

func refusedText(tool string, why error) string {
	return fmt.Sprintf("Sallyport did not run %s: %s (%s).", named(tool), errs.Message(why), errs.CodeOf(why))
}

func cancelledText(tool string) string {
	return fmt.Sprintf("%s was cancelled before it was handed over; it did not run (%s).", named(tool), errs.Cancelled)
}

// expiredText says what is known of a call whose time is over while control did not answer.
func expiredText(session string, c *call) string {
	id := relay.CallID(session, c.id)
	switch {
	case !c.sent:
		return fmt.Sprintf("Sallyport did not run %s: its control plane could not be reached for %s (%s). It is safe to call %s again later.",
			named(c.tool), seconds(c.timeout), errs.DeadlineExceeded, named(c.tool))
	case c.journaled:
		return fmt.Sprintf("%s was recorded and has no answer yet: the control plane does not answer (call %s, %s). Do not repeat it. Go on with other work, then call the tool await_call with {\"call\":\"%[2]s\"}.",
			named(c.tool), id, errs.StillRunning)
	default:
		return fmt.Sprintf("%s was handed over, but the control plane did not confirm it within %s: it may or may not run (call %s, %s). Do not repeat it. Say this in your answer.",
			named(c.tool), seconds(c.timeout), id, errs.OutcomeUncertain)
	}
}

func tooLargeText(c *call) string {
	return fmt.Sprintf("The answer of %s was too large to be handed over (%s). It did run. Do not repeat it unchanged; ask for less.", named(c.tool), errs.Oversize)
}

func named(tool string) string {
	if tool == "" {
		return "the call"
	}
	return tool
}

func seconds(d time.Duration) string {
	if d < time.Second {
		return d.String()
	}
	return fmt.Sprintf("%d s", int64(d.Seconds()))
}

// localRecord is a result record with one text, marked as the host's own.
func localRecord(id string, call relay.Digest, text string) ([]byte, error) {
	result := append([]byte(nil), `{"content":[{"type":"text","text":`...)
	result = strictjson.AppendQuote(result, text)
	result = append(result, `}],"isError":true}`...)
	return relay.AppendResult(nil, &relay.Result{ID: id, Call: call, State: relay.StateHost, Result: result})
}
