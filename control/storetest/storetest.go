// Package storetest is the conformance suite of the stores: what call, inbox, grant, session and revocation demand of a database, as tests. Every
// store runs it: one that fails any part is not a store.
package storetest

import (
	"testing"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/grant"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/person"
	"sallyport.dev/control/revocation"
	"sallyport.dev/control/session"
)

// Stores is one empty database, seen by each capability.
type Stores struct {
	Call       call.Store
	Inbox      inbox.Store
	Grant      grant.Store
	Session    session.Store
	Revocation revocation.Store
	People     person.Store
	// PutCredential stores a credential as it is, whatever its version.
	PutCredential func(control.Credential) error
}

// Run runs the whole suite. open returns an empty database, closed by the test's cleanup.
func Run(t *testing.T, open func(t *testing.T) Stores) {
	for _, part := range []struct {
		name string
		test func(t *testing.T, s *fixture)
	}{
		{"policy grows by generations", testPolicy},
		{"apply is compare-and-set", testApply},
		{"a ticket opens one session", testTickets},
		{"epochs fence", testEpochs},
		{"one row for a record", testAdmitOnce},
		{"admission is guarded", testAdmitGuard},
		{"a record may stand for another call", testAlias},
		{"an allowed read is one insert", testAdmitRead},
		{"a call keeps what it is bound to", testBinding},
		{"questions are bounded", testAdmitBusy},
		{"twins are seen", testTwins},
		{"only rows of the state table", testLegal},
		{"steps are compare-and-set", testFences},
		{"a decision is bound to what was shown", testDecide},
		{"two approvers", testSecond},
		{"a decision comes in time", testDecideLate},
		{"a denial ends the call", testDeny},
		{"answers of people", testAnswers},
		{"an approval is used once", testApprovalOnce},
		{"an approval expires", testApprovalExpires},
		{"a switch before the barrier stops it", testSwitchBarrier},
		{"a closed session stops it", testClosedBarrier},
		{"another credential stops it", testCredentialBarrier},
		{"counters are taken by the barrier", testCounters},
		{"a given grant ends", testGivenBarrier},
		{"uncertain suspends", testSuspends},
		{"settle keeps bytes and facts", testSettle},
		{"late evidence and people race", testLate},
		{"resolve by retry", testResolveRetry},
		{"adoption", testAdopt},
		{"delivery only rises", testDeliver},
		{"lists and pages", testList},
		{"purge keeps digests", testPurge},
		{"what a person looks at", testSubject},
		{"impact and open intents", testImpact},
		{"quarantine", testQuarantine},
		{"somebody remembers more", testRemember},
		{"people", testPeople},
		{"passes", testPasses},
		{"concurrent barriers take one unit each", testConcurrentCounters},
		{"concurrent decisions: one closes", testConcurrentDecisions},
		{"concurrent barriers: one commits", testConcurrentCommit},
		{"histories are those of one call", testHistory},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(t, newFixture(t, open(t))) })
	}
}
