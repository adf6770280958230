package upstream

import (
	"errors"
	"syscall"
)

// isReset reports whether the peer, or the kernel, tore the connection down.
func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.ETIMEDOUT)
}
