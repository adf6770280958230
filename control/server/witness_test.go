package server_test

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control/audit"
	"sallyport.dev/control/server"
	"sallyport.dev/identity"
	"sallyport.dev/intent"
)

// A host countersigns what control says of its record; a signature that does not fit ends the Link.
func TestWitness(t *testing.T) {
	r := newRig(t)
	source := r.machine(identity.Host, "", "h")
	r.apply(yaml)
	if err := r.store.Export(t.Context(), time.Time{}, io.Discard); err != nil { // signs a checkpoint
		t.Fatal(err)
	}
	checkpoint := r.store.Checkpoint()
	if len(checkpoint) == 0 {
		t.Fatal("no checkpoint")
	}
	svid, err := source.GetX509SVID()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(audit.WitnessMessage(checkpoint))
	signature, err := svid.PrivateKey.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	link := func(signature []byte) sallyportv1.Host_LinkClient {
		t.Helper()
		stream, err := r.hostClient(source).Link(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range []*sallyportv1.HostFrame{
			{Frame: &sallyportv1.HostFrame_Hello{Hello: &sallyportv1.HostHello{Build: "test", Wire: server.Wire, ProtectedVersion: intent.Protected}}},
			{Frame: &sallyportv1.HostFrame_Witness{Witness: &sallyportv1.Witness{Checkpoint: checkpoint, Signature: signature}}},
		} {
			if err := stream.Send(&sallyportv1.HostFrames{Frames: []*sallyportv1.HostFrame{f}}); err != nil {
				t.Fatal(err)
			}
		}
		return stream
	}
	link(signature)
	for {
		var out bytes.Buffer
		if err := r.store.Export(t.Context(), time.Time{}, &out); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), "spiffe://test.internal/host/h") && strings.Contains(out.String(), `"witness"`) {
			break
		}
		if t.Context().Err() != nil {
			t.Fatal("the countersignature never came into the record")
		}
	}
	signature[4] ^= 1
	stream := link(signature)
	for {
		if _, err := stream.Recv(); err != nil {
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("a forged countersignature: %v", err)
			}
			return
		}
	}
}
