package intent

import (
	"crypto/ed25519"
	"encoding/pem"
	"time"

	"github.com/go-json-experiment/json"

	"sallyport.dev/errs"
)

const (
	rootFile    = "root.key"
	nodeFile    = "node.key"
	nodeCert    = "node.crt"
	pemNodeCert = "SALLYPORT NODE KEY"
)

// Files is a private directory. Read answers [errs.NotFound] for what is not there; Write is whole or not at all.
type Files interface {
	Read(name string) ([]byte, error)
	Write(name string, data []byte) error
}

// Keys are a control node's keys for intents. Root is zero on a node that does not hold the root.
type Keys struct {
	Root SigningKey
	Node SigningKey
	Cert NodeKey
}

// OpenKeys reads root.key, node.key and node.crt, and makes what is missing at the first start. A certificate that is half over is replaced, with a
// fresh node key, when the root is here. Errors: [errs.Invalid], [errs.NotAllowed] (the certificate expired and no root is here), and those of
// files.
func OpenKeys(files Files, now time.Time) (Keys, error) {
	var k Keys
	rootPEM, err := files.Read(rootFile)
	cert, certErr := readCert(files)
	switch {
	case errs.Is(err, errs.NotFound) && errs.Is(certErr, errs.NotFound):
		return createKeys(files, now)
	case errs.Is(err, errs.NotFound):
	case err != nil:
		return Keys{}, err
	default:
		if k.Root, err = ParseSigningKey(rootPEM); err != nil {
			return Keys{}, err
		}
	}
	hasRoot := k.Root.key != nil
	if certErr != nil && !(hasRoot && errs.Is(certErr, errs.NotFound)) {
		return Keys{}, certErr
	}
	nodePEM, err := files.Read(nodeFile)
	if err == nil {
		k.Node, err = ParseSigningKey(nodePEM)
	}
	if err != nil && !(hasRoot && errs.Is(err, errs.NotFound)) {
		return Keys{}, err
	}
	k.Cert = cert
	paired := k.Node.key != nil && k.Node.id == cert.ID && (!hasRoot || VerifyNodeKey(k.Root.Public(), cert, now) == nil)
	switch {
	case paired && now.Before(cert.NotAfter.Add(-NodeKeyLife/2)):
		return k, nil
	case hasRoot:
		return renewNode(files, k.Root, now)
	case paired && now.Before(cert.NotAfter):
		return k, nil
	}
	return Keys{}, errs.New(errs.NotAllowed, "this control node's intent key has expired or does not belong to its certificate; certify a new one on the node that holds intent/root.key")
}

func createKeys(files Files, now time.Time) (Keys, error) {
	root, err := GenerateKey()
	if err != nil {
		return Keys{}, err
	}
	b, err := root.MarshalPEM()
	if err != nil {
		return Keys{}, err
	}
	if err := files.Write(rootFile, b); err != nil {
		return Keys{}, err
	}
	return renewNode(files, root, now)
}

func renewNode(files Files, root SigningKey, now time.Time) (Keys, error) {
	node, err := GenerateKey()
	if err != nil {
		return Keys{}, err
	}
	k := Keys{Root: root, Node: node, Cert: root.Certify(node.Public(), now.Add(NodeKeyLife))}
	b, err := node.MarshalPEM()
	if err != nil {
		return Keys{}, err
	}
	if err := files.Write(nodeFile, b); err != nil {
		return Keys{}, err
	}
	c, err := json.Marshal(certJSON{k.Cert.ID, k.Cert.Public, k.Cert.NotAfter.Unix(), k.Cert.Signature})
	if err != nil {
		return Keys{}, errs.Wrap(errs.Internal, "the node key's certificate cannot be written", err)
	}
	return k, files.Write(nodeCert, pem.EncodeToMemory(&pem.Block{Type: pemNodeCert, Bytes: c}))
}

type certJSON struct {
	ID        string `json:"key_id"`
	Public    []byte `json:"public_key"`
	NotAfter  int64  `json:"not_after"`
	Signature []byte `json:"signature"`
}

func readCert(files Files) (NodeKey, error) {
	b, err := files.Read(nodeCert)
	if err != nil {
		return NodeKey{}, err
	}
	block, rest := pem.Decode(b)
	if block == nil || block.Type != pemNodeCert || len(rest) != 0 {
		return NodeKey{}, errs.New(errs.Invalid, "intent/node.crt is not one PEM block of type "+pemNodeCert)
	}
	var c certJSON
	if err := json.Unmarshal(block.Bytes, &c, json.RejectUnknownMembers(true)); err != nil {
		return NodeKey{}, errs.Wrap(errs.Invalid, "intent/node.crt cannot be read", err)
	}
	return NodeKey{ID: c.ID, Public: ed25519.PublicKey(c.Public), NotAfter: time.Unix(c.NotAfter, 0).UTC(), Signature: c.Signature}, nil
}
