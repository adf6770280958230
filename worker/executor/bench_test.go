package executor

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"testing"
	"time"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/intent"
)

// benchLink answers nothing and tells the benchmark when an outcome came.
type benchLink struct {
	fakeLink
	done chan string
}

func (l *benchLink) Push(frames ...*sallyportv1.WorkerFrame) bool { return l.PushBody(frames...) }

func (l *benchLink) PushBody(frames ...*sallyportv1.WorkerFrame) bool {
	if o := frames[len(frames)-1].GetOutcome(); o != nil {
		l.done <- o.GetIntent()
	}
	return true
}

// linkKey exports a key from a TLS session, as a Link does.
func linkKey(b *testing.B) intent.LinkKey {
	b.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, pub, key)
	if err != nil {
		b.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, InsecureSkipVerify: true, ClientAuth: tls.RequestClientCert}
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	go func() { _ = tls.Server(far, config).Handshake() }()
	conn := tls.Client(near, config)
	if err := conn.Handshake(); err != nil {
		b.Fatal(err)
	}
	k, err := intent.ExportLinkKey(conn.ConnectionState())
	if err != nil {
		b.Fatal(err)
	}
	return k
}

// BenchmarkRead is the executor's own part of a read: verify, open the credential, dispatch to an upstream that answers at once, report, forget.
func BenchmarkRead(b *testing.B) {
	r := newRig(b, 64)
	l := &benchLink{done: make(chan string, 1)}
	l.mac = linkKey(b)
	jobs := make([]*sallyportv1.IntentJob, b.N)
	for i := range jobs {
		in := r.intent(intent.Read)
		in.AuthType, in.Subject, in.Version = intent.AuthBearer, "shared", 1
		encoded, err := intent.Encode(in)
		if err != nil {
			b.Fatal(err)
		}
		jobs[i] = &sallyportv1.IntentJob{Intent: encoded, Signature: l.mac.MAC(encoded), KeyId: intent.LinkKeyID, Arguments: arguments, Go: true}
		if i == 0 {
			jobs[i].SealedCredential = r.sealed(&in, "canary-secret-1234567890")
		} else {
			jobs[i].SealedCredential = jobs[0].SealedCredential
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for _, job := range jobs {
		r.x.Intent(l, job)
		r.x.Ack(<-l.done)
	}
}
