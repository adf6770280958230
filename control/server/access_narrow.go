package server

import (
	"slices"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
	"sallyport.dev/control/person"
)

// narrow takes out of an answer what the person may not see. An answer that is about one object was judged before. A page of calls may become short;
// its next says where to go on.
func narrow(w person.Who, msg any) {
	if w.Is(person.Administrator) || w.Person == "" || len(w.Roles) > 0 && w.Limits.Empty() {
		return
	}
	unseen := func(o person.Object) bool { return !person.Sees(w, o) }
	call := func(r *sallyportv1.CallRow) bool {
		return unseen(person.Object{Profile: r.GetProfile(), Connection: r.GetConnection(), Owner: control.Person(r.GetOwner())})
	}
	question := func(r *sallyportv1.ApprovalRow) bool {
		return unseen(person.Object{Profile: r.GetProfile(), Connection: r.GetConnection(), Owner: control.Person(r.GetOwner())})
	}
	switch m := msg.(type) {
	case *sallyportv1.StatusResponse:
		m.Machines = nil
	case *sallyportv1.ListMachinesResponse:
		m.Machines = nil
	case *sallyportv1.ListCallsResponse:
		m.Calls = slices.DeleteFunc(m.GetCalls(), call)
	case *sallyportv1.ListApprovalsResponse:
		m.Approvals = slices.DeleteFunc(m.GetApprovals(), question)
	case *sallyportv1.ShowApprovalResponse:
		// What was approved before is of the same session: profile and owner are the question's.
		m.Before = slices.DeleteFunc(m.GetBefore(), func(r *sallyportv1.ApprovalRow) bool {
			return unseen(person.Object{Profile: m.GetApproval().GetProfile(), Connection: r.GetConnection(), Owner: control.Person(m.GetApproval().GetOwner())})
		})
		m.Twins = slices.DeleteFunc(m.GetTwins(), call)
		m.Uncertain = slices.DeleteFunc(m.GetUncertain(), call)
	case *sallyportv1.ListSessionsResponse:
		m.Sessions = slices.DeleteFunc(m.GetSessions(), func(r *sallyportv1.SessionRow) bool {
			return unseen(person.Object{Profile: r.GetProfile(), Owner: control.Person(r.GetOwner())})
		})
	case *sallyportv1.ListConnectionsResponse:
		m.Connections = slices.DeleteFunc(m.GetConnections(), func(r *sallyportv1.ConnectionRow) bool { return unseen(person.Object{Connection: r.GetName()}) })
	case *sallyportv1.ListProfilesResponse:
		m.Profiles = slices.DeleteFunc(m.GetProfiles(), func(r *sallyportv1.ProfileRow) bool { return unseen(person.Object{Profile: r.GetName()}) })
	case *sallyportv1.ListGrantsResponse:
		m.Grants = slices.DeleteFunc(m.GetGrants(), func(r *sallyportv1.GrantRow) bool {
			return unseen(person.Object{Profile: r.GetProfile(), Connection: connectionIn(r.GetTool())})
		})
	case *sallyportv1.ListSwitchesResponse:
		m.Switches = slices.DeleteFunc(m.GetSwitches(), func(r *sallyportv1.SwitchRow) bool {
			switch control.SwitchKind(r.GetKind()) {
			case control.SwitchConnection, control.SwitchTool, control.SwitchCredential:
				return unseen(person.Object{Connection: connectionIn(r.GetName())})
			case control.SwitchEverything:
				return false // whoever is stopped by it may know
			}
			return true
		})
	case *sallyportv1.ListCredentialsResponse:
		m.Credentials = slices.DeleteFunc(m.GetCredentials(), func(r *sallyportv1.CredentialRow) bool {
			return unseen(person.Object{Connection: r.GetConnection(), Owner: control.Person(r.GetSubject())})
		})
	case *sallyportv1.WatchResponse:
		// That something changed is told, not what: who is told looks again, and sees what is theirs.
		m.Id, m.State, m.Detail = "", "", ""
	}
}
