package server

import (
	"testing"

	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/proto"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/control/person"
)

// Every request that people can make has its row in the table of who may what: a new one is refused, and this fails, until somebody decided.
func TestEveryRequestHasARow(t *testing.T) {
	server := connect.NewServer()
	sallyportv1connect.RegisterOperatorHandler(server, sallyportv1connect.UnimplementedOperatorHandler{})
	sallyportv1connect.RegisterPeopleHandler(server, sallyportv1connect.UnimplementedPeopleHandler{})
	n := 0
	for spec := range server.Specs() {
		n++
		row, ok := requests[spec.Procedure]
		if !ok {
			t.Errorf("%s has no row", spec.Procedure)
		}
		if row.Nobody != (spec.Procedure == sallyportv1connect.PeopleEnterProcedure) {
			t.Errorf("%s: whether nobody may", spec.Procedure)
		}
	}
	if n != len(requests) {
		t.Errorf("%d requests, %d rows", n, len(requests))
	}
}

func TestNarrow(t *testing.T) {
	limited := person.Who{Person: "bea", Roles: []person.Role{person.Approver}, Limits: person.Limits{Connections: []string{"tracker"}}}
	noRole := person.Who{Person: "ada"}
	calls := func() *sallyportv1.ListCallsResponse {
		return &sallyportv1.ListCallsResponse{Calls: []*sallyportv1.CallRow{{Connection: "tracker", Owner: "ada"}, {Connection: "deploys", Owner: "cid"}}, Next: "x"}
	}
	for name, c := range map[string]struct {
		who  person.Who
		want int
	}{
		"a limited approver":    {limited, 1},
		"an owner without role": {noRole, 1},
		"somebody else":         {person.Who{Person: "dan"}, 0},
		"a viewer":              {person.Who{Person: "dan", Roles: []person.Role{person.Viewer}}, 2},
	} {
		m := calls()
		narrow(c.who, m)
		if len(m.GetCalls()) != c.want || m.GetNext() != "x" {
			t.Errorf("%s sees %d calls, want %d", name, len(m.GetCalls()), c.want)
		}
	}
	for _, m := range []proto.Message{
		&sallyportv1.ListApprovalsResponse{Approvals: []*sallyportv1.ApprovalRow{{Connection: "deploys", Owner: "cid"}}},
		&sallyportv1.ListSessionsResponse{Sessions: []*sallyportv1.SessionRow{{Owner: "cid"}}},
		&sallyportv1.ListConnectionsResponse{Connections: []*sallyportv1.ConnectionRow{{Name: "deploys"}}},
		&sallyportv1.ListProfilesResponse{Profiles: []*sallyportv1.ProfileRow{{Name: "ci"}}},
		&sallyportv1.ListGrantsResponse{Grants: []*sallyportv1.GrantRow{{Tool: "deploys/x"}}},
		&sallyportv1.ListSwitchesResponse{Switches: []*sallyportv1.SwitchRow{{Kind: "tool", Name: "deploys/x"}}},
		&sallyportv1.ListCredentialsResponse{Credentials: []*sallyportv1.CredentialRow{{Connection: "deploys", Subject: "shared"}}},
		&sallyportv1.ListMachinesResponse{Machines: []*sallyportv1.Machine{{Name: "w"}}},
		&sallyportv1.WatchResponse{Id: "x", State: "y", Detail: "z"},
	} {
		narrow(noRole, m)
		if proto.Size(m) != 0 {
			t.Errorf("what is left: %v", m)
		}
	}
}
