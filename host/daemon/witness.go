package daemon

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/sha256"

	"sallyport.dev/api/sallyport/v1"
)

// witnessDomain separates countersignatures from everything else that an identity's key signs (docs/audit.md).
const witnessDomain = "sallyport witness v1\n"

// witness countersigns a checkpoint of control's record that this host has not seen before: a record that is rewritten later does not contain it.
func (d *Daemon) witness(checkpoint []byte) {
	if len(checkpoint) == 0 || d.opts.Key == nil {
		return
	}
	d.mu.Lock()
	seen := d.mark != nil && bytes.Equal(d.witnessed, checkpoint)
	d.witnessed = checkpoint
	d.mu.Unlock()
	if seen {
		return
	}
	key, err := d.opts.Key()
	if err != nil {
		d.log.Warn("a checkpoint was not countersigned", "err", err)
		return
	}
	sum := sha256.Sum256(append([]byte(witnessDomain), checkpoint...))
	signature, err := key.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err == nil {
		err = d.runner.Send(&sallyportv1.HostFrame{Frame: &sallyportv1.HostFrame_Witness{Witness: &sallyportv1.Witness{Checkpoint: checkpoint, Signature: signature}}})
	}
	if err != nil {
		d.log.Warn("a checkpoint was not countersigned", "err", err)
	}
}
