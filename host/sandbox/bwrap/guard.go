package bwrap

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
)

// A workspace is shared with the outside, and some names in it are orders to programs there: git runs hooks, editors run tasks, shells run
// .envrc. The sandbox must not write them. Each guarded name gets a mount of its own, which can be neither renamed, replaced nor removed
// from inside; so does every folder on the way to it, or the agent would rename that one and make another.
//
// A name that does not exist cannot be mounted on. An empty folder is made for it, which git does not see and which programs that expect a
// file take for nothing; it is removed when the last sandbox of the workspace ends, and known by its date, so that one left behind by a
// crash goes with the next. What no mount can hold is compared afterwards, and a person is told.

// guardKind says how a guarded name is shown.
type guardKind int

const (
	keep     guardKind = iota // as it is, but in its place for good
	readOnly                  // can be read
	mask                      // is there, and cannot be opened
)

type guard struct {
	name string // below the workspace
	kind guardKind
}

// placeholderTime marks the folders that were made to be mounted on.
var placeholderTime = time.Unix(981173106, 0) // no meaning: a moment that no folder has by itself

// watched are names that git obeys and that no mount can hold back without breaking git outside.
var watched = []string{".git/commondir", ".git/config.worktree"}

// guarding is what was found and made in one workspace.
type guarding struct {
	guards []guard
	before map[string]string // state of files that are compared afterwards
	notes  []string
}

// guardNames decides on the guards for the protected names and makes placeholders where make is true (a workspace that is read-only
// inside needs none). owner is who owns the workspace: the placeholders become theirs.
func guardNames(root *os.Root, protected []string, owner unix.Stat_t) (guarding, error) {
	g := guarding{before: make(map[string]string)}
	for _, name := range protected {
		if err := g.protect(root, name, owner); err != nil {
			return g, err
		}
	}
	for _, name := range watched {
		if info, err := root.Lstat(name); err == nil && info.Mode().IsRegular() {
			g.set(path.Dir(name), keep)
			g.set(name, readOnly)
		}
		g.before[name] = fingerprint(root, name)
	}
	g.sort()
	return g, nil
}

func (g *guarding) protect(root *os.Root, name string, owner unix.Stat_t) error {
	parts := strings.Split(name, "/")
	for i := range parts {
		at := path.Join(parts[:i+1]...)
		last := i == len(parts)-1
		info, err := root.Lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			made, err := placeholder(root, at, owner)
			if err != nil {
				return errs.Wrap(errs.Unavailable, fmt.Sprintf("the workspace's %s could not be protected", at), err)
			}
			if made {
				g.set(at, readOnly)
			}
			return nil // what lies below cannot come to be
		case err != nil:
			return errs.Wrap(errs.Unavailable, fmt.Sprintf("the workspace's %s cannot be read, so it cannot be protected", at), err)
		case info.Mode()&fs.ModeSymlink != 0:
			return errs.Newf(errs.NotAllowed, "the workspace's %s is a symbolic link, which cannot be protected; replace it by what it points to, or list the protected names without it in the profile", at)
		case info.IsDir() && info.ModTime().Equal(placeholderTime):
			g.set(at, readOnly) // made for another name, or by another sandbox of this workspace
			return nil
		case last, !info.IsDir():
			g.set(at, readOnly)
			if info.Mode().IsRegular() {
				g.before[at] = fingerprint(root, at)
			}
			return nil
		default:
			g.set(at, keep)
		}
	}
	return nil
}

// set adds a guard; the stricter of two for one name stays.
func (g *guarding) set(name string, kind guardKind) {
	for i, have := range g.guards {
		if have.name == name {
			g.guards[i].kind = max(have.kind, kind)
			return
		}
	}
	g.guards = append(g.guards, guard{name, kind})
}

// sort puts folders before what lies in them: a later mount covers an earlier one. What lies in a read-only folder needs no guard, but a
// mask stays.
func (g *guarding) sort() {
	slices.SortFunc(g.guards, func(a, b guard) int { return strings.Compare(a.name, b.name) })
	all := slices.Clone(g.guards)
	g.guards = slices.DeleteFunc(g.guards, func(x guard) bool {
		return x.kind != mask && slices.ContainsFunc(all, func(y guard) bool { return y.kind == readOnly && strings.HasPrefix(x.name, y.name+"/") })
	})
}

// placeholder makes an empty folder to mount on. It reports false where this user may not make one: then the agent, who is the same user or
// less, may not either.
func placeholder(root *os.Root, name string, owner unix.Stat_t) (bool, error) {
	err := root.Mkdir(name, 0o755)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		return false, nil
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	if os.Geteuid() == 0 {
		if err := root.Lchown(name, int(owner.Uid), int(owner.Gid)); err != nil {
			return false, err
		}
	}
	return true, root.Chtimes(name, placeholderTime, placeholderTime)
}

