package call_test

import (
	"testing"
	"testing/synctest"

	"sallyport.dev/control/journal"
)

func TestReadRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.end()
		c := r.do("list_issues", `{"project":"web","n":12345678901234567890}`)
		r.says(c, `{"content":[{"type":"text","text":"ok"}]}`)
		r.state(c, journal.Answered)
		r.sends(c, 1)
	})
}
