package call

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

// Refusal is a record that the host took away and answered itself, because its bytes were no call, or none of that session; or what a guest refused
// by itself. Nothing of it runs.
type Refusal struct {
	Address
	Tool   string // as the record says it; "" where it could not be read
	Code   errs.Code
	Reason string // what the guest was told
}

// refusals are the codes that a host may refuse a record with.
var refusals = map[errs.Code]bool{errs.Invalid: true, errs.Oversize: true, errs.TooOld: true, errs.NotAllowed: true, errs.Fenced: true, errs.Conflict: true, errs.UnknownTool: true}

// maxReason is how many bytes of a host's reason the journal keeps.
const maxReason = 512

// Refused implements [HostEvents]: the refusal becomes a row of the journal. Told twice it is one row; of an id that is taken by other bytes, it is a
// line in the journal of that call.
func (p *Pipeline) Refused(r Refusal) {
	p.spawn(func() {
		if err := p.journalRefusal(p.life, r); err != nil && p.life.Err() == nil {
			p.cfg.Log.Warn("a refused record is not in the journal", "host", r.Host, "session", r.Session, "code", r.Code, "err", err)
		}
	})
}

func (p *Pipeline) journalRefusal(ctx context.Context, r Refusal) error {
	if !refusals[r.Code] || !relay.ValidID(r.Record) || len(r.Tool) > relay.MaxToolName || !utf8.ValidString(r.Tool) {
		return errs.New(errs.Invalid, "the host's refusal says what no host says")
	}
	s, err := p.session(ctx, r.Session, r.Epoch)
	if err != nil {
		return err
	}
	row := s.session()
	if row.Host != r.Host {
		return errs.New(errs.NotAllowed, "the session belongs to another host")
	}
	d := &driver{p: p, s: s, l: &live{id: control.CallID(r.Session, r.Record), session: r.Session, digest: r.Digest}}
	c := d.newRow(Submission{Host: r.Host}, &relay.Call{ID: r.Record, Epoch: r.Epoch, Tool: r.Tool}, control.Digest{})
	c.State, c.Code, c.Reason = journal.Refused, r.Code, cut(r.Reason)
	c.Binding = control.BindingOf(c).Digest()
	a := &Admission{
		Call: c, Guard: Guard{Session: r.Session, Epoch: r.Epoch},
		Steps: []control.Step{
			{Event: journal.OnRecord, To: journal.Admitted, Actor: r.Host, Digest: r.Digest},
			{From: journal.Admitted, Event: journal.OnRefuse, To: journal.Refused, Actor: r.Host, Code: r.Code, Reason: c.Reason},
		},
	}
	for pause := storeRetry; ; pause = min(2*pause, storeRetryTop) {
		got, err := p.cfg.Store.Admit(ctx, a)
		switch code := errs.CodeOf(err); {
		case err != nil && (code == errs.StoreFull || ctx.Err() != nil || pause == storeRetryTop):
			return err
		case err != nil:
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			continue
		case got.Result == Done:
			c.AdmittedAt = p.cfg.Store.Now()
			for _, step := range a.Steps {
				p.observe(c, step)
			}
		case got.Result == NotOpen, got.Result == Closed:
			return errs.New(errs.NotAllowed, "the session is not open")
		}
		return nil
	}
}

func cut(reason string) string {
	reason = strings.ToValidUTF8(reason, "?")
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	return reason
}
