package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestGivenKey(t *testing.T) {
	dir := t.TempDir()
	if got := givenKey(""); got != "" {
		t.Errorf("without credentials: %q", got)
	}
	if got := givenKey(dir); got != "" {
		t.Errorf("among others: %q", got)
	}
	path := filepath.Join(dir, "pool.key")
	if err := os.Symlink("/nowhere", path); err != nil {
		t.Fatal(err)
	}
	if got := givenKey(dir); got != path {
		t.Errorf("one that cannot be read must not become another key: %q", got)
	}
}
