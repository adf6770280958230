package main

import (
	"fmt"

	"sallyport.dev/errs"
)

// explainCodes says what every code means and what to do: for sallyport explain CODE.
var explainCodes = map[errs.Code]string{
	errs.RuleDenied:       "A grant of the profile, or its condition, refuses this call. sallyport profiles test PROFILE TOOL --args FILE shows which rule, for which arguments.",
	errs.UnknownTool:      "The session has no such tool. What is not granted is invisible; a session's tools are frozen when it opens.",
	errs.InvalidArguments: "The arguments break the schema that was reviewed. The message names the field and what was expected.",
	errs.LimitReached:     "A grant's count or rate is used up. sallyport grants list shows what is left.",
	errs.Busy:             "Too many open questions of one session, or too many calls in flight. Decide some, or wait.",
	errs.ApprovalDenied:   "A person declined the call. Their reason is in the journal and went to the agent.",
	errs.ApprovalPending:  "The call waits for a person. sallyport approvals list shows it.",
	errs.ApprovalExpired:  "Nobody decided in time; the call did not run. The profile's approval.expires sets the time.",
	errs.StillRunning:     "The call was sent and has no answer yet. It is never sent twice.",
	errs.Rejected:         "The server answered that it did not run the call. That is its word, not a proof, so it is not repeated by itself.",
	errs.OutcomeUncertain: "The call was sent and the answer was lost: it may or may not have happened. Look at the server, then sallyport calls resolve CALL done|not-done|retry --note TEXT.",
	errs.Revoked:          "A switch was thrown. sallyport revoke list shows what is withdrawn; sallyport restore gives it back.",
	errs.Voided:           "Something that the approval was bound to changed before the call ran: policy, connection, catalog, account. Ask again.",
	errs.NotConnected:     "The connection has no credential for this subject. sallyport credentials set NAME stores one.",
	errs.NoAnswer:         "A read was sent and its answer was lost. It is safe to ask again.",
	errs.ResolvedDone:     "A person looked, and says that an uncertain call happened.",
	errs.ResolvedNotDone:  "A person looked, and says that an uncertain call did not happen.",
	errs.UpstreamError:    "The server answered with a JSON-RPC error. calls show --bodies has its exact words.",
	errs.NotSent:          "Nothing left the worker, provably. It is safe to try again.",
	errs.ResultWaits:      "The call was answered, and its answer is recorded. It is long, and too many long answers are on their way to the same host; the agent asks for it again with await_call.",
	errs.RecordedAnswer:   "An equal call was answered before and the answer was not read; this is that answer. The call was not run a second time.",
	errs.Cancelled:        "The agent cancelled the call before anything was sent.",
	errs.Abandoned:        "The server asked for more and got no answer; nothing more was sent.",
	errs.DeadlineExceeded: "Control did not take the call within its time; it never ran.",
	errs.UnknownCall:      "await_call named a call that this session does not have.",
	errs.Invalid:          "The input is wrong; the message says where.",
	errs.NotFound:         "There is no such object.",
	errs.Conflict:         "Somebody else was first, or the object changed. Look again.",
	errs.NotAllowed:       "This identity may not do this.",
	errs.Unreachable:      "The other side does not answer. sallyport doctor looks for the reason.",
	errs.Unavailable:      "A part that is needed is down, or not built. It is safe to try again.",
	errs.Oversize:         "A bound of bytes or entries. The message names it.",
	errs.Fenced:           "A stale session epoch, lease or store: somebody else took over. Nothing was done.",
	errs.Quarantined:      "The store is older than what hosts or workers remember: it was restored from a copy. Nothing runs until sallyport store accept-restore.",
	errs.NotDurable:       "The store cannot promise durability, so nothing is dispatched. Move the state directory to a local disk.",
	errs.StoreFull:        "No room left for the store. Calls that were sent can still be settled; new ones are refused. Free some space.",
	errs.TooOld:           "A guest or peer is older than the one before this build. Upgrade it.",
	errs.ProtectedNumber:  "Both sides must have the same protected version: they are never negotiated down. Upgrade the older side.",
	errs.Uncertain:        "The outcome is uncertain: exit code 6.",
	errs.Internal:         "A defect of Sallyport. The log has the detail.",
}

type explainCmd struct {
	Code string `arg:"" help:"Such as outcome_uncertain."`
}

// Run explains a code.
func (c *explainCmd) Run(g *Globals) error {
	text, ok := explainCodes[errs.Code(c.Code)]
	if !ok {
		return errs.Newf(errs.NotFound, "no code is named %q; docs/reference/codes.md lists them", c.Code)
	}
	if g.JSON {
		g.printJSON(map[string]string{"code": c.Code, "text": text})
		return nil
	}
	fmt.Fprintln(g.out, text)
	return nil
}
