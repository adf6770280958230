package shim

import (
	"path/filepath"
	"sync"
	"syscall"

	"sallyport.dev/relay"
)

// directory is the relay directory with what the shim reads from it again and again. A file is read when it is first needed, and again once it
// is another one: a host that is upgraded or resumes a session writes new ones beneath a live shim.
type directory struct {
	guest *relay.Guest
	in    string

	mu           sync.Mutex
	session      relay.Session
	sessionStamp stamp
	names        map[string]bool
	namesStamp   stamp
}

// stamp tells one file from the next of the same name. The zero value is no file's.
type stamp struct {
	inode, device uint64
	size          int64
	changed       syscall.Timespec
}

func newDirectory(in, out string) *directory {
	return &directory{guest: relay.NewGuest(in, out), in: in}
}

// now returns session.json as it is. Errors: those of [relay.Guest.Session].
func (d *directory) now() (relay.Session, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, known := d.stampOf(relay.SessionName)
	if known && s == d.sessionStamp {
		return d.session, nil
	}
	session, err := d.guest.Session()
	if err != nil {
		return relay.Session{}, err
	}
	d.session, d.sessionStamp = session, s
	return session, nil
}

// offers reports whether the session has a tool of that name. Errors: those of [relay.Guest.Tools].
func (d *directory) offers(tool string) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, known := d.stampOf(relay.ToolsName)
	if known && s == d.namesStamp {
		return d.names[tool], nil
	}
	tools, err := d.guest.Tools()
	if err != nil {
		return false, err
	}
	d.names = make(map[string]bool, len(tools))
	for _, t := range tools {
		d.names[t.Name] = true
	}
	d.namesStamp = s
	return d.names[tool], nil
}

// stampOf is taken before the file is read: one that is replaced in between is read again next time.
func (d *directory) stampOf(name string) (stamp, bool) {
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(d.in, name), &st); err != nil {
		return stamp{}, false
	}
	return stamp{inode: st.Ino, device: st.Dev, size: st.Size, changed: st.Ctim}, true
}
