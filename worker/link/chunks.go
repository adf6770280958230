package link

import (
	"crypto/sha256"

	"sallyport.dev/errs"
)

// Bounds of bodies that control is sending in chunks: arguments of calls.
const (
	chunkSize  = 256 << 10
	maxChunked = 16 << 20
	maxBodies  = 64
	maxPending = 128 << 20
)

// chunks joins bodies that come in order, interleaved with other frames. One Link's reader uses it alone.
type chunks struct {
	open map[[sha256.Size]byte][]byte
	held int
}

// add takes one chunk. Errors: [errs.Invalid], [errs.Oversize]: control breaks the contract, and the Link ends.
func (c *chunks) add(digest []byte, offset int64, data []byte) error {
	if len(digest) != sha256.Size || len(data) == 0 || len(data) > chunkSize {
		return errs.New(errs.Invalid, "a chunk of the link is malformed")
	}
	key := [sha256.Size]byte(digest)
	body, known := c.open[key]
	switch {
	case int64(len(body)) != offset:
		return errs.New(errs.Invalid, "a chunk of the link is out of order")
	case !known && len(c.open) >= maxBodies, len(body)+len(data) > maxChunked, c.held+len(data) > maxPending:
		return errs.New(errs.Oversize, "too much is being sent in chunks")
	}
	if c.open == nil {
		c.open = map[[sha256.Size]byte][]byte{}
	}
	c.open[key] = append(body, data...)
	c.held += len(data)
	return nil
}

// take returns a whole body and forgets it; nil when nothing of this digest came. Errors: [errs.Invalid] when it is not what its digest says.
func (c *chunks) take(key [sha256.Size]byte) ([]byte, error) {
	body, ok := c.open[key]
	if !ok {
		return nil, nil
	}
	delete(c.open, key)
	c.held -= len(body)
	if sha256.Sum256(body) != key {
		return nil, errs.New(errs.Invalid, "a chunked body is not what its digest says")
	}
	return body, nil
}
