package server

import (
	"crypto/sha256"

	"sallyport.dev/errs"
)

// Bounds of bodies that a peer is sending in chunks.
const (
	maxChunked      = 64 << 20
	maxChunkedOpen  = 64
	maxChunkedBytes = 256 << 20
)

// chunks joins bodies that come in order, interleaved with other frames. One Link's reader uses it alone.
type chunks struct {
	open map[[sha256.Size]byte][]byte
	held int
}

// add takes one chunk of a body of size bytes (0: not said). Errors: [errs.Invalid], [errs.Oversize]: the peer breaks the contract, and its Link ends.
func (c *chunks) add(digest []byte, offset, size int64, data []byte) error {
	if len(digest) != sha256.Size || len(data) == 0 || len(data) > chunkBytes {
		return errs.New(errs.Invalid, "a chunk of the link is malformed")
	}
	key := [sha256.Size]byte(digest)
	if c.open == nil {
		c.open = map[[sha256.Size]byte][]byte{}
	}
	body, known := c.open[key]
	if !known && len(c.open) >= maxChunkedOpen || len(body)+len(data) > maxChunked || c.held+len(data) > maxChunkedBytes {
		return errs.New(errs.Oversize, "too much is being sent in chunks")
	}
	if int64(len(body)) != offset {
		return errs.New(errs.Invalid, "a chunk of the link is out of order")
	}
	c.held += len(data)
	if !known && size > 0 && size <= maxChunked {
		body = make([]byte, 0, size)
	}
	c.open[key] = append(body, data...)
	return nil
}

// take returns a whole body and forgets it. Errors: [errs.Invalid] when it is not whole, or not what its digest says.
func (c *chunks) take(digest []byte, size int64) ([]byte, error) {
	if len(digest) != sha256.Size {
		return nil, errs.New(errs.Invalid, "a chunked body has no digest")
	}
	key := [sha256.Size]byte(digest)
	body := c.open[key]
	delete(c.open, key)
	c.held -= len(body)
	if int64(len(body)) != size || sha256.Sum256(body) != key {
		return nil, errs.New(errs.Invalid, "a chunked body is not what its digest says")
	}
	return body, nil
}
