package shim

import (
	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

// appendResult appends the response to r with result, a checked CallToolResult: its bytes, with the members of the era and the projection of
// the client spliced in.
func appendResult(dst []byte, r *request, id, result []byte, build string) []byte {
	o := parseObject(result)
	r.projection.project(o)
	if r.era == modern {
		o.markModern(build)
	} else {
		o.markLegacy()
	}
	dst = appendResponse(dst, id)
	dst = o.append(dst)
	return append(dst, '}')
}

// markModern gives a result what 2026-07-28 wants in every one of them. What the upstream said in these places was about another hop.
func (o *object) markModern(build string) {
	if string(o.value("resultType")) != `"complete"` {
		o.set("resultType", `"complete"`)
	}
	info := string(appendServerInfo(nil, build))
	raw := o.value("_meta")
	if len(raw) == 0 || raw[0] != '{' {
		o.set("_meta", `{"`+metaServer+`":`+info+`}`)
		return
	}
	inner := parseObject(raw)
	inner.set(metaServer, info)
	o.edit("_meta", inner.changes()...)
}

// markLegacy takes out what only 2026-07-28 says.
func (o *object) markLegacy() {
	o.remove("resultType")
	if raw := o.value("_meta"); len(raw) > 0 && raw[0] == '{' {
		if inner := parseObject(raw); inner.has(metaServer) {
			inner.remove(metaServer)
			o.edit("_meta", inner.changes()...)
		}
	}
}

// failure is a CallToolResult of our own, for where no host answers: one text block, marked as an error.
func failure(text string) []byte {
	dst := strictjson.AppendQuote([]byte(`{"content":[`+textBlock), text)
	return append(dst, `}],"isError":true}`...)
}

// What the model reads where no host answers. Each says what happened, whether to repeat, and what to do.
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

func textNoAnswer(tool string) string {
	return tool + " was handed over and has no answer yet (" + string(errs.StillRunning) + "): it may or may not have run. Do not repeat it. Say this in your answer; a person can see the call."
}

func textBrokenAnswer(tool string, err error) string {
	return "The answer to " + tool + " was refused: " + errs.Message(err) + " (" + string(errs.OutcomeUncertain) + "). It may or may not have run. Do not repeat it. Say this in your answer; a person can see the call."
}
