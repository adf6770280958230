package upstream

import (
	"context"
	"io"
	"time"
)

// What may follow the answer on an event stream before the connection is given up.
const (
	drainTime  = time.Second
	drainBytes = 64 << 10
)

// drain reads the rest of an event stream and lets the connection rest when it ends in time.
func (c *Client) drain(k *conn, rest io.Reader) {
	k.src.arm(time.Now().Add(drainTime), 0)
	k.src.allow(drainBytes)
	stop := context.AfterFunc(c.stopped, k.src.cancel)
	_, err := io.Copy(io.Discard, rest)
	if !stop() || err != nil || k.in.Buffered() > 0 {
		k.close()
		return
	}
	c.rest(k)
}
