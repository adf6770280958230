package intent

import (
	"bytes"
	"maps"
	"testing"
	"time"

	"sallyport.dev/errs"
)

// memory is a directory as strict as a real one: what is not there is NotFound.
type memory map[string][]byte

func (m memory) Read(name string) ([]byte, error) {
	b, ok := m[name]
	if !ok {
		return nil, errs.New(errs.NotFound, "there is no "+name)
	}
	return bytes.Clone(b), nil
}

func (m memory) Write(name string, b []byte) error {
	m[name] = bytes.Clone(b)
	return nil
}

func open(t *testing.T, m memory, now time.Time) Keys {
	t.Helper()
	k, err := OpenKeys(m, now)
	if err != nil {
		t.Fatal(err)
	}
	if err := VerifyNodeKey(k.Root.Public(), k.Cert, now); err != nil {
		t.Fatal(err)
	}
	if k.Cert.ID != k.Node.ID() {
		t.Fatal("the certificate is not the node key's")
	}
	return k
}

func TestOpenKeys(t *testing.T) {
	m := memory{}
	first := open(t, m, epoch)
	if k := open(t, m, epoch.Add(NodeKeyLife/2-time.Hour)); k.Node.ID() != first.Node.ID() {
		t.Error("a young node key was replaced")
	}
	renewed := open(t, m, epoch.Add(NodeKeyLife/2+time.Hour))
	if renewed.Node.ID() == first.Node.ID() || renewed.Root.ID() != first.Root.ID() {
		t.Error("a half-spent node key is replaced under the same root")
	}
	// A start that was cut short after any of the writes.
	for _, missing := range []string{nodeFile, nodeCert} {
		cut := maps.Clone(m)
		delete(cut, missing)
		if k := open(t, cut, epoch); k.Root.ID() != first.Root.ID() {
			t.Errorf("without %s: another root", missing)
		}
	}
	// node.key was written, node.crt not yet.
	torn := maps.Clone(m)
	fresh, err := fixedKey(t, 99).MarshalPEM()
	if err != nil {
		t.Fatal(err)
	}
	torn[nodeFile] = fresh
	open(t, torn, epoch.Add(NodeKeyLife/2+time.Hour))
}

func TestOpenKeysWithoutRoot(t *testing.T) {
	m := memory{}
	first := open(t, m, epoch)
	delete(m, rootFile)
	k, err := OpenKeys(m, epoch.Add(NodeKeyLife-time.Hour))
	if err != nil || k.Node.ID() != first.Node.ID() {
		t.Fatalf("%v %v", k, err)
	}
	if _, err := OpenKeys(m, epoch.Add(NodeKeyLife+time.Hour)); !errs.Is(err, errs.NotAllowed) {
		t.Errorf("expired: %v", err)
	}
	delete(m, nodeFile)
	if _, err := OpenKeys(m, epoch); !errs.Is(err, errs.NotFound) {
		t.Errorf("no key: %v", err)
	}
}

func TestOpenKeysRefusesDamage(t *testing.T) {
	for _, name := range []string{rootFile, nodeFile, nodeCert} {
		m := memory{}
		open(t, m, epoch)
		m[name] = []byte("damage")
		if _, err := OpenKeys(m, epoch); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
