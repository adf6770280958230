package control

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const digestsPage = "../docs/digests.md"

func page(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(digestsPage)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The digests of control and of its contracts are one form: control computes the vectors that intent/ publishes.
func TestSumPartsVectors(t *testing.T) {
	b, err := os.ReadFile("../intent/testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Joins []struct {
			Domain string
			Parts  []string
			SHA256 string
		}
	}
	if err := json.Unmarshal(b, &v); err != nil || len(v.Joins) < 5 {
		t.Fatalf("%d vectors, %v", len(v.Joins), err)
	}
	for _, j := range v.Joins {
		parts := make([][]byte, len(j.Parts))
		for i, p := range j.Parts {
			parts[i] = []byte(p)
		}
		if got := SumParts(j.Domain, parts...); got.String() != j.SHA256 {
			t.Errorf("%s %q: %s, want %s", j.Domain, j.Parts, got, j.SHA256)
		}
	}
}

func sampleBinding() *Binding {
	return &Binding{
		Org: "default", Session: "sessionaaaaaaaaaaaaaaaaaaa", Profile: "dev", ProfileVersion: 3, Connection: "tracker", Revision: 7,
		Catalog: Sum([]byte("catalog")), Tool: "create_issue", Effect: Write, Account: "bot", Subject: SubjectShared, Arguments: []byte(`{"title":"hello"}`),
	}
}

// I7: any member that changes makes another digest. The vectors are the ones of docs/digests.md.
func TestBindingVectors(t *testing.T) {
	const (
		plain        = "d105351d51e7976cb078de813bda9c2b5dca5903de863ab7ae174cf819ea4a2b"
		continuation = "df87fd3367cf657e9563517e5354d0b46feeed77d3f08d4f0936f3f5923ce298"
	)
	first := sampleBinding()
	second := sampleBinding()
	second.RequestState, second.InputResponses = []byte(`"opaque"`), []byte(`{"colour":"red"}`)
	for _, v := range []struct {
		b    *Binding
		want string
	}{{first, plain}, {second, continuation}} {
		if got := v.b.Digest().String(); got != v.want || !strings.Contains(page(t), got) {
			t.Errorf("%s, want %s, shown in %s", got, v.want, digestsPage)
		}
	}
	seen := map[Digest]string{first.Digest(): "nothing", second.Digest(): "continuation"}
	for name, change := range map[string]func(*Binding){
		"org":             func(b *Binding) { b.Org += "x" },
		"session":         func(b *Binding) { b.Session += "x" },
		"profile":         func(b *Binding) { b.Profile += "x" },
		"profile version": func(b *Binding) { b.ProfileVersion++ },
		"connection":      func(b *Binding) { b.Connection += "x" },
		"revision":        func(b *Binding) { b.Revision++ },
		"catalog":         func(b *Binding) { b.Catalog[0]++ },
		"tool":            func(b *Binding) { b.Tool += "x" },
		"effect":          func(b *Binding) { b.Effect = Read },
		"account":         func(b *Binding) { b.Account += "x" },
		"subject":         func(b *Binding) { b.Subject += "x" },
		"arguments":       func(b *Binding) { b.Arguments = append(b.Arguments, ' ') },
		"state":           func(b *Binding) { b.RequestState = []byte("1") },
		"responses":       func(b *Binding) { b.InputResponses = []byte("1") },
		"moved byte":      func(b *Binding) { b.Org, b.Session = "defaults", "essionaaaaaaaaaaaaaaaaaaa" },
	} {
		b := sampleBinding()
		change(b)
		if other, ok := seen[b.Digest()]; ok {
			t.Errorf("%s changed: the digest is that of %s changed", name, other)
		}
		seen[b.Digest()] = name
	}
}

var domains = regexp.MustCompile(`(?:SumParts|intent\.Join|[^.]\bJoin)\(\s*"([a-z ]+ v[0-9]+)"`)

// The page lists every domain in use: who adds one says there what its parts are.
func TestDocsListEveryDomain(t *testing.T) {
	text, found := page(t), map[string]bool{}
	for _, root := range []string{".", "../intent", "../worker", "../host", "../relay", "../identity"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range domains.FindAllStringSubmatch(string(b), -1) {
				found[m[1]] = true
				if !strings.Contains(text, "`"+m[1]+"`") {
					t.Errorf("%s uses the domain %q, which %s does not list", path, m[1], digestsPage)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(found) < 10 {
		t.Errorf("only %d domains were found: the search is wrong", len(found))
	}
}
