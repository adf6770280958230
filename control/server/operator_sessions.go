package server

import (
	"context"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/control/session"
)

// ListSessions implements sallyport.v1.Operator.
func (o *operatorService) ListSessions(ctx context.Context, r *sallyportv1.ListSessionsRequest) (*sallyportv1.ListSessionsResponse, error) {
	f := session.Filter{Org: control.Org, Limit: maxList}
	if r.GetAll() {
		f.States = []control.SessionState{control.SessionOpening, control.SessionOpen, control.SessionParked, control.SessionClosed}
	}
	rows, err := o.s.stores.Sessions.Sessions(ctx, f)
	if err != nil {
		return nil, err
	}
	out := &sallyportv1.ListSessionsResponse{}
	for _, s := range rows {
		row := &sallyportv1.SessionRow{
			Id: s.ID, Epoch: s.Epoch, Profile: s.Profile.Name, Owner: string(s.Owner), Host: s.Host, State: string(s.State), Harness: s.Harness,
			Driver: s.Driver, Closed: s.Closed, Attended: s.Attended, CreatedMs: ms(s.CreatedAt), PolicyDigest: s.PolicyDigest.String(),
		}
		if s.State != control.SessionClosed {
			open, err := o.s.stores.Calls.OpenCalls(ctx, s.ID)
			if err != nil {
				return nil, err
			}
			row.Calls = int64(len(open))
			for _, c := range open {
				if c.State == journal.Asking {
					row.OpenQuestions++
				}
			}
		}
		out.Sessions = append(out.Sessions, row)
	}
	return out, nil
}

// CloseOwnedSession implements sallyport.v1.Operator: an administrator, or the session's owner.
func (o *operatorService) CloseOwnedSession(ctx context.Context, r *sallyportv1.CloseOwnedSessionRequest) (*sallyportv1.CloseOwnedSessionResponse, error) {
	row, err := o.s.stores.Sessions.Session(ctx, r.GetSession())
	if err != nil {
		return nil, err
	}
	who := whoOf(ctx)
	reason := r.GetReason()
	if reason == "" {
		reason = "closed by " + string(who.Person)
	}
	if err := o.s.stores.Sessions.CloseSession(ctx, row.ID, 0, string(who.Person), reason); err != nil {
		return nil, err
	}
	o.s.hosts.change(row.Host, &sallyportv1.SessionChange{Session: row.ID, Epoch: row.Epoch, Change: "close", Reason: reason})
	o.s.changed("session", "closed")
	return &sallyportv1.CloseOwnedSessionResponse{}, nil
}

// SessionTicket implements sallyport.v1.Operator: the right to open one session as oneself, for 60 s.
func (o *operatorService) SessionTicket(ctx context.Context, r *sallyportv1.SessionTicketRequest) (*sallyportv1.SessionTicketResponse, error) {
	who := whoOf(ctx)
	ticket, until, err := session.IssueTicket(ctx, o.s.stores.Sessions, session.TicketRequest{
		Owner: who.Person, Profile: r.GetProfile(), Attended: r.GetAttended(), Local: who.Local,
	})
	if err != nil {
		return nil, err
	}
	return &sallyportv1.SessionTicketResponse{Ticket: ticket, ExpiresMs: ms(until)}, nil
}
