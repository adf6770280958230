package worker

import (
	"os"
	"path/filepath"
	"testing"

	"sallyport.dev/errs"
	"sallyport.dev/identity/statefile"
	"sallyport.dev/intent/seal"
	"sallyport.dev/worker/keyring"
)

// TestPoolKeyIsGiven: the key that was given is used and nothing is written; one that cannot be read is an error, and no other key is made.
func TestPoolKeyIsGiven(t *testing.T) {
	dir, err := statefile.Open(filepath.Join(t.TempDir(), "worker"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	key, err := seal.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	pem, err := key.MarshalPEM()
	if err != nil {
		t.Fatal(err)
	}
	given := filepath.Join(t.TempDir(), "pool.key")
	if err := os.WriteFile(given, pem, 0o400); err != nil {
		t.Fatal(err)
	}
	files, err := poolKey(Config{PoolKey: given}, dir)
	if err != nil {
		t.Fatal(err)
	}
	k, created, err := keyring.Open(files)
	if err != nil || created || k.Public().Fingerprint() != key.Public().Fingerprint() {
		t.Fatalf("%v, created %v", err, created)
	}
	k.Close()
	if _, err := dir.Read("pool.key"); !errs.Is(err, errs.NotFound) {
		t.Errorf("a key in the directory: %v", err)
	}
	for name, content := range map[string][]byte{"empty": {}, "too long": make([]byte, maxPoolKey+1)} {
		path := filepath.Join(t.TempDir(), "pool.key")
		if err := os.WriteFile(path, content, 0o400); err != nil {
			t.Fatal(err)
		}
		if _, err := poolKey(Config{PoolKey: path}, dir); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := poolKey(Config{PoolKey: filepath.Join(t.TempDir(), "none")}, dir); !errs.Is(err, errs.Invalid) {
		t.Errorf("missing: %v", err)
	}
	if own, err := poolKey(Config{}, dir); err != nil || own != keyring.Files(dir) {
		t.Errorf("nothing given: %v", err)
	}
}