// removePlaceholders removes the folders that were made for the protected names and are still empty and untouched. Only rmdir is used:
// whatever is inside one of them, nothing is lost.
func removePlaceholders(root *os.Root, protected []string) error {
	var failed error
	for _, name := range protected {
		parts := strings.Split(name, "/")
		for i := len(parts); i > 0; i-- {
			at := path.Join(parts[:i]...)
			info, err := root.Lstat(at)
			if err != nil || !info.IsDir() || !info.ModTime().Equal(placeholderTime) {
				continue
			}
			if err := removeFolder(root, at); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, fs.ErrNotExist) {
				failed = err
			}
		}
	}
	return failed
}

func removeFolder(root *os.Root, name string) error {
	parent, err := root.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer parent.Close()
	return unix.Unlinkat(int(parent.Fd()), path.Base(name), unix.AT_REMOVEDIR)
}

// compare says which guarded files are not what they were: one that was replaced from outside while the sandbox ran lost its mount, and the
// agent may have written the new one.
func compare(root *os.Root, before map[string]string) []string {
	var remarks []string
	for name, was := range before {
		switch now := fingerprint(root, name); {
		case now == was:
		case was == absent:
			remarks = append(remarks, fmt.Sprintf("%s appeared while the sandbox ran: git obeys it, so look at it before you use git in this workspace", name))
		default:
			remarks = append(remarks, fmt.Sprintf("%s changed while the sandbox ran: look at it before you go on", name))
		}
	}
	slices.Sort(remarks)
	return remarks
}

// absent is the fingerprint of what is not there.
const absent = "absent"

// fingerprint tells two states of a small file apart.
func fingerprint(root *os.Root, name string) string {
	info, err := root.Lstat(name)
	if err != nil {
		return absent
	}
	if !info.Mode().IsRegular() {
		return info.Mode().Type().String()
	}
	f, err := root.Open(name)
	if err != nil {
		return "unreadable"
	}
	defer f.Close()
	h := sha256.New()
	_, _ = io.Copy(h, io.LimitReader(f, 1<<20))
	return fmt.Sprintf("%d %x", info.Size(), h.Sum(nil))
}

// Bounds of the search: a workspace may be a very large tree.
const (
	maxSearched = 200_000
	maxMasked   = 256
)

// templates are .env files that hold no secrets by convention; they are part of the project.
var templates = []string{".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults"}

// search adds a mask for every .env file below the workspace but templates, unless they are to be shown, and for every socket: whoever
// listens there is outside. Folders that hold other people's code, and git's own, are not searched.
func (g *guarding) search(root *os.Root, showEnv bool) error {
	searched, masked := 0, 0
	err := fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			if d != nil && d.IsDir() {
				return fs.SkipDir // not readable for us: not for the agent either
			}
			return nil
		}
		if searched++; searched > maxSearched {
			g.notes = append(g.notes, fmt.Sprintf("only the first %d entries of the workspace were searched for .env files and sockets", maxSearched))
			return fs.SkipAll
		}
		name := d.Name()
		if d.IsDir() {
			if p != "." && (name == "node_modules" || name == ".git" || name == ".venv") {
				return fs.SkipDir
			}
			return nil
		}
		secret := !showEnv && strings.HasPrefix(name, ".env") && !slices.Contains(templates, name)
		switch {
		case d.Type()&fs.ModeSocket != 0:
		case secret && d.Type()&fs.ModeSymlink != 0:
			if p = linked(root, p); p == "" {
				return nil
			}
		case !secret || !d.Type().IsRegular():
			return nil
		}
		if masked++; masked > maxMasked {
			return errs.Newf(errs.Oversize, "the workspace holds more than %d .env files and sockets, too many to mask; allow .env files in the profile, or choose a smaller folder", maxMasked)
		}
		g.set(p, mask)
		return nil
	})
	if err != nil {
		return err
	}
	g.sort()
	return nil
}

// linked returns the regular file below the workspace that a link leads to, or "": what lies outside is not shown anyway.
func linked(root *os.Root, name string) string {
	base, err := filepath.EvalSymlinks(root.Name())
	if err != nil {
		return ""
	}
	target, err := filepath.EvalSymlinks(filepath.Join(base, name))
	if err != nil {
		return ""
	}
	rel, err := filepath.Rel(base, target)
	if err != nil || !filepath.IsLocal(rel) {
		return ""
	}
	if info, err := root.Lstat(rel); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return rel
}
