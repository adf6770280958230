package call

import (
	"context"
	"errors"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

// unprepared is a Prepare that a worker gave up, with zero bytes sent: what the model may know, and what the journal keeps beside it.
type unprepared struct {
	error   // an [errs.Error]
	facts   control.Facts
	because string
}

// Unwrap gives the code and the message.
func (u *unprepared) Unwrap() error { return u.error }

// prepareError puts a worker's word for what failed before anything was sent into an error. Its message says less than the journal's line: the model
// learns no address.
func prepareError(o Outcome) error {
	e := journal.Evidence{Transport: journal.TransportNotSent, Failure: o.Failure, Status: o.Status}
	if e.Failure == "" {
		e.Failure = journal.FailMalformed
	}
	return &unprepared{
		error:   prepareMessage(e.Failure),
		facts:   control.Facts{Transport: e.Transport, Failure: e.Failure, HTTPStatus: o.Status},
		because: e.Because(o.Detail),
	}
}

func prepareMessage(f journal.Failure) *errs.Error {
	switch f {
	case journal.FailBusy, journal.FailLate, journal.FailClosed:
		return errs.New(errs.Busy, "the worker was busy")
	case journal.FailCredential:
		return errs.New(errs.NotConnected, "the server wants another credential")
	case journal.FailIntent, journal.FailRequest:
		return errs.New(errs.Internal, "the worker refused what it was asked for")
	case journal.FailAddress:
		return errs.New(errs.NotAllowed, "its address may not be reached")
	case journal.FailInitialize:
		return errs.New(errs.Unreachable, "the server did not settle how to talk to it")
	}
	return errs.New(errs.Unreachable, "the server cannot be reached")
}

// because is the journal's line for an attempt that was not made, and who says so: "" for control itself.
func (d *driver) because(err error) (line, actor string) {
	var u *unprepared
	if errors.As(err, &u) {
		return u.because, d.out.worker
	}
	return errs.Message(err), ""
}

// triedInVain notes an attempt that was not made, before the next one.
func (d *driver) triedInVain(ctx context.Context, err error) {
	line, actor := d.because(err)
	d.note(ctx, Note{Call: d.row.ID, Event: "not_prepared", Actor: or(actor, d.p.cfg.Run), Reason: line})
}

// notPrepared ends a call whose last Prepare failed.
func (d *driver) notPrepared(ctx context.Context, err error) {
	code := notSentCode(err)
	reason, actor := d.because(err)
	set := Set{Code: &code, Reason: &reason}
	var u *unprepared
	if errors.As(err, &u) {
		set.Facts = &u.facts
		if code == errs.Busy { // the one end of these whose reason the model reads
			said := errs.Message(err)
			set.Reason = &said
		}
	}
	d.step(ctx, journal.OnPrepareFailed, control.Step{Actor: actor, Code: code, Reason: reason}, set, nil)
}

// transient reports whether another Prepare may succeed.
func transient(err error) bool {
	switch errs.CodeOf(err) {
	case errs.Unreachable, errs.Busy, errs.Unavailable:
		return true
	}
	return false
}

func notSentCode(err error) errs.Code {
	switch c := errs.CodeOf(err); c {
	case errs.NotConnected, errs.Busy:
		return c
	}
	return errs.NotSent
}
