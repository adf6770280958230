package relay

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWithdraw(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"in/" + ResultsDir, "in/" + ProgressDir, "out/" + NewDir, "out/" + TmpDir} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	g := NewGuest(filepath.Join(dir, "in"), filepath.Join(dir, "out"))
	defer g.Close()
	call := func() *Pending {
		p, err := g.Call(&Call{Session: NewID(), Epoch: 1, Tool: "t", Arguments: []byte(`{}`), TimeoutMS: 1000})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}

	p := call()
	name := filepath.Join(dir, "out", NewDir, CallName(p.ID()))
	if back, err := p.Withdraw(); !back || err != nil {
		t.Fatalf("Withdraw of a record that nobody took: %v, %v", back, err)
	}
	if _, err := os.Lstat(name); !os.IsNotExist(err) {
		t.Fatalf("the record is still there: %v", err)
	}

	p = call()
	name = filepath.Join(dir, "out", NewDir, CallName(p.ID()))
	if err := os.Rename(name, filepath.Join(dir, "claimed")); err != nil {
		t.Fatal(err)
	}
	if back, err := p.Withdraw(); back || err != nil {
		t.Fatalf("Withdraw of a claimed record: %v, %v", back, err)
	}
}
