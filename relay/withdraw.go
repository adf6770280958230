package relay

import (
	"errors"
	"path/filepath"
	"syscall"
)

// Withdraw takes the call's record back and reports whether it was still there. A host moves a record out of new/ before it reads it, so a
// record that was taken back has never been read and never runs. Wait is not ended by it. Errors: those of [Publish].
func (p *Pending) Withdraw() (bool, error) {
	err := retry(func() error { return syscall.Unlink(filepath.Join(p.guest.out, NewDir, CallName(p.id))) })
	if errors.Is(err, syscall.ENOENT) {
		return false, nil
	}
	return err == nil, publishError(err)
}
