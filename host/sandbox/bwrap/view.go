package bwrap

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox"
)

// view builds bubblewrap's arguments: the allowlist of what a sandbox sees, in the order in which it is mounted.
type view struct {
	args  []string
	files []data // what --file reads, in order
	// source turns a path of the host into the path under which bubblewrap finds it (a root launch stages it elsewhere).
	source func(string) string
}

// data is one generated file.
type data struct {
	dest    string
	content string
}

// firstData is the descriptor of the first generated file in bubblewrap.
func (v *view) fileFD(i int) string { return strconv.Itoa(firstData + i) }

func (v *view) add(args ...string) { v.args = append(v.args, args...) }

func (v *view) readOnly(host, dest string)  { v.add("--ro-bind", v.source(host), dest) }
func (v *view) readWrite(host, dest string) { v.add("--bind", v.source(host), dest) }

// file shows generated content, readable by all.
func (v *view) file(dest, content string) {
	v.add("--perms", "0444", "--file", v.fileFD(len(v.files)), dest)
	v.files = append(v.files, data{dest, content})
}

// share shows a path of the host's system at its own place if it is there: as the link that it is, or read-only.
func (v *view) share(p string) {
	info, err := os.Lstat(p)
	if err != nil {
		return
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err := os.Readlink(p); err == nil {
			v.add("--symlink", target, p)
		}
		return
	}
	v.add("--ro-bind", p, p)
}

// system shows the programs of the machine: /usr and what was merged into it.
func (v *view) system() {
	v.add("--ro-bind", "/usr", "/usr")
	for _, p := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		v.share(p)
	}
}

// etcShared are the parts of /etc that hold nothing of this machine but what its programs need to run: certificates, the linker's cache,
// links to alternatives, terminals, fonts.
var etcShared = []string{
	"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives",
	"/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/pki/tls/cert.pem", "/etc/pki/ca-trust/extracted", "/etc/crypto-policies",
	"/etc/ca-certificates", "/etc/terminfo", "/etc/fonts", "/etc/protocols", "/etc/services", "/etc/os-release", "/etc/debian_version",
}

// etc shows a generated /etc. Nothing of the host's users, names, mounts or resolvers is in it.
func (v *view) etc() {
	v.add("--size", "1048576", "--perms", "0755", "--tmpfs", "/etc")
	shared := slices.Clone(etcShared)
	if java, err := filepath.Glob("/etc/java-*-openjdk"); err == nil {
		shared = append(shared, java...) // a JRE's own configuration is a link to here
	}
	for _, p := range shared {
		v.share(p)
	}
	uid, gid := strconv.Itoa(sandbox.InnerUID), strconv.Itoa(sandbox.InnerGID)
	v.file("/etc/passwd", "root:x:0:0::/root:/usr/sbin/nologin\n"+sandbox.InnerUser+":x:"+uid+":"+gid+"::"+sandbox.Home+":"+shell()+"\nnobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\n")
	v.file("/etc/group", "root:x:0:\n"+sandbox.InnerUser+":x:"+gid+":\nnogroup:x:65534:\n")
	v.file("/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n")
	v.file("/etc/resolv.conf", "")
	v.file("/etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files\nservices: files\nprotocols: files\n")
	if zone, err := os.Readlink("/etc/localtime"); err == nil && strings.HasPrefix(filepath.Join("/etc", zone), "/usr/share/zoneinfo/") {
		v.add("--symlink", filepath.Join("/etc", zone), "/etc/localtime")
	} else if zone, err := os.ReadFile("/etc/localtime"); err == nil && len(zone) < 64<<10 {
		v.file("/etc/localtime", string(zone))
	}
	v.add("--remount-ro", "/etc")
}

// shell is the agent's login shell: what a harness runs its commands with.
func shell() string {
	for _, p := range []string{"/usr/bin/bash", "/bin/bash"} {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	return "/bin/sh"
}

// scratch makes the folders that are empty and vanish with the sandbox. They lie in memory, so each is bounded.
func (v *view) scratch(memory int64) {
	size := strconv.FormatInt(max(memory/2, 16<<20), 10)
	for _, p := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
		v.add("--size", size, "--perms", "1777", "--tmpfs", p)
	}
	v.add("--remount-ro", "/dev")
	for _, p := range []string{"/run", "/home", "/root", "/var", "/opt"} {
		v.add("--perms", "0755", "--dir", p)
	}
}

// session shows the session's own folders.
func (v *view) session(in, out, home string) {
	v.readOnly(in, sandbox.In)
	v.readWrite(out, sandbox.Out)
	v.readWrite(home, sandbox.Home)
}

// workspace shows the workspace with what is guarded in it.
func (v *view) workspace(path string, mode sandbox.WorkspaceMode, target string, guards []guard) {
	if mode == sandbox.ReadOnly {
		v.readOnly(path, target)
	} else {
		v.readWrite(path, target)
	}
	for _, g := range guards {
		inside, outside := filepath.Join(target, g.name), filepath.Join(path, g.name)
		switch g.kind {
		case keep:
			v.add("--bind", v.below(path, outside), inside)
		case readOnly:
			v.add("--ro-bind", v.below(path, outside), inside)
		case mask:
			// A device on a mount without devices: it cannot be opened, and git neither adds it nor takes it for a deleted file.
			v.add("--ro-bind", "/dev/null", inside)
		}
	}
}

// below is the source of a path that lies in another source.
func (v *view) below(root, p string) string {
	rel, err := filepath.Rel(root, p)
	if err != nil {
		return v.source(p)
	}
	return filepath.Join(v.source(root), rel)
}

// installs shows the parts of a harness that pick chooses. What lies in /usr is there already.
func (v *view) installs(all []string, pick func(string) bool) error {
	for _, p := range all {
		if within(p, "/usr") || !pick(p) {
			continue
		}
		if _, err := os.Stat(p); errors.Is(err, fs.ErrNotExist) {
			return errs.Wrap(errs.NotFound, "an install folder of the harness is gone", err)
		}
		v.readOnly(p, p)
	}
	return nil
}

// within reports whether p is dir or lies in it; both are clean.
func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
