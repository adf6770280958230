package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sallyport.dev/relay"
)

// links publishes what is no file: links to its arguments and to the host's own files, pipes, sockets, folders, files of many names, odd names.
func links(ctx context.Context, a *attacker) {
	targets := append([]string{"/etc/shadow", "/proc/self/mem", "/dev/zero", "../../claimed", inDir + "/session.json", "/"}, a.args...)
	good, err := relay.AppendCall(nil, a.call("links"))
	if err != nil {
		a.count(err)
		return
	}
	many := filepath.Join(outDir, relay.TmpDir, "many")
	a.count(os.WriteFile(many, good, 0o600))
	for n := 0; ctx.Err() == nil; n++ {
		at := name(relay.CallName(relay.NewID()))
		switch n % 8 {
		case 0:
			a.count(os.Symlink(targets[n/8%len(targets)], at))
		case 1:
			a.count(unix.Mkfifo(at, 0o600))
		case 2:
			a.count(os.Mkdir(at, 0o700))
		case 3:
			a.count(os.Link(many, at))
		case 4:
			a.count(unix.Mknod(at, unix.S_IFSOCK|0o600, 0))
		case 5:
			a.count(os.WriteFile(name(fmt.Sprintf("a name\n\x1b[31m%d", n)), good, 0o600))
		case 6:
			a.count(os.Symlink(targets[n/8%len(targets)], name(relay.AckName(relay.NewID()))))
		case 7: // a good name, for a file that nobody may read
			a.count(os.WriteFile(at, good, 0o000))
		}
		if n%512 == 511 { // or the session ends for its number of entries, which publish does
			empty(filepath.Join(outDir, relay.NewDir))
		}
	}
}

func empty(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		_ = os.RemoveAll(filepath.Join(dir, e.Name()))
	}
}

// swaps changes a record while it is looked at: into another one, a link, a pipe, a longer and a shorter one.
func swaps(ctx context.Context, a *attacker) {
	tmp := func() string { return filepath.Join(outDir, relay.TmpDir, relay.NewID()) }
	for n := 0; ctx.Err() == nil; n++ {
		c := a.call("swaps")
		good, err := relay.AppendCall(nil, c)
		if err != nil {
			a.count(err)
			continue
		}
		at := name(relay.CallName(c.ID))
		a.count(put(relay.CallName(c.ID), good))
		other := tmp()
		switch n % 4 {
		case 0:
			a.count(os.Symlink("/etc/shadow", other))
		case 1:
			a.count(unix.Mkfifo(other, 0o600))
		case 2:
			a.count(os.WriteFile(other, make([]byte, 4<<20), 0o600))
		case 3:
			a.count(os.Truncate(at, int64(n%len(good))))
			continue
		}
		if os.Rename(other, at) != nil {
			_ = os.Remove(other)
		}
	}
}

// directories replaces the directories that the host looks into.
func directories(ctx context.Context, a *attacker) {
	dir := filepath.Join(outDir, relay.NewDir)
	for n := 0; ctx.Err() == nil; n++ {
		old := filepath.Join(outDir, relay.TmpDir, relay.NewID())
		a.count(os.Rename(dir, old))
		switch n % 4 {
		case 0:
			a.count(os.Symlink("/", dir))
		case 1:
			a.count(os.Symlink("../../claimed", dir))
		case 2:
			a.count(os.WriteFile(dir, nil, 0o600))
		case 3:
			a.count(os.Mkdir(dir, 0o000))
		}
		_ = os.RemoveAll(dir)
		if n%2 == 0 {
			a.count(os.Rename(old, dir))
		} else {
			a.count(os.Mkdir(dir, 0o700))
			_ = os.RemoveAll(old)
		}
	}
}

// disk fills what it may write to, with bytes, with names, and with files that have none any more.
func disk(ctx context.Context, a *attacker) {
	block := make([]byte, 1<<20)
	var hidden []*os.File
	for n := 0; ctx.Err() == nil; n++ {
		f, err := os.Create(filepath.Join(outDir, relay.TmpDir, fmt.Sprint(n)))
		if err == nil {
			_, err = f.Write(block)
			if n%2 == 0 {
				_ = os.Remove(f.Name())
				hidden = append(hidden, f)
			} else {
				_ = f.Close()
			}
		}
		a.count(err)
		if err != nil {
			a.count(os.Symlink("x", filepath.Join(outDir, relay.TmpDir, fmt.Sprintf("i%d", n))))
		}
		if len(hidden) > 500 {
			_ = hidden[0].Close()
			hidden = hidden[1:]
		}
	}
}
