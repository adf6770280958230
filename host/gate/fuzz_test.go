package gate

import (
	"bytes"
	"crypto/ed25519"
	"net"
	"testing"

	"github.com/go-json-experiment/json"

	"sallyport.dev/host/sandbox"
)

// What comes over the host's socket is read strictly, whatever it is: nothing but a proof that its own key signed for this very challenge is
// taken for one.
func FuzzProof(f *testing.F) {
	key := Key{ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))} // the same in every process of the fuzzer
	challenge := bytes.Repeat([]byte{7}, challengeSize)
	statement, signature, err := key.sign(Proof{Session: "s", Epoch: 1, Key: key.Public(), Sandbox: sandbox.Process{PID: 5}}, challenge)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(statement, signature)
	f.Add([]byte(`{"key":""}`), signature)
	f.Add([]byte(`{}`), []byte(nil))
	f.Fuzz(func(t *testing.T, data, sig []byte) {
		p, signed, err := readProof(data, sig, challenge)
		if !signed {
			return
		}
		if err != nil {
			t.Fatalf("signed, and %v", err)
		}
		// Nobody else's key is known to the fuzzer, so what is signed is what was signed here.
		if !bytes.Equal(data, statement) || !bytes.Equal(p.Key, key.Public()) {
			t.Fatalf("%q passes", data)
		}
	})
}

// A line of the protocol that is read says the same when it is written again.
func FuzzEnvelope(f *testing.F) {
	for _, e := range []envelope{
		{V: 1, Open: true},
		{V: 1, Challenge: []byte("c")},
		{V: 1, Stop: (StopReason{Message: "m", Grace: 5}).wire()},
		{V: 1, Ended: &Ended{Code: 3, Remarks: []string{"r"}}},
		{V: 1, Refused: &Refusal{Reason: ProbeAnswered}},
	} {
		line, err := json.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		ours, theirs := net.Pipe()
		go func() {
			_, _ = theirs.Write(append(bytes.ReplaceAll(line, []byte("\n"), nil), '\n'))
			theirs.Close()
		}()
		e, err := newConn(ours).receive()
		ours.Close()
		if err != nil {
			return
		}
		if e.V != Version {
			t.Fatalf("version %d passes", e.V)
		}
		if _, err := json.Marshal(e); err != nil {
			t.Fatal(err)
		}
		if e.Stop != nil {
			if g := e.Stop.reason().Grace; g < 0 || g > maxGrace {
				t.Fatalf("grace %s", g)
			}
		}
	})
}
