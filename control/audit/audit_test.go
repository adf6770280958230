package audit

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sallyport.dev/control"
	"sallyport.dev/errs"
)

// chain writes exports the way the store does: the strict other half of Verify.
type chain struct {
	lines []Line
	run   string
	link  control.Digest
	seq   int64
}

func (c *chain) start(run string) {
	r := Record{Kind: KindRun, Subject: run, Event: "open", To: "open", Detail: After(c.run, c.link)}
	c.run, c.link = run, RunStart(run)
	c.batch(r)
}

func (c *chain) batch(rs ...Record) {
	for i := range rs {
		c.seq++
		rs[i].Seq, rs[i].Run, rs[i].Org = c.seq, c.run, control.Org
		c.lines = append(c.lines, Line{Record: &rs[i]})
	}
	c.link = Link(c.link, rs)
	c.lines = append(c.lines, Line{Link: &Linked{Run: c.run, Seq: c.seq, Link: c.link.String()}})
}

func (c *chain) checkpoint(t testing.TB, key ed25519.PrivateKey) Signed {
	s, err := Sign(key, Checkpoint{Org: control.Org, Incarnation: "inc", Counter: c.seq, Run: c.run, Seq: c.seq, Link: c.link.String(), At: 1})
	if err != nil {
		t.Fatal(err)
	}
	c.lines = append(c.lines, Line{Checkpoint: &s})
	return s
}

