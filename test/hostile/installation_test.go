package hostile_test

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/test/rig"
)

// profiles of these installations: nobody is asked, reads are allowed, writes are given by an administrator.
func profiles(connections []rig.Connection) string {
	var reads, writes []string
	for _, c := range connections {
		for _, tool := range c.Reads {
			reads = append(reads, c.Name+"/"+tool)
		}
		for _, tool := range c.Writes {
			writes = append(writes, c.Name+"/"+tool)
		}
	}
	return fmt.Sprintf(`profiles:
  work:
    attached: allow
    sandbox: {driver: process, closed: "no"}
    grants:
      - {tools: [%s], rule: allow}
standing:
  bot: {profile: work, tools: [%s], calls: 10000, until: %s, reason: "hostile servers"}
`, strings.Join(reads, ", "), strings.Join(writes, ", "), time.Now().AddDate(0, 0, 7).Format(time.DateOnly))
}

// installation starts a Sallyport whose parts are processes of their own.
func installation(t *testing.T, o rig.Options) *rig.Rig {
	t.Helper()
	o.Programs, o.Apart = programs, true
	r, err := rig.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s", tail(r.Log(), 8<<10))
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// entry is a call as the journal has it.
type entry struct {
	*sallyportv1.ShowCallResponse
}

// line is what the journal says of the call's end: the reason of its last step that has one.
func (e entry) line() string { return e.GetCall().GetReason() }

// journal returns the newest call of a connection's tool.
func journal(t *testing.T, r *rig.Rig, connection, tool string) entry {
	t.Helper()
	list, err := r.Operator().ListCalls(t.Context(), &sallyportv1.ListCallsRequest{Connection: connection, Tool: tool, Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.GetCalls()) != 1 {
		t.Fatalf("the journal has no call of %s/%s", connection, tool)
	}
	shown, err := r.Operator().ShowCall(t.Context(), &sallyportv1.ShowCallRequest{Id: list.GetCalls()[0].GetId()})
	if err != nil {
		t.Fatal(err)
	}
	return entry{shown}
}

// peak is the most memory that a part had resident since the last calm, in MiB.
func peak(t *testing.T, r *rig.Rig, part string) int {
	t.Helper()
	pid, err := r.PID(part)
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte("VmHWM:")); ok {
			kib, err := strconv.Atoi(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte("kB")))))
			if err != nil {
				t.Fatal(err)
			}
			return kib >> 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

// calm forgets the peaks until now.
func calm(t *testing.T, r *rig.Rig, parts ...string) {
	t.Helper()
	for _, part := range parts {
		pid, err := r.PID(part)
		if err == nil {
			err = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
