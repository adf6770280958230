package bwrap_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/sandboxtest"
)

// listing is every name below the workspace, to see that nothing is left.
func listing(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, p); rel != "." {
			names = append(names, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// attack tries to get at guarded names in every way that a shell has.
const attack = `
try() { if "$@" 2>/dev/null; then echo "done: $*"; fi; }
wr() { echo evil > "$1"; }
for p in .git/config .git/hooks/pre-commit .git/hooks/new .claude/settings.json .mcp.json .vscode/tasks.json .idea/x .envrc .codex/config.toml .pi/x; do
	try wr "$p"
	[ -e "$p" ] && try rm -rf "$p"
	try mv "$p" moved
	try ln "$p" linked
	try touch "$p"
	try chmod 777 "$p"
done
for d in .git .claude .git/hooks .vscode .mcp.json .envrc; do
	try mv "$d" moved
	try rm -rf "$d"
	try rmdir "$d"
	try ln -s /tmp "$d/x"
done
try mkdir -p new/.git
touch .git/index.lock && rm .git/index.lock && echo "git works"
cat .git/config
`

func TestSandboxGuards(t *testing.T) {
	s := sandboxtest.New(t, "/bin/sh", "-c", attack)
	s.Write(t, ".git/config", "[core]\n")
	s.Write(t, ".git/HEAD", "ref: refs/heads/main\n")
	s.Write(t, ".git/hooks/pre-commit", "#!/bin/sh\n")
	s.Write(t, ".claude/settings.json", "{}")
	r := s.Run(t, sandboxtest.Driver(t))
	// What git needs stays possible: in .git itself names can be made and removed, HEAD too.
	if r.Out != "done: ln -s /tmp .git/x\ndone: mkdir -p new/.git\ngit works\n[core]\n" {
		t.Errorf("%s\n%s", r.Out, r.Err)
	}
	if len(r.Remarks) != 0 {
		t.Errorf("remarks: %v", r.Remarks)
	}
	if after := listing(t, s.Work); !slices.Equal(slices.DeleteFunc(after, func(n string) bool { return strings.HasPrefix(n, "moved") }),
		[]string{".claude", ".claude/settings.json", ".git", ".git/config", ".git/hooks", ".git/hooks/pre-commit", ".git/x", "new", "new/.git"}) {
		t.Errorf("the workspace is %v", after)
	}
	if data, err := os.ReadFile(filepath.Join(s.Work, ".git/hooks/pre-commit")); err != nil || string(data) != "#!/bin/sh\n" {
		t.Errorf("a hook is %q (%v)", data, err)
	}
}

// A workspace that is no repository must not become one whose configuration the agent wrote.
func TestSandboxGuardsOfNothing(t *testing.T) {
	s := sandboxtest.New(t, "/bin/sh", "-c", `
for p in .git .claude .mcp.json .vscode .idea .envrc; do
	(echo x > $p/config) 2>/dev/null && echo "$p/config was written"
	(rm -rf $p; echo x > $p) 2>/dev/null && echo "$p was written"
	mkdir -p $p/sub 2>/dev/null && echo "$p/sub was made"
done
ls -A`)
	r := s.Run(t, sandboxtest.Driver(t))
	if r.Out != ".claude\n.codex\n.envrc\n.git\n.idea\n.mcp.json\n.pi\n.vscode\n" {
		t.Errorf("%s\n%s", r.Out, r.Err)
	}
	if left := listing(t, s.Work); len(left) != 0 {
		t.Errorf("left in the workspace: %v", left)
	}
}

// Placeholders stay as long as any sandbox of the workspace needs them, and what a person put into one is never lost.
func TestSandboxGuardsShared(t *testing.T) {
	d := sandboxtest.Driver(t)
	one, two := sandboxtest.New(t, "/bin/sleep", "100"), sandboxtest.New(t, "/bin/sh", "-c", "mkdir .vscode/x .git/x 2>&1; ls -A")
	two.Plan.Workspace.Path, two.Plan.Where = one.Work, one.Where
	move(t, two, one)
	first, err := d.Prepare(context.Background(), one.Plan)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Destroy(context.Background())
	r := two.Run(t, d)
	if strings.Count(r.Out, "Read-only file system") != 2 {
		t.Errorf("%s%s", r.Out, r.Err)
	}
	if left := listing(t, one.Work); !slices.Contains(left, ".vscode") {
		t.Errorf("a placeholder of a live sandbox is gone: %v", left)
	}
	if err := os.WriteFile(filepath.Join(one.Work, ".idea", "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := first.Destroy(context.Background()); err != nil {
		t.Fatal(err)
	}
	if left := listing(t, one.Work); !slices.Equal(left, []string{".idea", ".idea/mine"}) {
		t.Errorf("left in the workspace: %v", left)
	}
}

// move gives a session the state folder of another.
func move(t *testing.T, s, to *sandboxtest.Session) {
	t.Helper()
	dir := filepath.Join(filepath.Dir(to.Dir), s.Plan.Session)
	if err := os.Rename(s.Dir, dir); err != nil {
		t.Fatal(err)
	}
	s.Dir, s.Plan.Dir, s.Where, s.Work = dir, dir, to.Where, to.Work
	s.Folder.Root = dir
	s.Plan.In, s.Plan.Out = s.Folder.In(), s.Folder.Out()
}

func TestSandboxMasksEnvFiles(t *testing.T) {
	s := sandboxtest.New(t, "/bin/sh", "-c", "cat .env .env.local apps/web/.env .env.example link .envrc 2>&1; rm -f .env; mv apps/web/.env x; echo new > .env.new; cat .env.new")
	for _, name := range []string{".env", ".env.local", "apps/web/.env", ".envrc", "config/secrets"} {
		s.Write(t, name, "SECRET=1\n")
	}
	s.Write(t, ".env.example", "EXAMPLE=1\n")
	if err := os.Symlink("config/secrets", filepath.Join(s.Work, ".env.linked")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(".env.linked", filepath.Join(s.Work, "link")); err != nil {
		t.Fatal(err)
	}
	r := s.Run(t, sandboxtest.Driver(t))
	if strings.Contains(r.Out, "SECRET") || strings.Count(r.Out, "Permission denied") != 5 || !strings.Contains(r.Out, "EXAMPLE=1\nnew\n") && !strings.Contains(r.Out, "new\n") {
		t.Errorf("%s%s", r.Out, r.Err)
	}
	if data, err := os.ReadFile(filepath.Join(s.Work, ".env")); err != nil || string(data) != "SECRET=1\n" {
		t.Errorf("outside, .env is %q (%v)", data, err)
	}
	s.Plan.Workspace.EnvFiles = true
	s.Plan.Args = []string{"/bin/cat", ".env"}
	if r := s.Run(t, sandboxtest.Driver(t)); r.Out != "SECRET=1\n" {
		t.Errorf("allowed by the profile: %s%s", r.Out, r.Err)
	}
}

// git itself, where it is installed, must work in a guarded repository, on both sides.
func TestSandboxGit(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil || !strings.HasPrefix(git, "/usr/") {
		t.Skip("there is no git below /usr, the part of this machine that the sandbox sees")
	}
	s := sandboxtest.New(t, "/bin/sh", "-c", "git add -A && git -c user.name=a -c user.email=a@example.org commit -qm agent && git status --porcelain && git log --oneline | wc -l")
	run := func(args ...string) string {
		cmd := exec.Command(git, args...)
		cmd.Dir = s.Work
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "GIT_CONFIG_NOSYSTEM=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	run("init", "-q")
	s.Write(t, "file", "x")
	s.Write(t, ".gitignore", ".env\n")
	s.Write(t, ".env", "SECRET=1\n")
	r := s.Run(t, sandboxtest.Driver(t))
	if r.Out != "1\n" {
		t.Errorf("%s%s", r.Out, r.Err)
	}
	if out := run("show", "--stat", "--format="); !strings.Contains(out, "2 files changed") {
		t.Errorf("committed: %s", out)
	}
	if out := run("status", "--porcelain"); out != "" {
		t.Errorf("outside: %s", out)
	}
}

func TestSandboxRemarks(t *testing.T) {
	s := sandboxtest.New(t, "/bin/sh", "-c", "echo .. > .git/commondir")
	s.Write(t, ".git/HEAD", "ref: refs/heads/main\n")
	s.Write(t, ".git/config", "[core]\n")
	r := s.Run(t, sandboxtest.Driver(t))
	if len(r.Remarks) != 1 || !strings.HasPrefix(r.Remarks[0], ".git/commondir appeared") {
		t.Errorf("remarks: %v", r.Remarks)
	}
	// It exists now, so a second sandbox cannot write it.
	s.Plan.Args = []string{"/bin/sh", "-c", "echo x > .git/commondir; rm .git/commondir; echo y > .git/config"}
	if r := s.Run(t, sandboxtest.Driver(t)); len(r.Remarks) != 0 || strings.Count(r.Err, "Read-only")+strings.Count(r.Err, "busy") != 3 {
		t.Errorf("remarks: %v %s", r.Remarks, r.Err)
	}
}

func TestSandboxRefusals(t *testing.T) {
	d := sandboxtest.Driver(t)
	cases := []struct {
		name string
		plan func(t *testing.T, s *sandboxtest.Session)
		code errs.Code
		says string
	}{
		{"workspace in the state folder", func(t *testing.T, s *sandboxtest.Session) { s.Plan.Workspace.Path = s.Dir }, errs.NotAllowed, "lies in the state folder"},
		{"workspace around the state folder", func(t *testing.T, s *sandboxtest.Session) { s.Plan.Workspace.Path = filepath.Dir(s.Work) }, errs.NotAllowed, "contains the state folder"},
		{"workspace is the run folder by a link", func(t *testing.T, s *sandboxtest.Session) {
			link := filepath.Join(s.Work, "..", "link")
			symlink(t, s.Where.Run, link)
			s.Plan.Workspace.Path = filepath.Clean(link)
		}, errs.NotAllowed, "lies in the run folder"},
		{"state folder reached by a link", func(t *testing.T, s *sandboxtest.Session) {
			link := filepath.Clean(filepath.Join(s.Work, "..", "link"))
			symlink(t, s.Where.State, link)
			s.Plan.Where.State = link
			s.Plan.Workspace.Path = s.Where.State
		}, errs.NotAllowed, "lies in the state folder"},
		{"install folder in the state folder", func(t *testing.T, s *sandboxtest.Session) { s.Plan.Installs = []string{s.Where.State} }, errs.NotAllowed, "the install folder"},
		{"no workspace", func(t *testing.T, s *sandboxtest.Session) { s.Plan.Workspace.Path = "/nowhere/at/all" }, errs.NotFound, "does not exist"},
		{"workspace is a file", func(t *testing.T, s *sandboxtest.Session) {
			s.Write(t, "file", "")
			s.Plan.Workspace.Path = filepath.Join(s.Work, "file")
		}, errs.Invalid, "is not a folder"},
		{"workspace is home", func(t *testing.T, s *sandboxtest.Session) {
			t.Setenv("HOME", s.Work)
		}, errs.NotAllowed, "home folder"},
		{"workspace is the machine", func(t *testing.T, s *sandboxtest.Session) { s.Plan.Workspace.Path = "/" }, errs.NotAllowed, ""},
		{"guarded name is a link", func(t *testing.T, s *sandboxtest.Session) {
			symlink(t, "/tmp", filepath.Join(s.Work, ".claude"))
		}, errs.NotAllowed, "symbolic link"},
		{"relative workspace", func(t *testing.T, s *sandboxtest.Session) { s.Plan.Workspace.Path = "work" }, errs.Invalid, "absolute"},
		{"protected name outside", func(t *testing.T, s *sandboxtest.Session) { s.Plan.Workspace.Protected = []string{"../x"} }, errs.Invalid, "below the workspace"},
		{"no command", func(t *testing.T, s *sandboxtest.Session) { s.Plan.Args = nil }, errs.Invalid, "no command"},
		{"odd session", func(t *testing.T, s *sandboxtest.Session) { s.Plan.Session = "../../etc" }, errs.Invalid, "id"},
		{"variable without a name", func(t *testing.T, s *sandboxtest.Session) { s.Plan.Env = []string{"=x"} }, errs.Invalid, "environment"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := sandboxtest.New(t, "/bin/true")
			c.plan(t, s)
			before := listing(t, filepath.Dir(s.Work))
			in, err := d.Prepare(context.Background(), s.Plan)
			if err == nil {
				_ = in.Destroy(context.Background())
				t.Fatal("it was prepared")
			}
			if !errs.Is(err, c.code) || !strings.Contains(errs.Message(err), c.says) {
				t.Errorf("%v", err)
			}
			after := slices.DeleteFunc(listing(t, filepath.Dir(s.Work)), func(n string) bool { return strings.HasPrefix(n, "state/host/workspaces") })
			if !slices.Equal(before, after) {
				t.Errorf("a refused plan left something: %v, before %v", after, before)
			}
		})
	}
}

func symlink(t *testing.T, to, at string) {
	t.Helper()
	if err := os.Symlink(to, at); err != nil {
		t.Fatal(err)
	}
}

func TestWorkdir(t *testing.T) {
	for path, want := range map[string]string{
		"/srv/project": "/srv/project", "/home/alice/p": "/home/alice/p", "/root/p": "/root/p", "/tmp/x": "/tmp/x", "/data": "/workspace",
		"/usr/src/p": "/workspace", "/etc/x": "/workspace", "/home/agent/p": "/workspace", "/run/user/1/p": "/workspace", "/workspace": "/workspace",
		"/lib64/x": "/workspace", "/libfoo/x": "/libfoo/x",
	} {
		if got := sandbox.Workdir(sandbox.Workspace{Path: path, Mode: sandbox.ReadWrite}); got != want {
			t.Errorf("%s lies at %s, want %s", path, got, want)
		}
	}
}

// A socket in the workspace leads to whoever listens outside.
func TestSandboxMasksSockets(t *testing.T) {
	s := sandboxtest.New(t)
	s.Write(t, "run/file", "")
	path := filepath.Join(s.Work, "run", "db.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	s.Plan.Workspace.EnvFiles = true
	if r := probe(t, s, "unix", path); r.Out != "unix: connection refused\n" && r.Out != "unix: permission denied\n" {
		t.Errorf("%s%s", r.Out, r.Err)
	}
	// The socket is whole afterwards.
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}
