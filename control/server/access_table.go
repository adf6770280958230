package server

import (
	"context"
	"strings"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/control"
	"sallyport.dev/control/person"
	"sallyport.dev/errs"
)

// request is a row of the table of requests: who may make it, and what it is about.
type request struct {
	person.Access
	// about says what a request is about. An empty object is more than any limit covers.
	about func(ctx context.Context, o *operatorService, msg any) (*person.Object, error)
}

var (
	administrators = person.Access{Changes: true}
	looks          = person.Access{Roles: person.Roles, Own: true}
	looksAtAll     = person.Access{Roles: person.Roles}
	operates       = person.Access{Roles: []person.Role{person.Operator}, Own: true, Changes: true}
	decides        = person.Access{Roles: []person.Role{person.Approver}, Own: true, Changes: true}
	resolves       = person.Access{Roles: []person.Role{person.Approver, person.Operator}, Own: true, Changes: true}
	everybody      = person.Access{Everybody: true}
	// Whose own: which object it is, and whose, its handler finds out.
	theirOwn = person.Access{Everybody: true, Changes: true}
)

// requests is the table: a request that is not in it is refused, and a test asks for a row of each.
var requests = map[string]request{
	sallyportv1connect.OperatorStatusProcedure:            {everybody, nil},
	sallyportv1connect.OperatorPlanProcedure:              {looksAtAll, everything},
	sallyportv1connect.OperatorApplyProcedure:             {administrators, nil},
	sallyportv1connect.OperatorListCallsProcedure:         {looks, nil},
	sallyportv1connect.OperatorShowCallProcedure:          {looks, callOf},
	sallyportv1connect.OperatorPurgeCallProcedure:         {administrators, nil},
	sallyportv1connect.OperatorListApprovalsProcedure:     {looks, nil},
	sallyportv1connect.OperatorShowApprovalProcedure:      {looks, questionOf},
	sallyportv1connect.OperatorListSessionsProcedure:      {looks, nil},
	sallyportv1connect.OperatorCloseOwnedSessionProcedure: {operates, sessionOf},
	sallyportv1connect.OperatorListConnectionsProcedure:   {looks, nil},
	sallyportv1connect.OperatorListProfilesProcedure:      {looks, nil},
	sallyportv1connect.OperatorListGrantsProcedure:        {looks, nil},
	sallyportv1connect.OperatorListMachinesProcedure:      {looks, nil},
	sallyportv1connect.OperatorRemoveMachineProcedure:     {administrators, nil},
	sallyportv1connect.OperatorListSwitchesProcedure:      {looks, nil},
	sallyportv1connect.OperatorWatchProcedure:             {looks, nil},
	sallyportv1connect.OperatorDecideProcedure:            {decides, questionOf},
	sallyportv1connect.OperatorResolveProcedure:           {resolves, callOf},
	sallyportv1connect.OperatorRevokeProcedure:            {operates, switched},
	sallyportv1connect.OperatorRestoreProcedure:           {operates, switched},
	sallyportv1connect.OperatorPullCatalogProcedure:       {administrators, nil},
	sallyportv1connect.OperatorShowCatalogProcedure:       {looksAtAll, connectionOf},
	sallyportv1connect.OperatorTestConnectionProcedure:    {administrators, nil},
	sallyportv1connect.OperatorEnableConnectionProcedure:  {person.Access{Roles: []person.Role{person.Operator}, Changes: true}, connectionOf},
	sallyportv1connect.OperatorRemoveConnectionProcedure:  {administrators, nil},
	sallyportv1connect.OperatorCheckCatalogProcedure:      {administrators, nil},
	sallyportv1connect.OperatorListDraftsProcedure:        {looksAtAll, everything},
	sallyportv1connect.OperatorReviewDraftProcedure:       {administrators, nil},
	sallyportv1connect.OperatorPoolKeyProcedure:           {everybody, nil},
	sallyportv1connect.OperatorPutCredentialProcedure:     {theirOwn, nil},
	sallyportv1connect.OperatorBeginSignInProcedure:       {theirOwn, nil},
	sallyportv1connect.OperatorEndSignInProcedure:         {theirOwn, nil},
	sallyportv1connect.OperatorListCredentialsProcedure:   {looks, nil},
	sallyportv1connect.OperatorRemoveCredentialProcedure:  {theirOwn, nil},
	sallyportv1connect.OperatorSessionTicketProcedure:     {theirOwn, nil},
	sallyportv1connect.OperatorGiveGrantProcedure:         {administrators, nil},
	sallyportv1connect.OperatorRemoveGrantProcedure:       {administrators, nil},
	sallyportv1connect.OperatorExplainProcedure:           {looks, explained},
	sallyportv1connect.OperatorEnrolProcedure:             {administrators, nil},
	sallyportv1connect.OperatorExportProcedure:            {person.Access{}, nil},
	sallyportv1connect.OperatorAcceptRestoreProcedure:     {administrators, nil},
	sallyportv1connect.OperatorBackupProcedure:            {administrators, nil},

	sallyportv1connect.PeopleEnterProcedure:        {person.Access{Nobody: true}, nil},
	sallyportv1connect.PeopleLeaveProcedure:        {everybody, nil},
	sallyportv1connect.PeopleMakeLinkProcedure:     {person.Access{Own: true, Changes: true}, passFor},
	sallyportv1connect.PeopleMakeTokenProcedure:    {person.Access{Own: true, Changes: true}, passFor},
	sallyportv1connect.PeopleListPassesProcedure:   {looks, nil},
	sallyportv1connect.PeopleEndPassProcedure:      {person.Access{Own: true, Changes: true}, passOf},
	sallyportv1connect.PeopleListPeopleProcedure:   {person.Access{}, nil},
	sallyportv1connect.PeoplePutPersonProcedure:    {administrators, nil},
	sallyportv1connect.PeopleRemovePersonProcedure: {administrators, nil},
}

