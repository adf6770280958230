package audit

import (
	"crypto/ed25519"
	"os"
	"strings"
	"testing"

	"sallyport.dev/control"
)

// The page of the format shows exactly what this package computes, so that somebody else can write a verifier.
func TestVectorsOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/audit.md")
	if err != nil {
		t.Fatal(err)
	}
	records := []Record{
		{Seq: 1, Run: "run-a", At: 1767225600000, Org: "default", Kind: KindRun, Subject: "run-a", Event: "open", To: "open", Actor: "control:a", Detail: After("", control.Digest{})},
		{
			Seq: 2, Run: "run-a", At: 1767225600001, Org: "default", Kind: KindCall, Subject: "abcdefghijklmnopqrstuvwxyz", Attempt: 1, From: "approved", Event: "commit",
			To: "dispatching", Actor: "run-a", Detail: "- 0000000000000000000000000000000000000000000000000000000000000001 because",
		},
	}
	first := Link(RunStart("run-a"), records[:1])
	second := Link(first, records[1:])
	key := ed25519.NewKeyFromSeed([]byte("sallyport audit vector, 32 bytes"))
	signed, err := Sign(key, Checkpoint{Org: "default", Incarnation: "inc", Counter: 3, Run: "run-a", Seq: 2, Link: second.String(), At: 1767225600002})
	if err != nil {
		t.Fatal(err)
	}
	lines := []Line{
		{Head: &Head{V: 1, Org: "default"}},
		{Record: &records[0]},
		{Link: &Linked{"run-a", 1, first.String()}},
		{Record: &records[1]},
		{Link: &Linked{"run-a", 2, second.String()}},
		{Checkpoint: &signed},
	}
	export := text(t, lines)
	digest, err := signed.Digest()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"run start": RunStart("run-a").String(), "record 1": records[0].Digest().String(), "record 2": records[1].Digest().String(),
		"link 1": first.String(), "link 2": second.String(), "key id": KeyID(key.Public().(ed25519.PublicKey)), "checkpoint digest": digest.String(),
		"export": strings.TrimSpace(export),
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("docs/audit.md does not show the %s: %s", name, want)
		}
	}
	if _, err := Verify(strings.NewReader(export), Options{Keys: []ed25519.PublicKey{key.Public().(ed25519.PublicKey)}, AtLeast: &signed}); err != nil {
		t.Error(err)
	}
}
