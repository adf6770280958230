package hostside

import (
	"bytes"
	"os"
	"strconv"
	"sync"
)

// narrowUmask reports whether this process's umask would hide published files from a guest of another user. It is read once: reading it by
// setting it would race with the rest of the process. Where it cannot be known, it is taken to be narrow.
var narrowUmask = sync.OnceValue(func() bool {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return true
	}
	for line := range bytes.Lines(status) {
		if value, ok := bytes.CutPrefix(line, []byte("Umask:")); ok {
			mask, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 8, 16)
			return err != nil || mask&0o044 != 0
		}
	}
	return true
})
