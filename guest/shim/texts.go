package shim

import (
	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

// failure is a CallToolResult of our own, for where no host answers: one text block, marked as an error.
func failure(text string) []byte {
	dst := strictjson.AppendQuote([]byte(`{"content":[`+textBlock), text)
	return append(dst, `}],"isError":true}`...)
}

// What the model reads where no host answers. Each says what happened, whether to repeat, and what to do.
func textNoTools(err error) string { return "Sallyport has no tools here: " + notServed(err) }

func textNotServed(tool string, err error) string {
	return "Sallyport did not run " + tool + ": " + notServed(err) + " Repeating the call will not help; go on without it, and say so in your answer."
}

func textTooLong(tool string, have, most string) string {
	return "Sallyport did not run " + tool + ": its arguments have " + have + " bytes, at most " + most + " are relayed (" + string(errs.Oversize) + "). Send less in one call."
}

func textBusy(tool string) string {
	return "Sallyport did not run " + tool + ": too many calls of this session are open (" + string(errs.Busy) + "). Wait for one of them to end, then call it again."
}

func textNotPublished(tool string, err error) string {
	return "Sallyport did not run " + tool + ": " + errs.Message(err) + " (" + string(errs.CodeOf(err)) + "). It is safe to call " + tool + " again later."
}

func textUnclaimed(tool string) string {
	return "Sallyport did not run " + tool + ": nobody outside this sandbox took the call, so it was withdrawn (" + string(errs.NotSent) + "). It is safe to call " + tool + " again later."
}

func textNoAnswer(tool, call, await string) string {
	return tool + " was handed over and has no answer yet (call " + call + ", " + string(errs.StillRunning) + "): it may or may not have run. Do not repeat it. Go on with other work, then call " +
		await + ` with {"call":"` + call + `"}.`
}

func textBrokenAnswer(tool, call string, err error) string {
	return "The answer to " + tool + " was refused: " + errs.Message(err) + " (call " + call + ", " + string(errs.OutcomeUncertain) + "). It may or may not have run. Do not repeat it. Say this in your answer; a person can see the call."
}

// notServed says what is wrong with a relay directory and what to do.
func notServed(err error) string {
	code := errs.CodeOf(err)
	if code == errs.NotFound || code == errs.Unavailable {
		return "this sandbox was not started by Sallyport, or its relay directory is not mounted (" + string(code) + "). Start the agent with sallyport run, or mount the directories that sallyport attach prints."
	}
	return errs.Message(err) + " (" + string(code) + ")."
}