func everything(context.Context, *operatorService, any) (*person.Object, error) {
	return &person.Object{}, nil
}

func objectOfCall(c *control.Call) *person.Object {
	return &person.Object{Profile: c.Profile, Connection: c.Connection, Owner: c.Owner}
}

func callOf(ctx context.Context, o *operatorService, msg any) (*person.Object, error) {
	id := ""
	switch r := msg.(type) {
	case interface{ GetId() string }:
		id = r.GetId()
	case interface{ GetCall() string }:
		id = r.GetCall()
	}
	c, err := o.find(ctx, id)
	if err != nil {
		return nil, err
	}
	return objectOfCall(c), nil
}

func questionOf(ctx context.Context, o *operatorService, msg any) (*person.Object, error) {
	name := ""
	switch r := msg.(type) {
	case *sallyportv1.ShowApprovalRequest:
		name = r.GetId()
	case *sallyportv1.DecideRequest:
		name = r.GetApproval()
	}
	id, err := o.question(ctx, name)
	if err != nil {
		return nil, err
	}
	q, err := o.s.stores.Inbox.Question(ctx, id)
	if err != nil {
		return nil, err
	}
	c, err := o.s.stores.Calls.Call(ctx, q.Call)
	if err != nil {
		return nil, err
	}
	return objectOfCall(c), nil
}

func (o *operatorService) sessionObject(ctx context.Context, id string) (*person.Object, error) {
	s, err := o.s.stores.Sessions.Session(ctx, id)
	if err != nil {
		return nil, err
	}
	return &person.Object{Profile: s.Profile.Name, Owner: s.Owner}, nil
}

func sessionOf(ctx context.Context, o *operatorService, msg any) (*person.Object, error) {
	r, _ := msg.(interface{ GetSession() string })
	return o.sessionObject(ctx, r.GetSession())
}

func connectionOf(_ context.Context, _ *operatorService, msg any) (*person.Object, error) {
	r, _ := msg.(interface{ GetConnection() string })
	return &person.Object{Connection: r.GetConnection()}, nil
}

// switched is what a switch is thrown on. One that is wider than a connection or a session is about everything.
func switched(ctx context.Context, o *operatorService, msg any) (*person.Object, error) {
	r, _ := msg.(interface {
		GetKind() string
		GetName() string
	})
	switch control.SwitchKind(r.GetKind()) {
	case control.SwitchSession:
		return o.sessionObject(ctx, r.GetName())
	case control.SwitchConnection, control.SwitchTool, control.SwitchCredential:
		return &person.Object{Connection: connectionIn(r.GetName())}, nil
	}
	return &person.Object{}, nil
}

// connectionIn is the connection of connection/tool.
func connectionIn(name string) string {
	connection, _, _ := strings.Cut(name, "/")
	return connection
}

func explained(ctx context.Context, o *operatorService, msg any) (*person.Object, error) {
	r, _ := msg.(*sallyportv1.ExplainRequest)
	if r.GetCall() != "" {
		return callOf(ctx, o, r)
	}
	return &person.Object{Profile: r.GetProfile(), Connection: connectionIn(r.GetTool())}, nil
}

// passFor is the person for whom a link or a token is made: oneself when none is named.
func passFor(ctx context.Context, _ *operatorService, msg any) (*person.Object, error) {
	r, _ := msg.(interface{ GetPerson() string })
	if r.GetPerson() == "" {
		return &person.Object{Owner: whoOf(ctx).Person}, nil
	}
	return &person.Object{Owner: control.Person(r.GetPerson())}, nil
}

func passOf(ctx context.Context, o *operatorService, msg any) (*person.Object, error) {
	r, _ := msg.(*sallyportv1.EndPassRequest)
	all, err := o.s.stores.People.Passes(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if p.ID == r.GetId() {
			return &person.Object{Owner: p.Person}, nil
		}
	}
	return nil, errs.New(errs.NotFound, "there is no such session or token, or it is over")
}
