package console

import (
	"net/http"
	"strconv"
	"strings"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
)

func (c *console) sessions(w http.ResponseWriter, r *http.Request) error {
	list, err := c.api.ListSessions(r.Context(), &sallyportv1.ListSessionsRequest{All: r.URL.Query().Get("all") != ""})
	if err != nil {
		return err
	}
	return c.render(w, r, http.StatusOK, "sessions.html", view{Title: "Sessions", Here: "sessions", Live: "session", Data: list.GetSessions()})
}

func (c *console) closeSession(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.api.CloseOwnedSession(r.Context(), &sallyportv1.CloseOwnedSessionRequest{Session: r.PathValue("id")}); err != nil {
		return err
	}
	http.Redirect(w, r, "/sessions", http.StatusSeeOther)
	return nil
}

func (c *console) connections(w http.ResponseWriter, r *http.Request) error {
	list, err := c.api.ListConnections(r.Context(), &sallyportv1.ListConnectionsRequest{})
	if err != nil {
		return err
	}
	creds, err := c.api.ListCredentials(r.Context(), &sallyportv1.ListCredentialsRequest{})
	if err != nil {
		return err
	}
	return c.render(w, r, http.StatusOK, "connections.html", view{Title: "Connections", Here: "connections", Live: "config", Data: struct {
		Rows        []*sallyportv1.ConnectionRow
		Credentials []*sallyportv1.CredentialRow
	}{list.GetConnections(), creds.GetCredentials()}})
}

func (c *console) machines(w http.ResponseWriter, r *http.Request) error {
	list, err := c.api.ListMachines(r.Context(), &sallyportv1.ListMachinesRequest{})
	if err != nil {
		return err
	}
	return c.render(w, r, http.StatusOK, "machines.html", view{Title: "Hosts and workers", Here: "machines", Live: "machine", Data: list.GetMachines()})
}

func (c *console) profiles(w http.ResponseWriter, r *http.Request) error {
	list, err := c.api.ListProfiles(r.Context(), &sallyportv1.ListProfilesRequest{})
	if err != nil {
		return err
	}
	return c.render(w, r, http.StatusOK, "profiles.html", view{Title: "Profiles", Here: "profiles", Live: "config", Data: list.GetProfiles()})
}

func (c *console) grants(w http.ResponseWriter, r *http.Request) error {
	list, err := c.api.ListGrants(r.Context(), &sallyportv1.ListGrantsRequest{})
	if err != nil {
		return err
	}
	return c.render(w, r, http.StatusOK, "grants.html", view{Title: "Grants", Here: "grants", Live: "config", Data: list.GetGrants()})
}

// peoplePage shows people to an administrator, and everybody their own sessions and tokens.
func (c *console) peoplePage(w http.ResponseWriter, r *http.Request) error {
	passes, err := c.people.ListPasses(r.Context(), &sallyportv1.ListPassesRequest{})
	if err != nil {
		return err
	}
	data := struct {
		People []*sallyportv1.PersonRow
		Passes []*sallyportv1.PassRow
	}{Passes: passes.GetPasses()}
	list, err := c.people.ListPeople(r.Context(), &sallyportv1.ListPeopleRequest{})
	if code, _, _ := failure(err); err != nil && code != errs.NotAllowed {
		return err
	}
	data.People = list.GetPeople()
	return c.render(w, r, http.StatusOK, "people.html", view{Title: "People", Here: "people", Data: data})
}

func (c *console) endPass(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.people.EndPass(r.Context(), &sallyportv1.EndPassRequest{Id: r.PostFormValue("id")}); err != nil {
		return err
	}
	http.Redirect(w, r, "/people", http.StatusSeeOther)
	return nil
}

// switchKinds in the order of what they hit.
var switchKinds = []string{"tool", "connection", "credential", "grant", "session", "person", "host", "worker", "egress", "everything"}

// switchPage is what the page of switches shows: those in force, and the one that is about to be pressed, or was.
type switchPage struct {
	Kinds   []string
	Rows    []*sallyportv1.SwitchRow
	Kind    string
	Name    string
	Reason  string
	Minutes int64
	Preview *sallyportv1.RevokeResponse
	Done    string
	TookUS  int64
}

func (c *console) switches(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	return c.showSwitches(w, r, switchPage{Kind: q.Get("kind"), Name: q.Get("name")})
}

func (c *console) showSwitches(w http.ResponseWriter, r *http.Request, p switchPage) error {
	list, err := c.api.ListSwitches(r.Context(), &sallyportv1.ListSwitchesRequest{})
	if err != nil {
		return err
	}
	p.Kinds, p.Rows = switchKinds, list.GetSwitches()
	return c.render(w, r, http.StatusOK, "switches.html", view{Title: "Switches", Here: "switches", Live: "switch", Data: p})
}

// throwSwitch shows what a switch would hit, and throws or ends it once that was seen.
func (c *console) throwSwitch(w http.ResponseWriter, r *http.Request) error {
	p := switchPage{Kind: r.PostFormValue("kind"), Name: strings.TrimSpace(r.PostFormValue("name")), Reason: strings.TrimSpace(r.PostFormValue("reason"))}
	if text := r.PostFormValue("minutes"); text != "" {
		var err error
		if p.Minutes, err = strconv.ParseInt(text, 10, 32); err != nil || p.Minutes < 0 {
			return errs.New(errs.Invalid, "for how long: a number of minutes, or nothing for until it is restored")
		}
	}
	if r.PostFormValue("do") == "restore" {
		got, err := c.api.Restore(r.Context(), &sallyportv1.RestoreRequest{Kind: p.Kind, Name: p.Name})
		if err != nil {
			return err
		}
		return c.showSwitches(w, r, switchPage{Done: "restored", Kind: p.Kind, Name: p.Name, TookUS: got.GetTookUs()})
	}
	dry := r.PostFormValue("do") != "throw"
	got, err := c.api.Revoke(r.Context(), &sallyportv1.RevokeRequest{Kind: p.Kind, Name: p.Name, Reason: p.Reason, Seconds: p.Minutes * 60, DryRun: dry})
	if err != nil {
		return err
	}
	p.Preview = got
	if !dry {
		p.Done, p.TookUS = "withdrawn", got.GetTookUs()
	}
	return c.showSwitches(w, r, p)
}
