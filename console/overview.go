package console

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"sallyport.dev/api/sallyport/v1"
)

// bar is one stretch of time in the picture of calls: heights of a hundred, stacked.
type bar struct {
	X, Good, Doubt, Bad, GoodY, DoubtY, BadY int
	N                                        int
	From                                     int64
}

type counted struct {
	Name string
	N    int
}

type slow struct {
	Tool string
	N    int
	P50  time.Duration
	Max  time.Duration
}

type overview struct {
	Range     string
	Calls     int
	Capped    bool
	Bars      []bar
	Peak      int
	Each      time.Duration
	Waiting   int
	Oldest    int64
	Uncertain int
	Unread    int
	Refusals  []counted
	Slow      []slow
	Sessions  []counted
	Ill       []*sallyportv1.CredentialRow
	Out       []*sallyportv1.ConnectionRow
	Machines  []*sallyportv1.Machine
	Switches  []*sallyportv1.SwitchRow
	Status    *sallyportv1.StatusResponse
}

const bars = 48

func (c *console) overview(w http.ResponseWriter, r *http.Request) error {
	ctx := r.Context()
	o := overview{Range: r.URL.Query().Get("since")}
	over, ok := ranges[o.Range]
	if !ok {
		o.Range, over = "1h", time.Hour
	}
	var err error
	if o.Status, err = c.api.Status(ctx, &sallyportv1.StatusRequest{}); err != nil {
		return err
	}
	now := c.cfg.Now()
	calls, err := c.api.ListCalls(ctx, &sallyportv1.ListCallsRequest{SinceMs: now.Add(-over).UnixMilli(), Limit: maxRows, Bounded: true})
	if err != nil {
		return err
	}
	open, err := c.api.ListApprovals(ctx, &sallyportv1.ListApprovalsRequest{})
	if err != nil {
		return err
	}
	doubt, err := c.api.ListCalls(ctx, &sallyportv1.ListCallsRequest{State: "uncertain", Limit: maxRows})
	if err != nil {
		return err
	}
	sessions, err := c.api.ListSessions(ctx, &sallyportv1.ListSessionsRequest{})
	if err != nil {
		return err
	}
	creds, err := c.api.ListCredentials(ctx, &sallyportv1.ListCredentialsRequest{})
	if err != nil {
		return err
	}
	conns, err := c.api.ListConnections(ctx, &sallyportv1.ListConnectionsRequest{})
	if err != nil {
		return err
	}
	switches, err := c.api.ListSwitches(ctx, &sallyportv1.ListSwitchesRequest{})
	if err != nil {
		return err
	}
	o.Calls, o.Capped = len(calls.GetCalls()), calls.GetNext() != ""
	o.Bars, o.Peak, o.Each = drawn(calls.GetCalls(), now, over)
	o.Refusals, o.Slow, o.Unread = refusals(calls.GetCalls()), slowest(calls.GetCalls()), unread(calls.GetCalls())
	o.Waiting, o.Uncertain, o.Switches, o.Machines = len(open.GetApprovals()), len(doubt.GetCalls()), switches.GetSwitches(), o.Status.GetMachines()
	for _, q := range open.GetApprovals() {
		if o.Oldest == 0 || q.GetCreatedMs() < o.Oldest {
			o.Oldest = q.GetCreatedMs()
		}
	}
	byState := map[string]int{}
	for _, s := range sessions.GetSessions() {
		byState[s.GetState()]++
	}
	o.Sessions = mostOf(byState)
	for _, k := range creds.GetCredentials() {
		if k.GetState() != "good" {
			o.Ill = append(o.Ill, k)
		}
	}
	for _, k := range conns.GetConnections() {
		if k.GetState() != "enabled" {
			o.Out = append(o.Out, k)
		}
	}
	return c.render(w, r, http.StatusOK, "overview.html", view{
		Title: "Overview", Here: "overview", Live: "question call session switch machine config", Person: o.Status.GetPerson(), Roles: o.Status.GetRoles(), Data: o,
	})
}

// drawn are the calls of a range as bars.
func drawn(calls []*sallyportv1.CallRow, now time.Time, over time.Duration) (out []bar, peak int, each time.Duration) {
	const height, step = 100, 20
	each = over / bars
	start := now.Add(-over).UnixMilli()
	good, doubt, bad := [bars]int{}, [bars]int{}, [bars]int{}
	for _, k := range calls {
		i := int((k.GetCreatedMs() - start) / each.Milliseconds())
		if i < 0 || i >= bars {
			continue
		}
		switch kindOf(k.GetState()) {
		case "doubt":
			doubt[i]++
		case "bad":
			bad[i]++
		default:
			good[i]++
		}
	}
	for i := range bars {
		peak = max(peak, good[i]+doubt[i]+bad[i])
	}
	for i := range bars {
		scale := func(n int) int { return n * height / max(peak, 1) }
		b := bar{X: i * step, N: good[i] + doubt[i] + bad[i], Good: scale(good[i]), Doubt: scale(doubt[i]), Bad: scale(bad[i]), From: start + int64(i)*each.Milliseconds()}
		b.GoodY = height - b.Good
		b.DoubtY = b.GoodY - b.Doubt
		b.BadY = b.DoubtY - b.Bad
		out = append(out, b)
	}
	return out, peak, each
}

func refusals(calls []*sallyportv1.CallRow) []counted {
	n := map[string]int{}
	for _, k := range calls {
		if kindOf(k.GetState()) == "bad" && k.GetCode() != "" {
			n[k.GetCode()]++
		}
	}
	return mostOf(n)
}

func unread(calls []*sallyportv1.CallRow) (n int) {
	for _, k := range calls {
		if k.GetState() == "answered" && k.GetDelivery() != "acknowledged" {
			n++
		}
	}
	return n
}

func mostOf(n map[string]int) []counted {
	out := make([]counted, 0, len(n))
	for name, k := range n {
		out = append(out, counted{name, k})
	}
	slices.SortFunc(out, func(a, b counted) int { return cmp.Or(cmp.Compare(b.N, a.N), cmp.Compare(a.Name, b.Name)) })
	return out
}

// slowest are the tools whose answers took longest, reads alone: a write's time is a person's.
func slowest(calls []*sallyportv1.CallRow) []slow {
	took := map[string][]time.Duration{}
	for _, k := range calls {
		if k.GetState() == "answered" && k.GetEffect() == "read" {
			name := k.GetConnection() + "/" + k.GetTool()
			took[name] = append(took[name], time.Duration(k.GetUpdatedMs()-k.GetCreatedMs())*time.Millisecond)
		}
	}
	out := make([]slow, 0, len(took))
	for name, all := range took {
		slices.Sort(all)
		out = append(out, slow{name, len(all), all[len(all)/2], all[len(all)-1]})
	}
	slices.SortFunc(out, func(a, b slow) int { return cmp.Or(cmp.Compare(b.P50, a.P50), cmp.Compare(a.Tool, b.Tool)) })
	const most = 6
	return out[:min(len(out), most)]
}
