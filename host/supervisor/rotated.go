package supervisor

import (
	"os"
	"sync"

	"sallyport.dev/errs"
)

// rotated is a log of bounded size: once its file is full it becomes path.1, and a new one begins. A disk that takes no more never stops the
// agent: what cannot be kept is dropped, and said at the end. Its methods may be called concurrently.
type rotated struct {
	path string

	mu   sync.Mutex
	file *os.File
	size int64
	err  error // the first; nothing is kept after it
}

func newRotated(path string) (*rotated, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, "the agent's output cannot be kept", err)
	}
	r := &rotated{path: path, file: f}
	if info, err := f.Stat(); err == nil {
		r.size = info.Size()
	}
	return r, nil
}

// Write never fails: an agent's output goes on whatever becomes of its copy.
func (r *rotated) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for rest := p; len(rest) > 0 && r.err == nil; {
		now := rest[:min(int64(len(rest)), max(maxOutput-r.size, 1))]
		if _, r.err = r.file.Write(now); r.err != nil {
			break
		}
		rest = rest[len(now):]
		if r.size += int64(len(now)); r.size >= maxOutput {
			r.err = r.turn()
		}
	}
	return len(p), nil
}

// turn begins a new file.
func (r *rotated) turn() error {
	_ = r.file.Close()
	if err := os.Rename(r.path, r.path+".1"); err != nil {
		return err
	}
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err == nil {
		r.file, r.size = f, 0
	}
	return err
}

// Close ends the log and returns the first thing that went wrong.
func (r *rotated) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.file.Close() // after a failed turn it is closed already
	return r.err
}
