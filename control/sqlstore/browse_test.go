package sqlstore

import (
	"fmt"
	"testing"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

// Whatever is asked, page by page: the same calls come as a reader who looks at every call would pick, each once, newest first.
func TestBrowse(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	w := newWorld(t, s)
	for range 6 {
		w.oneWrite(func(acknowledged) {})
	}
	all, _, err := s.ListCalls(t.Context(), call.Filter{Org: control.Org, Limit: 500})
	if err != nil || len(all) < 6 {
		t.Fatalf("%d calls, %v", len(all), err)
	}
	one := all[len(all)/2]
	for name, b := range map[string]call.Browse{
		"everything": {},
		"session":    {Filter: call.Filter{Session: one.Session}},
		"owner":      {Filter: call.Filter{Owner: one.Owner}},
		"nobody's":   {Filter: call.Filter{Owner: "nobody"}},
		"tool":       {Filter: call.Filter{Connection: one.Connection, Tool: one.Tool}},
		"profile":    {Filter: call.Filter{Profile: one.Profile}},
		"state":      {Filter: call.Filter{States: []journal.State{one.State}}},
		"uncertain":  {Filter: call.Filter{States: []journal.State{journal.Uncertain}}},
		"unfinished": {Filter: call.Filter{States: []journal.State{journal.Asking, journal.Dispatching}}},
		"unread":     {Unread: true},
		"outcome":    {Outcome: journal.ToolOK},
		"until":      {Until: one.AdmittedAt},
		"since":      {Filter: call.Filter{Since: one.AdmittedAt}},
		"prefix":     {Filter: call.Filter{IDPrefix: one.ID[:5]}},
		"past":       {Until: time.UnixMilli(1)},
	} {
		for _, scan := range []int{0, 1, 4} {
			t.Run(fmt.Sprintf("%s/%d", name, scan), func(t *testing.T) {
				b := b
				b.Org, b.Limit, b.Scan = control.Org, 2, scan
				var want []string
				for _, c := range all {
					if b.Matches(c) {
						want = append(want, c.ID)
					}
				}
				var got []string
				for pages := 0; ; pages++ {
					calls, next, err := s.Browse(t.Context(), b)
					if err != nil {
						t.Fatal(err)
					}
					for _, c := range calls {
						got = append(got, c.ID)
					}
					if next == "" {
						break
					}
					if next == b.Cursor || pages > 200 {
						t.Fatalf("the pages do not end: %s", next)
					}
					b.Cursor = next
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Fatalf("got %v, want %v", got, want)
				}
			})
		}
	}
	for name, b := range map[string]call.Browse{
		"no limit":         {},
		"a strange cursor": {Filter: call.Filter{Limit: 1, Cursor: "x"}},
		"both":             {Filter: call.Filter{Limit: 1, IDPrefix: "abcd", Session: "x"}},
	} {
		if _, _, err := s.Browse(t.Context(), b); errs.CodeOf(err) != errs.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
