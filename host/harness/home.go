package harness

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"sallyport.dev/errs"
)

// File is one generated file below the agent's HOME.
type File struct {
	Path    string `json:"path"` // relative to HOME
	Content []byte `json:"content"`
	// Merge keeps what a JSON file of an earlier run holds beside the members generated here, member by member and object by object: the
	// harness writes its own state there.
	Merge bool `json:"merge,omitempty"`
}

// maxKept bounds what is read of a file that the agent may have written.
const maxKept = 4 << 20

// Write writes files into the agent's HOME, as its user. HOME may have been in the agent's hands before: nothing in it is trusted, no link
// is followed out of it, and what cannot be read is replaced.
func Write(home string, files []File, uid, gid int) error {
	root, err := os.OpenRoot(home)
	if err != nil {
		return errs.Wrap(errs.Unavailable, "the agent's home cannot be opened", err)
	}
	defer root.Close()
	for _, f := range files {
		if err := write(root, f, uid, gid); err != nil {
			return errs.Wrap(errs.Unavailable, "the harness's file "+f.Path+" cannot be written", err)
		}
	}
	return nil
}

func write(root *os.Root, f File, uid, gid int) error {
	if !filepath.IsLocal(f.Path) {
		return errors.New("not below home")
	}
	if err := folders(root, path.Dir(f.Path), uid, gid); err != nil {
		return err
	}
	content := f.Content
	if f.Merge {
		var err error
		if content, err = merged(root, f.Path, content); err != nil {
			return err
		}
	}
	// A new file takes the name: whatever stands there (a link, a pipe, another hard link) is not written to.
	tmp := f.Path + ".sallyport"
	if err := root.RemoveAll(tmp); err != nil {
		return err
	}
	w, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = w.Write(content)
	if err == nil && os.Geteuid() == 0 {
		err = w.Chown(uid, gid)
	}
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if info, err := root.Lstat(f.Path); err == nil && info.IsDir() {
		if err := root.RemoveAll(f.Path); err != nil {
			return err
		}
	}
	return root.Rename(tmp, f.Path)
}

// folders makes the folders on the way; one that is something else by now is replaced.
func folders(root *os.Root, dir string, uid, gid int) error {
	if dir == "." {
		return nil
	}
	if err := folders(root, path.Dir(dir), uid, gid); err != nil {
		return err
	}
	info, err := root.Lstat(dir)
	if err == nil && info.IsDir() {
		return nil
	}
	if err == nil {
		if err := root.Remove(dir); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := root.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		return root.Lchown(dir, uid, gid)
	}
	return nil
}

// merged lays generated members over those of the file that is there.
func merged(root *os.Root, name string, generated []byte) ([]byte, error) {
	var ours map[string]json.RawMessage
	if err := json.Unmarshal(generated, &ours); err != nil {
		return nil, err
	}
	theirs := readObject(root, name)
	if theirs == nil {
		return generated, nil
	}
	return json.MarshalIndent(overlay(theirs, ours), "", "  ")
}

func readObject(root *os.Root, name string) map[string]json.RawMessage {
	info, err := root.Lstat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxKept {
		return nil
	}
	f, err := root.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	if now, err := f.Stat(); err != nil || !now.Mode().IsRegular() || !os.SameFile(info, now) {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(f, maxKept))
	var object map[string]json.RawMessage
	if err != nil || json.Unmarshal(data, &object) != nil {
		return nil
	}
	return object
}

// overlay returns base with over's members in it; objects on both sides are joined.
func overlay(base, over map[string]json.RawMessage) map[string]json.RawMessage {
	for name, value := range over {
		var b, o map[string]json.RawMessage
		if json.Unmarshal(base[name], &b) == nil && json.Unmarshal(value, &o) == nil && b != nil && o != nil {
			joined, err := json.Marshal(overlay(b, o))
			if err == nil {
				value = joined
			}
		}
		base[name] = value
	}
	return base
}
