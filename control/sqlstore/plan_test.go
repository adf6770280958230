package sqlstore

import (
	"strings"
	"testing"
)

// What a call pays does not grow with the journal: every statement of its way finds its rows by an index.
func TestHotStatementsUseIndexes(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	newWorld(t, s).oneWrite(func(acknowledged) {})
	plans := map[string]string{}
	if err := s.read(t.Context(), func(c *conn) error {
		for name, sql := range map[string]string{
			"call by id": sqlCallByID, "call by number": sqlCallBySeq, "twins": sqlTwins, "batch of a record": sqlBatchOf, "deliver": sqlAcknowledged,
			"update": sqlUpdateCall, "take": sqlTake, "session": sqlSessionFact, "credential": sqlCredentialFact, "counter": sqlCounter,
			"record": sqlRecordOf, "alias": sqlAliasOf, "twin mark": sqlTwinMark, "uncertain": sqlUncertain, "open calls": sqlOpenCalls,
			"of session": sqlListSession, "last ended": sqlLastEnded, "before": sqlApprovedBefore, "asked": sqlAsked, "leave": sqlLeave,
			"bodies": sqlBodiesOf, "parts": sqlPartsOf, "old bodies": sqlOldBodies, "old calls": sqlOldCalls, "old records": sqlOldRecords,
			"list": sqlListCalls, "browse": sqlBrowse, "browse session": sqlBrowseSession, "browse ids": sqlBrowsePrefix, "of ids": sqlListPrefix, "questions open": sqlOpenQuestions, "seen": sqlSessionSeen,
		} {
			if err := c.rows("EXPLAIN QUERY PLAN "+sql, nil, func(r row) error {
				var id, parent, unused int
				var text string
				err := r.scan(&id, &parent, &unused, &text)
				plans[name] += text + "; "
				return err
			}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	// These walk a bounded stretch of a table in the order of its key.
	bounded := map[string]bool{"old records": true, "old bodies": true}
	for name, plan := range plans {
		if strings.Contains(plan, "USE TEMP B-TREE FOR ORDER BY") && name != "questions open" && name != "old records" && name != "before" && name != "of ids" && name != "browse ids" {
			t.Errorf("%s sorts: %s", name, plan)
		}
		if strings.Contains(plan, "SCAN") && !bounded[name] && !strings.Contains(plan, "USING INDEX questions_open") {
			t.Errorf("%s scans: %s", name, plan)
		}
	}
	if testing.Verbose() {
		for name, plan := range plans {
			t.Log(name, ":", plan)
		}
	}
}
