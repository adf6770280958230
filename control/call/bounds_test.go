package call_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

func TestBounds(t *testing.T) {
	bubble(t, "calls in flight", func(t *testing.T, r *rig) {
		hold := make(chan struct{})
		r.plan(plan{outcome: answered(`{"content":[]}`), hold: hold})
		var all []*record
		for range 64 {
			all = append(all, r.do("get_issue", `{"project":"web"}`))
		}
		c := r.do("get_issue", `{"project":"web"}`)
		r.says(c, "64 calls of this session are open (busy)")
		close(hold)
		synctest.Wait()
		for _, c := range all {
			r.says(c, `{"content":[]}`)
		}
		r.says(r.do("get_issue", `{"project":"web"}`), `{"content":[]}`)
	})
	bubble(t, "a rule's limit", func(t *testing.T, r *rig) {
		for range 2 {
			r.says(r.do("list_issues", `{"project":"web"}`), `"ok"`)
		}
		c := r.do("list_issues", `{"project":"web"}`)
		r.says(c, "its rule allows 2 calls in 1 h, and they are used up (limit_reached)")
		r.state(c, journal.Refused)
		r.later(time.Hour)
		r.says(r.do("list_issues", `{"project":"web"}`), `"ok"`)
	}, func(a *control.Apply) { a.Profiles[0].Grants[0].Limit = &control.Limit{Calls: 2, Per: time.Hour} })
	bubble(t, "a condition that counts", func(t *testing.T, r *rig) {
		r.says(r.do("list_issues", `{"project":"web"}`), `"ok"`)
		r.says(r.do("list_issues", `{"project":"web"}`), string(errs.RuleDenied))
	}, func(a *control.Apply) { a.Profiles[0].Grants[0].When = "used < 1" })
	bubble(t, "unread results", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: answered(`{"content":[]}`)})
		for range 1000 + 64 {
			r.do("get_issue", `{"project":"web"}`)
		}
		r.says(r.do("get_issue", `{"project":"web"}`), "results of this session were never read (busy)")
	})
}

func TestLongAnswer(t *testing.T) {
	bubble(t, "is cut, and says so", func(t *testing.T, r *rig) {
		long := `{"content":[{"type":"text","text":"` + strings.Repeat("é", 1<<20) + `"}],"isError":true}`
		r.plan(plan{outcome: answered(long)})
		c := r.do("get_issue", `{"project":"web"}`)
		file := control.Sum([]byte(strings.Repeat("é", 1<<20))).String()
		r.says(c, "a text of 2097152 bytes", "/run/sallyport/in/files/"+file, "It begins:", `"isError":true`)
		r.hosts.mu.Lock()
		got := string(r.hosts.files[file])
		r.hosts.mu.Unlock()
		if got != strings.Repeat("é", 1<<20) {
			t.Fatalf("the file has %d bytes", len(got))
		}
		steps, err := r.db.Steps(t.Context(), id(c))
		r.no(err)
		if last := steps[len(steps)-1]; last.Event != "cut" || last.Digest != control.Sum([]byte(r.result(c))) ||
			!strings.Contains(last.Reason, control.Sum([]byte(long)).String()) || !strings.Contains(last.Reason, file) {
			t.Fatalf("the last line of the journal is %+v", last)
		}
		if got := string(r.row(c).Body); !strings.Contains(got, long) {
			t.Fatal("the journal does not have the whole answer")
		}
	})
	bubble(t, "waits, where too much is on its way", func(t *testing.T, r *rig) {
		r.hosts.mu.Lock()
		r.hosts.full = true
		r.hosts.mu.Unlock()
		r.plan(plan{outcome: answered(`{"content":[{"type":"text","text":"` + strings.Repeat("x", 2<<20) + `"}]}`)})
		c := r.do("get_issue", `{"project":"web"}`)
		r.says(c, "its answer is recorded (call "+id(c)+", result_waits)", "await_call")
	})
}

// Large records of one session are taken up one by one, so that judging them costs other sessions a share; small ones, and other sessions, pass.
func TestLargeRecordsInTurn(t *testing.T) {
	large := func(n string) string { return `{"project":"web","x":"` + n + strings.Repeat("x", 100<<10) + `"}` }
	bubble(t, "one by one", func(t *testing.T, r *rig) {
		r.fault("Admit", 1, false)
		first, second := r.do("get_issue", large("1")), r.do("get_issue", large("2"))
		small, other := r.do("get_issue", `{"project":"web"}`), r.open(true)
		third := r.do("get_issue", large("3"), func(c *record) { c.session = other })
		r.says(small, `"ok"`)
		r.says(third, `"ok"`)
		for _, c := range []*record{first, second} {
			if got := r.result(c); got != "" {
				t.Errorf("taken up before its turn: %s", got)
			}
		}
		r.later(time.Second)
		r.says(first, `"ok"`)
		r.says(second, `"ok"`)
	})
}