func text(t testing.TB, lines []Line) string {
	var b bytes.Buffer
	for _, l := range lines {
		if err := WriteLine(&b, l); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func keys(t testing.TB) (ed25519.PublicKey, ed25519.PrivateKey) {
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return pub, priv
}

func call(id, from, event, to string) Record {
	return Record{Kind: KindCall, Subject: id, From: from, Event: event, To: to, Actor: "control:a", Attempt: 1, At: 7}
}

func sample(t testing.TB, key ed25519.PrivateKey) (c *chain, mid Signed) {
	c = &chain{lines: []Line{{Head: &Head{V: 1, Org: control.Org}}}}
	c.start("run-a")
	c.batch(call("c1", "", "record", "admitted"), call("c1", "admitted", "ask", "asking"))
	c.batch(call("c1", "asking", "approve", "approved"))
	mid = c.checkpoint(t, key)
	c.start("run-b")
	c.batch(call("c1", "approved", "commit", "dispatching"))
	c.batch(call("c1", "dispatching", "answer", "answered"))
	c.checkpoint(t, key)
	c.batch(call("c2", "", "record", "admitted"))
	return c, mid
}

func TestVerifyAccepts(t *testing.T) {
	pub, key := keys(t)
	c, mid := sample(t, key)
	rep, err := Verify(strings.NewReader(text(t, c.lines)), Options{Keys: []ed25519.PublicKey{pub}, AtLeast: &mid})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Records != 8 || rep.Batches != 7 || rep.First != 1 || rep.Last != 8 || rep.Checkpoints != 2 || !rep.AtLeast || rep.Covered != 7 {
		t.Fatalf("report %+v", rep)
	}
	if got := strings.Join(rep.Runs, " "); got != "run-a run-b" {
		t.Fatalf("runs %q", got)
	}
	if rep.Link != c.link.String() {
		t.Fatal("the report names another link")
	}
}

func TestVerifyWithoutKeysCountsAndDoesNotTrust(t *testing.T) {
	_, key := keys(t)
	c, _ := sample(t, key)
	rep, err := Verify(strings.NewReader(text(t, c.lines)), Options{})
	if err != nil || rep.Checkpoints != 0 || rep.Unchecked != 2 || rep.Covered != 0 {
		t.Fatalf("%+v, %v", rep, err)
	}
}

// Whoever changes, drops, doubles or swaps any line is found, as long as a checkpoint that somebody holds lies behind it.
func TestVerifyFindsEveryChange(t *testing.T) {
	pub, key := keys(t)
	c, _ := sample(t, key)
	last := c.checkpoint(t, key)
	opts := Options{Keys: []ed25519.PublicKey{pub}, AtLeast: &last}
	whole := strings.Split(strings.TrimSuffix(text(t, c.lines), "\n"), "\n")
	if _, err := Verify(strings.NewReader(strings.Join(whole, "\n")), opts); err != nil {
		t.Fatal(err)
	}
	try := func(name string, lines []string) {
		t.Helper()
		if _, err := Verify(strings.NewReader(strings.Join(lines, "\n")), opts); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: not found: %v", name, err)
		}
	}
	for i, line := range whole {
		isCheckpoint := strings.HasPrefix(line, `{"checkpoint"`)
		if !isCheckpoint { // a left-out checkpoint alone changes no history
			try(fmt.Sprintf("drop line %d", i+1), append(append([]string{}, whole[:i]...), whole[i+1:]...))
			try(fmt.Sprintf("double line %d", i+1), append(append(append([]string{}, whole[:i+1]...), line), whole[i+1:]...))
		}
		if i > 0 && i+1 < len(whole) {
			swapped := append([]string{}, whole...)
			swapped[i], swapped[i+1] = swapped[i+1], swapped[i]
			try(fmt.Sprintf("swap lines %d and %d", i+1, i+2), swapped)
		}
		if i > 0 && !isCheckpoint {
			try(fmt.Sprintf("cut before line %d", i+1), whole[:i])
		}
	}
	for _, change := range [][2]string{
		{`"subject":"c1"`, `"subject":"c9"`},
		{`"event":"approve"`, `"event":"deny"`},
		{`"actor":"control:a"`, `"actor":"control:b"`},
		{`"at":7`, `"at":8`},
		{`"attempt":1`, `"attempt":2`},
		{`"to":"answered"`, `"to":"failed"`},
		{`"run":"run-b"`, `"run":"run-c"`},
		{`after run run-a`, `after run run-x`},
		{`{"record"`, `{"extra":1,"record"`},
		{`"kind":"call"`, `"kind":"call","kind":"call"`},
	} {
		all := strings.Join(whole, "\n")
		changed := strings.Replace(all, change[0], change[1], 1)
		if changed == all {
			t.Fatalf("nothing to change: %s", change[0])
		}
		try(change[0], strings.Split(changed, "\n"))
	}
}

// A chain that was rewritten from the middle on, links and all, agrees with itself; only a checkpoint held elsewhere tells.
func TestVerifyFindsARewrittenChain(t *testing.T) {
	pub, key := keys(t)
	c, mid := sample(t, key)
	_ = c
	forged := &chain{lines: []Line{{Head: &Head{V: 1, Org: control.Org}}}}
	forged.start("run-a")
	forged.batch(call("c1", "", "record", "admitted"), call("c1", "admitted", "refuse", "refused"))
	forged.batch(call("c3", "", "record", "admitted"))
	in := text(t, forged.lines)
	if _, err := Verify(strings.NewReader(in), Options{Keys: []ed25519.PublicKey{pub}}); err != nil {
		t.Fatalf("it agrees with itself: %v", err)
	}
	if _, err := Verify(strings.NewReader(in), Options{Keys: []ed25519.PublicKey{pub}, AtLeast: &mid}); !errs.Is(err, errs.Invalid) {
		t.Fatalf("not found: %v", err)
	}
}

func TestVerifyFromARetainedPlace(t *testing.T) {
	pub, key := keys(t)
	c, mid := sample(t, key)
	cut := 0
	for i, l := range c.lines {
		if l.Checkpoint != nil {
			cut = i
			break
		}
	}
	cp, err := mid.Checkpoint()
	if err != nil {
		t.Fatal(err)
	}
	lines := append([]Line{{Head: &Head{V: 1, Org: control.Org, Seq: cp.Seq, Run: cp.Run, Link: cp.Link}}}, c.lines[cut:]...)
	rep, err := Verify(strings.NewReader(text(t, lines)), Options{Keys: []ed25519.PublicKey{pub}, AtLeast: &mid})
	if err != nil || rep.First != cp.Seq+1 || !rep.AtLeast {
		t.Fatalf("%+v, %v", rep, err)
	}
	lines[0].Head.Link = control.Sum(nil).String()
	if _, err := Verify(strings.NewReader(text(t, lines)), Options{Keys: []ed25519.PublicKey{pub}}); !errs.Is(err, errs.Invalid) {
		t.Fatalf("another beginning is not found: %v", err)
	}
}

func TestVerifyBadInput(t *testing.T) {
	for name, in := range map[string]string{
		"empty": "", "blank": "\n\n", "no json": "hello", "no head": `{"link":{"run":"a","seq":1,"link":""}}`,
		"two things": `{"head":{"v":1,"org":"default","seq":0,"run":"","link":""},"link":{"run":"a","seq":1,"link":""}}`,
		"version":    `{"head":{"v":2,"org":"default","seq":0,"run":"","link":""}}`, "negative": `{"head":{"v":1,"org":"default","seq":-4,"run":"a","link":"00"}}`,
		"long": `{"head":{"v":1,"org":"` + strings.Repeat("a", maxLine) + `"}}`, "utf-8": "{\"head\":{\"v\":1,\"org\":\"\xff\"}}",
	} {
		if _, err := Verify(strings.NewReader(in), Options{}); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWitnesses(t *testing.T) {
	pub, key := keys(t)
	wpub, wkey := keys(t)
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c, mid := sample(t, key)
	enc, _ := mid.Encode()
	digest, _ := mid.Digest()
	sum := sha256.Sum256(WitnessMessage(enc))
	ecSig, err := ec.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	var lines []Line
	done := false
	for _, l := range c.lines {
		lines = append(lines, l)
		if l.Checkpoint != nil && !done {
			done = true
			lines = append(lines,
				Line{Witness: &Witness{By: "host-a", Checkpoint: digest.String(), Signature: ed25519.Sign(wkey, WitnessMessage(enc))}},
				Line{Witness: &Witness{By: "worker-a", Checkpoint: digest.String(), Signature: ecSig}},
				Line{Witness: &Witness{By: "unknown", Checkpoint: digest.String(), Signature: []byte("x")}})
		}
	}
	opts := Options{Keys: []ed25519.PublicKey{pub}, Identities: map[string]crypto.PublicKey{"host-a": wpub, "worker-a": ec.Public()}}
	rep, err := Verify(strings.NewReader(text(t, lines)), opts)
	if err != nil || rep.Witnesses != 2 || rep.Unchecked != 1 {
		t.Fatalf("%+v, %v", rep, err)
	}
	opts.Identities["unknown"] = wpub
	if _, err := Verify(strings.NewReader(text(t, lines)), opts); !errs.Is(err, errs.Invalid) {
		t.Fatalf("a wrong countersignature passes: %v", err)
	}
}

func TestSignedForms(t *testing.T) {
	pub, key := keys(t)
	other, _ := keys(t)
	s, err := Sign(key, Checkpoint{Org: control.Org, Run: "r", Seq: 3, Link: control.Sum(nil).String()})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := s.Encode()
	back, err := DecodeSigned(append(b, '\n'))
	if err != nil {
		t.Fatal(err)
	}
	if c, err := back.Verify(other, pub); err != nil || c.Seq != 3 {
		t.Fatalf("%+v %v", c, err)
	}
	for name, in := range map[string][]byte{"unknown key": nil, "changed": append([]byte(nil), back.Body...)} {
		bad := back
		if in == nil {
			if _, err := bad.Verify(other); !errs.Is(err, errs.Invalid) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		bad.Body = bytes.Replace(in, []byte(`"seq":3`), []byte(`"seq":4`), 1)
		if _, err := bad.Verify(pub); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, in := range map[string]string{
		"no json": "x", "unknown member": `{"body":"","key":"","sig":"","more":1}`, "doubled": `{"body":"","body":"","key":"","sig":""}`,
	} {
		if _, err := DecodeSigned([]byte(in)); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := DecodeSigned(make([]byte, maxSigned+1)); !errs.Is(err, errs.Oversize) {
		t.Error(err)
	}
	for _, body := range []string{`{"v":2}`, `{"v":1,"seq":1,"run":"a","link":"zz"}`, `{"v":1,"seq":0,"run":"a","link":"` + control.Sum(nil).String() + `"}`, `[]`} {
		if _, err := (Signed{Body: []byte(body)}).Checkpoint(); err == nil {
			t.Errorf("%s passes", body)
		}
	}
}

// The fast digest is the format's SumParts.
func TestRecordDigestIsSumParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		str := rapid.String()
		r := Record{
			Seq: rapid.Int64().Draw(t, "seq"), Run: str.Draw(t, "run"), At: rapid.Int64().Draw(t, "at"), Org: str.Draw(t, "org"),
			Kind: str.Draw(t, "kind"), Subject: str.Draw(t, "subject"), Attempt: rapid.Int64().Draw(t, "attempt"), From: str.Draw(t, "from"),
			Event: str.Draw(t, "event"), To: str.Draw(t, "to"), Actor: str.Draw(t, "actor"), Detail: str.Draw(t, "detail"),
		}
		n := func(v int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(v)) }
		want := control.SumParts("audit record v1", n(r.Seq), []byte(r.Run), n(r.At), []byte(r.Org), []byte(r.Kind), []byte(r.Subject),
			n(r.Attempt), []byte(r.From), []byte(r.Event), []byte(r.To), []byte(r.Actor), []byte(r.Detail))
		if r.Digest() != want {
			t.Fatal("the digest is not the format's")
		}
		before := control.Sum([]byte(r.Run))
		if Link(before, []Record{r, r}) != control.SumParts("audit link v1", before[:], want[:], want[:]) {
			t.Fatal("the link is not the format's")
		}
	})
}

func TestKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit", "audit.key")
	if _, err := ReadKey(path); !errs.Is(err, errs.NotFound) {
		t.Fatal(err)
	}
	key, err := CreateKey(path)
	if err != nil {
		t.Fatal(err)
	}
	back, err := ReadKey(path)
	if err != nil || !back.Equal(key) {
		t.Fatal(err)
	}
	if _, err := CreateKey(path); !errs.Is(err, errs.Conflict) {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	pubs, err := ParsePublicKeys(b)
	if err != nil || len(pubs) != 1 || !pubs[0].Equal(key.Public()) {
		t.Fatal(err)
	}
	if _, err := ParsePublicKeys([]byte("x")); !errs.Is(err, errs.Invalid) {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKey(path); !errs.Is(err, errs.Invalid) {
		t.Fatal(err)
	}
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKey(bad); !errs.Is(err, errs.Invalid) {
		t.Fatal(err)
	}
}
