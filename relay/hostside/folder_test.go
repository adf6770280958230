package hostside

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

func TestCreateClearsWhatAGuestLeft(t *testing.T) {
	b := newBox(t)
	folder := b.folder
	home := filepath.Join(folder.Root, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := folder.Out()
	for _, dir := range []string{out + "/tmp/locked", out + "/new/full/er", out + "/new/" + relay.NewID() + ".call"} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Dir(outside), out+"/tmp/link"); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(outside, out+"/tmp/hard"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(out+"/new/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{out + "/tmp/locked", out + "/new/full", out + "/new"} {
		if err := os.Chmod(dir, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.PublishResult(relay.NewID(), nil); err != nil {
		t.Fatal(err)
	}
	b.Close()
	if err := folder.Create(os.Getuid(), os.Getgid(), false); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{out + "/new", out + "/tmp", folder.claimed(), filepath.Join(folder.Root, resultsDir)} {
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("%s: %v, %v", dir, left, err)
		}
	}
	if data, err := os.ReadFile(outside); err != nil || string(data) != "keep" {
		t.Errorf("outside: %q, %v", data, err)
	}
	if _, err := os.Stat(home); err != nil {
		t.Errorf("home: %v", err)
	}
	if err := folder.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := folder.Remove(); err != nil {
		t.Errorf("removed again: %v", err)
	}
	if left, _ := os.ReadDir(folder.Root); len(left) != 1 || left[0].Name() != "home" {
		t.Errorf("left: %v", left)
	}
	if err := (Folder{Root: filepath.Join(folder.Root, "never")}).Remove(); err != nil {
		t.Errorf("a folder that was never made: %v", err)
	}
}

// A tree deeper than any path, stack or set of descriptors.
func TestRemoveADeepTree(t *testing.T) {
	b := newBox(t)
	b.Close()
	fd, err := unix.Open(filepath.Join(b.folder.Out(), relay.TmpDir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 2500 {
		if err := unix.Mkdirat(fd, "d", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(fd)
		if err != nil {
			t.Fatal(err)
		}
		fd = next
	}
	unix.Close(fd)
	if err := b.folder.Remove(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(b.folder.Root); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestPermissions(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	folder := Folder{Root: filepath.Join(t.TempDir(), "session")}
	if err := folder.Create(os.Getuid(), os.Getgid(), false); err != nil {
		t.Fatal(err)
	}
	if err := folder.Publish(relay.SessionName, []byte(`{}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := folder.Publish(relay.BinDir+"/x", []byte(`x`), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := folder.Publish(relay.SessionName, []byte(`{"v":1}`), 0o644); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := folder.Publish("none/x", nil, 0o644); !errs.Is(err, errs.Unavailable) {
		t.Errorf("where there is no directory: %v", err)
	}
	for path, want := range map[string]os.FileMode{
		"":                0o700,
		"in":              0o755,
		"in/results":      0o755,
		"in/session.json": 0o644,
		"in/bin/x":        0o755,
		"relay/claimed":   0o700,
		"relay/out":       0o755,
		"relay/out/new":   0o700,
		"relay/out/tmp":   0o700,
	} {
		info, err := os.Lstat(filepath.Join(folder.Root, path))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v, want %o (%v)", path, info.Mode(), want, err)
		}
	}
}

// Where the host is root, another user's guest can write in its two directories and in nothing else.
func TestAnotherUsersGuest(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	const uid = 12345
	root, err := os.MkdirTemp("/tmp", "hostside")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(root)
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	folder := Folder{Root: root}
	if err := folder.Create(uid, uid, false); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(root, 0o755); err != nil { // as a mount would show it
		t.Fatal(err)
	}
	b, err := Open(folder, uid)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	id := relay.NewID()
	if err := b.PublishResult(id, []byte(`result`)); err != nil {
		t.Fatal(err)
	}
	script := `cd "$0" || exit 9
echo '{}' > relay/out/tmp/x && ln relay/out/tmp/x relay/out/new/` + relay.CallName(id) + ` && rm relay/out/tmp/x || exit 1
cat in/results/` + relay.ResultName(id) + ` || exit 2
mv relay/out/new relay/out/other 2>/dev/null && exit 3
(echo x > in/results/y) 2>/dev/null && exit 4
ls relay/claimed 2>/dev/null && exit 5
rm in/results/* 2>/dev/null && exit 6
exit 0`
	cmd := exec.Command("sh", "-c", script, root)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, NoSetGroups: true}}
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "result" {
		t.Fatalf("%v: %s", err, out)
	}
	all, _, _ := testList(t, b)
	if len(all) != 1 {
		t.Fatalf("listed %v", all)
	}
	if c, why, err := b.Claim(relay.KindCall, all[0].name, id); err != nil || why != Taken || string(c.Record) != "{}\n" {
		t.Errorf("%q, %v, %v", c.Record, why, err)
	}
}

func TestTmpfs(t *testing.T) {
	if !MayMount() {
		t.Skip("only root can mount")
	}
	folder := Folder{Root: filepath.Join(t.TempDir(), "session")}
	if err := folder.Create(os.Getuid(), os.Getgid(), true); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := folder.Remove(); err != nil {
			t.Error(err)
		}
		if folder.Tmpfs() || isMount(folder.In()) {
			t.Error("still mounted")
		}
	}()
	if !folder.Tmpfs() || !isMount(folder.In()) {
		t.Fatal("not mounted")
	}
	b, err := Open(folder, uint32(os.Getuid()))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	// The guest fills its half; the host still takes what lies there.
	id := relay.NewID()
	b.testPublish(t, relay.CallName(id), testRecord(t, id))
	full, err := os.Create(filepath.Join(folder.Out(), relay.TmpDir, "full"))
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 1<<20)
	written := 0
	for err == nil {
		var n int
		n, err = full.Write(block)
		written += n
	}
	full.Close()
	if !errors.Is(err, unix.ENOSPC) || written > relay.OutBytes {
		t.Errorf("wrote %d bytes: %v", written, err)
	}
	g := relay.NewGuest(folder.In(), folder.Out())
	defer g.Close()
	if _, err := g.Call(&relay.Call{Session: relay.NewID(), Epoch: 1, Tool: "x", Arguments: []byte(`{}`), TimeoutMS: 1000}); !errs.Is(err, errs.Oversize) {
		t.Errorf("a call into a full directory: %v", err)
	}
	if _, why, err := b.Claim(relay.KindCall, relay.CallName(id), id); err != nil || why != Taken {
		t.Errorf("%v, %v", why, err)
	}
	os.Remove(full.Name())
	for i := 0; err == nil || errors.Is(err, unix.ENOSPC) && i < 10; i++ {
		err = os.WriteFile(filepath.Join(folder.Out(), relay.TmpDir, strconv.Itoa(i)), nil, 0o600)
		if i > relay.OutInodes {
			t.Fatal("more inodes than a guest may have")
		}
	}
	if err := b.PublishResult(id, []byte(`{}`)); err != nil {
		t.Errorf("the host's half suffers from the guest's: %v", err)
	}
	// Opened again, as for a resumed session: empty.
	b.Close()
	if err := folder.Create(os.Getuid(), os.Getgid(), true); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(folder.Out(), relay.TmpDir)); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestPublishIntoAFullDirectory(t *testing.T) {
	if !MayMount() {
		t.Skip("only root can mount")
	}
	b := newBox(t)
	dir := filepath.Join(b.folder.Root, inTmpDir)
	if err := mountTmpfs(dir, 64<<10, 16, 0); err != nil {
		t.Fatal(err)
	}
	defer unmountAll(dir)
	if err := b.PublishResult(relay.NewID(), make([]byte, 1<<20)); !errs.Is(err, errs.Oversize) {
		t.Errorf("got %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left in tmp: %v", left)
	}
}
