package sandbox

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"sallyport.dev/errs"
)

// CheckShown refuses a path of the host that must not be shown in a sandbox, and returns the path that it really is. what names it in the
// error ("workspace", "install folder").
//
// A folder that contains, or lies in, Sallyport's own folders is refused with symbolic links resolved: inside it the agent would find
// other sessions, sockets or keys. Paths are compared after resolution and again by identity, so that neither a link nor a second mount of
// the same folder passes.
func (w Where) CheckShown(what, p string) (string, error) {
	real, err := filepath.EvalSymlinks(p)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "", errs.Newf(errs.NotFound, "the %s %s does not exist", what, p)
		}
		return "", errs.Wrap(errs.Invalid, "the "+what+" "+p+" cannot be read", err)
	}
	for _, own := range []struct{ name, path string }{{"state folder", w.State}, {"run folder", w.Run}} {
		if own.path == "" {
			continue
		}
		ownReal, err := filepath.EvalSymlinks(own.path)
		if errors.Is(err, fs.ErrNotExist) {
			ownReal, err = filepath.Clean(own.path), nil
		}
		if err != nil {
			return "", errs.Wrap(errs.Internal, "the "+own.name+" cannot be read", err)
		}
		switch {
		case within(real, ownReal):
			return "", errs.Newf(errs.NotAllowed, "the %s %s lies in the %s of Sallyport; choose another folder", what, p, own.name)
		case within(ownReal, real):
			return "", errs.Newf(errs.NotAllowed, "the %s %s contains the %s of Sallyport; choose a folder below it", what, p, own.name)
		case aboveByIdentity(real, ownReal) || aboveByIdentity(ownReal, real):
			return "", errs.Newf(errs.NotAllowed, "the %s %s is the same folder as one around the %s of Sallyport, by another mount; choose another folder", what, p, own.name)
		}
	}
	return real, nil
}

// aboveByIdentity reports whether some folder on the way from / to p (without /) is the very folder dir: the same device and inode, as
// under a bind mount.
func aboveByIdentity(dir, p string) bool {
	d, err := os.Stat(dir)
	if err != nil {
		return false
	}
	for ; p != "/" && p != "."; p = filepath.Dir(p) {
		if s, err := os.Stat(p); err == nil && os.SameFile(d, s) {
			return true
		}
	}
	return false
}

// CheckWorkspace is [Where.CheckShown] for a workspace: the file system's root and a person's home are refused too, because they hold keys and
// logins of other programs.
func (w Where) CheckWorkspace(p string) (string, error) {
	real, err := w.CheckShown("workspace", p)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(real)
	if err != nil || !info.IsDir() {
		return "", errs.Newf(errs.Invalid, "the workspace %s is not a folder", p)
	}
	homes := []string{"/root", "/home"}
	if home, err := os.UserHomeDir(); err == nil {
		if h, err := filepath.EvalSymlinks(home); err == nil {
			homes = append(homes, h)
		}
	}
	for _, home := range homes {
		if within(home, real) {
			return "", errs.Newf(errs.NotAllowed, "the workspace %s is or contains a home folder, which holds keys and logins; choose the project's folder", p)
		}
	}
	if real == "/" {
		return "", errs.New(errs.NotAllowed, "the workspace is the whole machine; choose the project's folder")
	}
	return real, nil
}
