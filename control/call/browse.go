package call

import (
	"context"
	"strings"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
)

// Journal is what people's pages read of the store. It is beside [Store]: the pipeline needs none of it.
type Journal interface {
	// Browse returns calls by a filter, newest first, without bodies, and where to go on, or "".
	Browse(ctx context.Context, b Browse) (calls []*control.Call, next string, err error)
}

// Browse is a person's filter.
type Browse struct {
	Filter
	Until   time.Time           // admitted before it; zero: now
	Unread  bool                // answered, and the answer was not read
	Outcome journal.ToolOutcome // what the tool itself said; "" for any
	Scan    int                 // how many calls one request looks at; 0: all. next then says where to go on, also of an empty page
}

// Matches reports whether a call is one of those that are asked for, whatever the cursor.
func (b Browse) Matches(c *control.Call) bool {
	want := func(asked, has string) bool { return asked == "" || asked == has }
	states := len(b.States) == 0
	for _, s := range b.States {
		states = states || s == c.State
	}
	return states && want(b.Session, c.Session) && want(string(b.Owner), string(c.Owner)) && want(b.Profile, c.Profile) && want(b.Connection, c.Connection) &&
		want(b.Tool, c.Tool) && want(string(b.Outcome), string(c.ToolResult)) && strings.HasPrefix(c.ID, b.IDPrefix) && !c.AdmittedAt.Before(b.Since) &&
		(b.Until.IsZero() || c.AdmittedAt.Before(b.Until)) && (!b.Unread || c.State == journal.Answered && c.Delivery != journal.DeliveryAcknowledged)
}
