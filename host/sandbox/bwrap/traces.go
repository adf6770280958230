package bwrap

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/proc"
)

// tracesName is the file in a session's folder that says what exists of its sandbox outside that folder. It is written before each thing
// is made, so that somebody else can take it back.
const tracesName = "sandbox.json"

// traces is what a sandbox left on the machine so far.
type traces struct {
	Session   string        `json:"session"`
	Epoch     int64         `json:"epoch"`
	UID       int           `json:"uid"` // of the sandbox's processes
	GID       int           `json:"gid"`
	OwnUID    bool          `json:"own_uid"` // no other process has it
	Workspace string        `json:"workspace"`
	Protected []string      `json:"protected"`
	Cgroups   []string      `json:"cgroups"`
	Outer     proc.ID       `json:"outer"`
	First     proc.ID       `json:"first"`
	Where     sandbox.Where `json:"where"`
	// What a further command in the sandbox gets, from whichever process starts it.
	Env     []string       `json:"env,omitempty"`
	Workdir string         `json:"workdir"`
	Nested  bool           `json:"nested,omitempty"`
	Bounds  sandbox.Bounds `json:"bounds"`
	Levels  sandbox.Levels `json:"levels"`
}

func (t *traces) save(dir string) error {
	data, err := json.Marshal(t)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, tracesName+".new")
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return errs.Wrap(errs.Unavailable, "the session's folder cannot be written", err)
	}
	return os.Rename(tmp, filepath.Join(dir, tracesName))
}

// loadTraces returns false where there are none: nothing was made, or all was taken back.
func loadTraces(dir string) (traces, bool, error) {
	var t traces
	data, err := os.ReadFile(filepath.Join(dir, tracesName))
	if errors.Is(err, fs.ErrNotExist) {
		return t, false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &t)
	}
	if err != nil {
		return t, false, errs.Wrap(errs.Internal, "the traces of a sandbox cannot be read", err)
	}
	return t, true, nil
}

func (t *traces) erase(dir string) error {
	if err := os.Remove(filepath.Join(dir, tracesName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
