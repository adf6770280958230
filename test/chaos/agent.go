package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/test/rig"
)

// How a client asks again after an answer that did not come.
const (
	sameID    = iota // a lost session: the same bytes with the same tool-use id
	asTwin           // the model asks once more: other id, members in another order
	inWords          // the model asks in other words: another call
	manyTries        // how many ways there are
)

const tool = "tracker_create_issue"

// deadline is when a call must have been answered, whatever dies: timeout_ms of a session is two minutes.
const deadline = 125 * time.Second

// said is what a client got for a call.
type said struct {
	text    string
	code    string // in the text: what Sallyport says of it; "" for the tool's own answer
	call    string // that it names
	isError bool
	ended   error // the shim's pipe ended instead
}

var (
	codes  = regexp.MustCompile(`\((?:call ([a-z2-7]{26}), )?([a-z]+(?:_[a-z]+)+|rejected|voided|cancelled|busy|unavailable|revoked|abandoned|conflict)(?:, call ([a-z2-7]{26}))?\)`)
	tokens = regexp.MustCompile(`chaos-[0-9a-f]{12}`)
)

// arguments of a run's write: the first time, as a twin, or in other words.
func (r *run) arguments(how int) string {
	switch how {
	case asTwin:
		return fmt.Sprintf(`{"title":%q, "project":"web"}`, r.token)
	case inWords:
		return fmt.Sprintf(`{"project":"web","title":%q,"body":"once more"}`, r.token)
	}
	return fmt.Sprintf(`{"project":"web","title":%q}`, r.token)
}

// call calls the tool once.
func (r *run) call(ctx context.Context, box *sandbox, name, arguments, use string) said {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	began := time.Now()
	line, err := box.request(ctx, fmt.Appendf(nil, `{"name":%q,"arguments":%s,"_meta":{"claudecode/toolUseId":%q}}`, name, arguments, use))
	r.slowest = max(r.slowest, time.Since(began))
	if errors.Is(err, context.DeadlineExceeded) {
		r.fail("a call had no answer within %s", deadline)
		return said{ended: err}
	}
	if err != nil {
		return said{ended: err}
	}
	got, err := rig.ReadResult(line)
	if err != nil || got.Error != nil {
		r.fail("a call was answered by %s", line)
		return said{ended: errors.New("no result")}
	}
	s := said{text: got.Text, isError: got.IsError}
	if m := codes.FindStringSubmatch(got.Text); m != nil {
		s.call, s.code = m[1]+m[3], m[2]
	}
	for _, t := range tokens.FindAllString(got.Text, -1) {
		if t != r.token {
			r.fail("an answer of another call was given: %s", got.Text)
		}
	}
	if s.code == "" && !strings.Contains(s.text, r.token) {
		r.fail("an answer is not of this call: %s", got.Text)
	}
	return s
}

// unknown are the answers after which a client that is told to waits.
var unknown = []string{"approval_pending", "still_running", "result_waits"}

// finish does what a harness and its model do until they know, or know that nobody knows: a shim that is gone is started again and asked again; what
// waits is awaited; what failed, or may have happened, is asked once more.
func (r *run) finish(ctx context.Context, got said) {
	for tries, again := 0, 0; tries < 8; tries++ {
		switch {
		case got.ended != nil:
			if err := r.respawn(ctx); err != nil {
				r.fail("no shim could be started again: %v", err)
				return
			}
			how := r.how
			if tries > 0 && how == sameID {
				how = asTwin
			}
			got = r.call(ctx, r.box(), tool, r.arguments(how), r.useID(how))
		case slices.Contains(unknown, got.code):
			r.waited++
			got = r.call(ctx, r.box(), "await_call", fmt.Sprintf(`{"call":%q}`, got.call), "")
		case got.code == "" || got.code == "recorded_answer":
			r.answers = append(r.answers, "answered")
			return
		case again > 0:
			r.answers = append(r.answers, got.code)
			return
		default:
			again++
			r.answers = append(r.answers, got.code)
			how := max(r.how, asTwin)
			got = r.call(ctx, r.box(), tool, r.arguments(how), r.useID(how+2))
		}
	}
	r.fail("a client was never told how its call ended: %q %v %q", got.text, got.ended, r.box().stderr.String())
}

func (r *run) useID(how int) string {
	if how == sameID {
		return "toolu_" + r.token
	}
	return fmt.Sprintf("toolu_%s_%d", r.token, how)
}

// notRun are states of a call that cannot have had an effect.
var notRun = []string{"refused", "denied", "cancelled", "expired", "voided", "failed", "resolved_not_done"}

// person decides what is asked as somebody does who reads: a question is agreed to, unless it says that the same may have happened already.
func (r *run) person(ctx context.Context) {
	api := r.w.rig.Operator()
	for tick := time.NewTicker(25 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		list, err := api.ListApprovals(ctx, &sallyportv1.ListApprovalsRequest{})
		if err != nil {
			continue // control is dead, or stands
		}
		for _, row := range list.GetApprovals() {
			if row.GetKind() != "approval" {
				continue
			}
			q, err := api.ShowApproval(ctx, &sallyportv1.ShowApprovalRequest{Id: row.GetId()})
			if err != nil || !strings.Contains(string(q.GetArguments()), r.token) {
				continue
			}
			decision := "approve"
			for _, t := range append(q.GetTwins(), q.GetUncertain()...) {
				if !slices.Contains(notRun, t.GetState()) && r.mine(ctx, t.GetId()) {
					decision = "deny"
				}
			}
			// Whether it was decided, the next listing says.
			_, err = api.Decide(ctx, &sallyportv1.DecideRequest{Approval: row.GetId(), Digest: q.GetApproval().GetDigest(), Decision: decision, Reason: "it may have happened"})
			if err == nil && decision == "deny" {
				r.named.Add(1)
			}
		}
	}
}

// mine reports whether a call is one of this run.
func (r *run) mine(ctx context.Context, id string) bool {
	c, err := r.w.rig.Operator().ShowCall(ctx, &sallyportv1.ShowCallRequest{Id: id, Bodies: true})
	return err != nil || strings.Contains(string(c.GetArguments()), r.token)
}
