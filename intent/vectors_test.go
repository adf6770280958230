package intent

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write testdata/vectors.json anew")

// vectors are what an implementation in another language must reproduce. Keys are seeds of RFC 8032; binary values are hex, signatures base64.
type vectors struct {
	Intent        string       `json:"intent"`
	IntentDigest  string       `json:"intent_sha256"`
	RootSeed      string       `json:"root_seed"`
	RootPublic    string       `json:"root_public"`
	NodeSeed      string       `json:"node_seed"`
	NodePublic    string       `json:"node_public"`
	NodeKeyID     string       `json:"node_key_id"`
	NodeNotAfter  int64        `json:"node_not_after"`
	NodePreimage  string       `json:"node_key_preimage"`
	NodeSignature string       `json:"node_key_signature"`
	Signature     string       `json:"intent_signature"`
	LinkKey       string       `json:"link_key"`
	MAC           string       `json:"intent_mac"`
	Joins         []joinVector `json:"joins"`
}

type joinVector struct {
	Domain   string   `json:"domain"`
	Parts    []string `json:"parts"`
	Preimage string   `json:"preimage"`
	SHA256   string   `json:"sha256"`
}

func makeVectors(t *testing.T) vectors {
	root, node := fixedKey(t, 0), fixedKey(t, 32)
	cert := root.Certify(node.Public(), epoch.Add(NodeKeyLife))
	msg := encode(t, sample())
	link := LinkKey{key: []byte(strings.Repeat("\x42", 32))}
	v := vectors{
		Intent: string(msg), IntentDigest: Digest(msg),
		RootSeed: hex.EncodeToString(root.key.Seed()), RootPublic: hex.EncodeToString(root.Public()),
		NodeSeed: hex.EncodeToString(node.key.Seed()), NodePublic: hex.EncodeToString(node.Public()),
		NodeKeyID: node.ID(), NodeNotAfter: cert.NotAfter.Unix(), NodePreimage: hex.EncodeToString(cert.signed()),
		NodeSignature: base64.StdEncoding.EncodeToString(cert.Signature), Signature: base64.StdEncoding.EncodeToString(node.Sign(msg)),
		LinkKey: hex.EncodeToString(link.key), MAC: hex.EncodeToString(link.MAC(msg)),
	}
	for _, j := range []joinVector{
		{Domain: "example v1"},
		{Domain: "example v1", Parts: []string{""}},
		{Domain: "example v1", Parts: []string{"ab", "c"}},
		{Domain: "example v1", Parts: []string{"a", "bc"}},
		{Domain: "catalog v1", Parts: []string{"list_issues", `{"name":"list_issues","inputSchema":{"type":"object"}}`}},
	} {
		parts := make([][]byte, len(j.Parts))
		for i, p := range j.Parts {
			parts[i] = []byte(p)
		}
		pre := Join(j.Domain, parts...)
		j.Preimage, j.SHA256 = hex.EncodeToString(pre), Digest(pre)
		v.Joins = append(v.Joins, j)
	}
	return v
}

func TestVectors(t *testing.T) {
	const path = "testdata/vectors.json"
	got, err := json.MarshalIndent(makeVectors(t), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("the format changed: %s is\n%s\nnow\n%s", path, want, got)
	}
}

// The pages show the same vectors: a reader who implements from them gets what the code does.
func TestDocsShowTheVectors(t *testing.T) {
	v := makeVectors(t)
	for page, shown := range map[string][]string{
		"../docs/intent.md":  {v.Intent, v.IntentDigest, v.NodeKeyID, v.NodeSignature, v.Signature, v.MAC},
		"../docs/digests.md": {v.Joins[0].SHA256, v.Joins[1].SHA256, v.Joins[2].SHA256, v.Joins[3].SHA256, v.Joins[4].SHA256},
	} {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range shown {
			if !strings.Contains(string(b), s) {
				t.Errorf("%s does not show %s", page, s)
			}
		}
	}
	if time.Unix(v.NodeNotAfter, 0).UTC() != epoch.Add(NodeKeyLife) {
		t.Error("not_after is in seconds")
	}
}

func BenchmarkParse(b *testing.B) {
	in := sample()
	msg := encode(b, in)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(msg); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	in := sample()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Encode(in); err != nil {
			b.Fatal(err)
		}
	}
}
