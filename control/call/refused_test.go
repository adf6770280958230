package call_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		tool, args string
		words      []string
	}{
		"an unknown tool":  {"delete_everything", `{}`, []string{"There is no tool delete_everything in this session (unknown_tool)"}},
		"a missing member": {"list_issues", `{"title":"x"}`, []string{"Sallyport did not run list_issues: the arguments lack project (invalid_arguments)", "Correct the arguments"}},
		"a wrong type":     {"list_issues", `{"project":5}`, []string{"project must be string, not number"}},
		"a rule's condition": {"create_issue", `{"project":"ops"}`, []string{
			`Sallyport did not run create_issue: project \"ops\" is not allowed by the rule for this tool (rule_denied). Repeating the call will not help. Use a project in web, api, or go on without it.`,
		}},
	} {
		bubble(t, name, func(t *testing.T, r *rig) {
			got := r.do(c.tool, c.args)
			r.says(got, append(c.words, `"isError":true`)...)
			r.state(got, journal.Refused)
			r.sends(got, 0)
		})
	}
	bubble(t, "a tool that nothing grants reads the same as one that is not there", func(t *testing.T, r *rig) {
		r.apply(func(a *control.Apply) {
			p := *r.profile
			p.Grants = p.Grants[1:]
			a.Profiles = []control.Profile{p}
		})
		c := r.do("list_issues", `{"project":"web"}`)
		r.says(c, "There is no tool list_issues in this session (unknown_tool)")
	})
	bubble(t, "what the newest version refuses is refused", func(t *testing.T, r *rig) {
		r.apply(func(a *control.Apply) {
			p := *r.profile
			p.Grants = append([]control.Grant{{Tools: []string{"tracker/*"}, Rule: control.Deny, When: `args.project == "web"`}}, p.Grants...)
			a.Profiles = []control.Profile{p}
		})
		r.says(r.do("list_issues", `{"project":"web"}`), string(errs.RuleDenied))
		r.says(r.do("list_issues", `{"project":"api"}`), `"ok"`)
	})
	bubble(t, "what was frozen stays refused", func(t *testing.T, r *rig) {
		r.apply(func(a *control.Apply) {
			p := *r.profile
			p.Grants = []control.Grant{{Tools: []string{"tracker/*"}, Rule: control.Allow}}
			a.Profiles = []control.Profile{p}
		})
		r.says(r.do("create_issue", `{"project":"ops"}`), string(errs.RuleDenied))
	})
	bubble(t, "a reviewer's stricter word counts at once", func(t *testing.T, r *rig) {
		r.apply(func(a *control.Apply) {
			c := catalogOf(tool("create_issue", control.Write, false), tool("get_issue", control.Write, false), tool("list_issues", control.Read, true))
			a.Catalogs = []control.Catalog{c}
		})
		c := r.do("get_issue", `{"project":"web"}`)
		r.state(c, journal.Asking) // a write is never just allowed
	})
	bubble(t, "no credential", func(t *testing.T, r *rig) {
		c := control.Credential{Connection: "tracker", Subject: control.SubjectShared, Version: 2, State: control.CredentialBroken}
		r.no(r.db.PutCredential(c))
		r.p.PolicyChanged()
		r.says(r.do("list_issues", `{"project":"web"}`), "tracker is not connected for this person: its server ended the sign-in; list_issues did not run (not_connected). "+
			"Ask them to connect it: sallyport credentials connect tracker.")
	})
	bubble(t, "extra members", func(t *testing.T, r *rig) {
		r.says(r.do("list_issues", `{"project":"web","extra":{"a":1}}`), "the arguments may not have extra")
	}, func(a *control.Apply) { a.Catalogs[0].Tools[2].RefuseExtra = true })
	bubble(t, "the network is not verified", func(t *testing.T, r *rig) {
		s := *r.s
		s.ID, s.Closed = control.NewID(), "no"
		r.attach(&s)
		c := r.do("create_issue", `{"project":"web"}`, func(c *record) { c.session = &s })
		r.says(c, "not verified", string(errs.RuleDenied))
		r.says(r.do("list_issues", `{"project":"web"}`, func(c *record) { c.session = &s }), `"ok"`)
	})
	bubble(t, "too long on the way", func(t *testing.T, r *rig) {
		c := r.rec("list_issues", `{"project":"web"}`)
		r.p.Submit(call.Submission{Host: host, Session: r.s.ID, Epoch: 1, Record: c.bytes, Waited: 2 * time.Minute})
		synctest.Wait()
		r.says(c, string(errs.DeadlineExceeded))
		r.state(c, journal.Expired)
		r.sends(c, 0)
	})
	bubble(t, "another epoch, another host, another session", func(t *testing.T, r *rig) {
		c := r.rec("list_issues", `{"project":"web"}`)
		r.p.Submit(call.Submission{Host: host, Session: r.s.ID, Epoch: 2, Record: c.bytes})
		r.p.Submit(call.Submission{Host: host, Session: control.NewID(), Epoch: 1, Record: c.bytes})
		synctest.Wait()
		r.says(c, string(errs.NotAllowed))
		other := r.rec("list_issues", `{"project":"web"}`)
		r.p.Submit(call.Submission{Host: host + "2", Session: r.s.ID, Epoch: 1, Record: other.bytes})
		synctest.Wait()
		r.says(other, "belongs to another host")
		if len(r.workers.sent) != 0 {
			t.Fatal("something was sent")
		}
	})
	bubble(t, "a closed session", func(t *testing.T, r *rig) {
		r.no(r.db.CloseSession(t.Context(), r.s.ID, 0, "ada", "done"))
		r.says(r.do("list_issues", `{"project":"web"}`), "the session is not open")
	})
	bubble(t, "what a host refused stands in the journal, once", func(t *testing.T, r *rig) {
		bad := record{id: control.NewID(), bytes: []byte(`{"v":0}`), session: r.s}
		told := call.Refusal{
			Address: call.Address{Host: host, Session: r.s.ID, Epoch: 1, Record: bad.id, Digest: control.Sum(bad.bytes)},
			Code:    errs.TooOld, Reason: "call: format 0 is no longer served",
		}
		r.p.Refused(told)
		r.p.Refused(told)
		synctest.Wait()
		r.state(&bad, journal.Refused)
		row := r.row(&bad)
		if row.Code != errs.TooOld || row.Reason != told.Reason || row.RecordDigest != told.Digest || row.Name != "" {
			t.Errorf("the row is %+v", row)
		}
		all, _, err := r.db.ListCalls(t.Context(), call.Filter{Org: control.Org, Limit: 10})
		r.no(err)
		if len(all) != 1 {
			t.Errorf("%d rows", len(all))
		}
		if len(r.hosts.results) != 0 {
			t.Error("a refusal was answered")
		}
	})
	bubble(t, "what no host says is not journaled", func(t *testing.T, r *rig) {
		at := call.Address{Host: host, Session: r.s.ID, Epoch: 1, Record: relay.NewID()}
		for name, bad := range map[string]func(*call.Refusal){
			"another host's session": func(f *call.Refusal) { f.Host += "2" },
			"an earlier epoch":       func(f *call.Refusal) { f.Epoch = 7 },
			"no id":                  func(f *call.Refusal) { f.Record = "x" },
			"a code that decides":    func(f *call.Refusal) { f.Code = errs.ApprovalDenied },
			"a long tool":            func(f *call.Refusal) { f.Tool = strings.Repeat("x", relay.MaxToolName+1) },
		} {
			f := call.Refusal{Address: at, Code: errs.Invalid, Reason: name}
			bad(&f)
			r.p.Refused(f)
		}
		synctest.Wait()
		all, _, err := r.db.ListCalls(t.Context(), call.Filter{Org: control.Org, Limit: 10})
		r.no(err)
		if len(all) != 0 {
			t.Errorf("%d rows, the first %+v", len(all), all[0])
		}
		if n := strings.Count(r.logged(), "a refused record is not in the journal"); n != 5 {
			t.Errorf("%d of 5 are in the log", n)
		}
	})
	bubble(t, "a record that does not parse is dropped", func(t *testing.T, r *rig) {
		r.p.Submit(call.Submission{Host: host, Session: r.s.ID, Epoch: 1, Record: []byte(`{"v":1}`)})
		synctest.Wait()
		if !strings.Contains(r.logged(), "a record was refused") {
			t.Fatal("nothing in the log")
		}
	})
}

// attach stores another open session.
func (r *rig) attach(s *control.Session) {
	r.t.Helper()
	template := r.open(s.Attended)
	s.ID = template.ID
	if err := r.db.Change(s.ID, func(row *control.Session) { *row = *s }); err != nil {
		r.t.Fatal(err)
	}
}
