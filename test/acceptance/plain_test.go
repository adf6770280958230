package acceptance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/test/fixture/mcpserver"
	"sallyport.dev/test/rig"
)

// plainEnv names the folder of the programs for the plain user that this test started itself as.
const plainEnv = "SALLYPORT_TEST_PLAIN"

// plainUID is nobody's: a user without a name, a home or a group of its own, as in a container.
const plainUID = 54321

// TestPlainUser is the main job without root: a whole installation of a plain user, its state deep in folders, and an agent in a sandbox that reads,
// writes with a person's leave and is denied. Run by root, the test starts itself again as such a user.
func TestPlainUser(t *testing.T) {
	if os.Getuid() != 0 || os.Getenv(plainEnv) != "" {
		plainUser(t)
		return
	}
	t.Parallel()
	bin, _ := programs(t)
	dir, err := os.MkdirTemp("", "sallyport-plain-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	must(t, os.CopyFS(filepath.Join(dir, "bin"), os.DirFS(bin.Dir))) // what root built may lie where nobody else can enter
	must(t, filepath.WalkDir(filepath.Join(dir, "bin"), func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chmod(path, 0o755))
	}))
	self, err := os.Executable()
	must(t, err)
	program, err := os.ReadFile(self)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "plain.test"), program, 0o755))
	home := filepath.Join(dir, "home")
	must(t, os.Mkdir(home, 0o700))
	must(t, os.Chown(home, plainUID, plainUID))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "plain.test"), "-test.run", "^TestPlainUser$", "-test.v")
	cmd.Dir = home
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, plainEnv + "=" + filepath.Join(dir, "bin")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: plainUID, Gid: plainUID}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestPlainUser") {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("as uid %d:\n%s", plainUID, out)
}

func plainUser(t *testing.T) {
	bin := rig.Programs{Dir: os.Getenv(plainEnv)}
	if bin.Dir == "" {
		bin, _ = programs(t)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	server := mcpserver.Start(t, mcpserver.Options{Eras: mcpserver.Modern, Framing: mcpserver.JSON})
	// Sockets lie below: their paths have more bytes than the kernel takes for a socket's name.
	deep := filepath.Join(t.TempDir(), strings.Repeat("folder-in-a-folder/", 8))
	r, err := rig.Start(ctx, rig.Options{Programs: bin, Dir: deep})
	must(t, err)
	defer func() {
		if t.Failed() {
			t.Logf("the log:\n%s", clip([]byte(r.Log())))
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	must(t, r.Configure(ctx, []rig.Connection{{Name: "tracker", URL: server.URL(), Reads: []string{"echo"}, Writes: []string{"create_issue"}}},
		"profiles:\n  dev:\n    attended: true\n    model: {provider: none}\n    grants:\n      - {tools: [tracker/echo], rule: allow}\n      - {tools: [tracker/create_issue], rule: ask}\n"))

	const allowed, denied = `{"project":"web","title":"the first"}`, `{"project":"web","title":"the second"}`
	script, err := json.Marshal([]map[string]any{
		{"say": "read", "tool": "tracker_echo", "arguments": json.RawMessage(`{"text":"as a plain user"}`)},
		{"say": "write", "tool": "tracker_create_issue", "arguments": json.RawMessage(allowed)},
		{"say": "write", "tool": "tracker_create_issue", "arguments": json.RawMessage(denied)},
	})
	must(t, err)
	work := filepath.Join(t.TempDir(), "work")
	must(t, os.MkdirAll(filepath.Join(work, ".git", "hooks"), 0o755))
	must(t, os.WriteFile(filepath.Join(work, ".git", "config"), []byte("[core]\n"), 0o644))
	must(t, os.WriteFile(filepath.Join(work, ".env"), []byte(canaryMark), 0o644))
	agent, err := os.ReadFile(bin.Path("demo-agent"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(work, "agent"), agent, 0o755))
	const look = `for f in .git/hooks/post-checkout .git/config .claude/settings.json .envrc /usr/new /etc/new /run/sallyport/in/new; do
  (echo x >>"$f") 2>/dev/null && echo "wrote $f"; done
cat .env
echo made >made.txt
grep "Max data size" /proc/self/limits
exec ./agent "$0"`
	cmd := r.Command(ctx, "run", "--profile", "dev", "--workspace", work, "--", "/bin/sh", "-c", look, string(script))
	type end struct {
		out []byte
		err error
	}
	over := make(chan end, 1)
	go func() {
		out, err := cmd.CombinedOutput()
		over <- end{out, err}
	}()
	ask := func(title string) *sallyportv1.ApprovalRow {
		var found *sallyportv1.ApprovalRow
		until(ctx, t, "the question about "+title, func() bool {
			select {
			case e := <-over:
				t.Fatalf("the agent ended early: %v\n%s", e.err, e.out)
			default:
			}
			list, err := r.Operator().ListApprovals(ctx, &sallyportv1.ListApprovalsRequest{})
			must(t, err)
			for _, row := range list.GetApprovals() {
				shown, err := r.Operator().ShowApproval(ctx, &sallyportv1.ShowApprovalRequest{Id: row.GetId()})
				must(t, err)
				if strings.Contains(string(shown.GetArguments()), title) {
					found = shown.GetApproval()
				}
			}
			return found != nil
		})
		return found
	}
	q := ask("the first")
	if n := server.CallsWith("create_issue", allowed); n != 0 {
		t.Errorf("the server saw %d requests before the person decided", n)
	}
	_, err = r.CLI(ctx, "", "approve", q.GetId(), "--digest", q.GetDigest(), "--yes")
	must(t, err)
	q = ask("the second")
	_, err = r.CLI(ctx, "", "deny", q.GetId(), "--digest", q.GetDigest(), "--reason", "one is enough")
	must(t, err)
	e := <-over
	must(t, e.err)
	said := string(e.out)
	for _, want := range []string{
		fmt.Sprintf("my network interfaces are lo; I am uid %d\n", sandbox.InnerUID), "I read: as a plain user\n", `"title":"the first"`,
		`A person declined tracker_create_issue: "one is enough" (approval_denied).`,
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is missing", want)
		}
	}
	for _, never := range []string{"wrote ", canaryMark, "uid 0\n"} {
		if strings.Contains(said, never) {
			t.Errorf("there is %q", never)
		}
	}
	for arguments, want := range map[string]int{allowed: 1, denied: 0} {
		if n := server.CallsWith("create_issue", arguments); n != want {
			t.Errorf("the server saw %d requests of %s, want %d", n, arguments, want)
		}
	}
	if info, err := os.Stat(filepath.Join(work, "made.txt")); err != nil || int(info.Sys().(*syscall.Stat_t).Uid) != os.Getuid() {
		t.Errorf("what the agent made in the workspace is not this user's: %v %v", info, err)
	}
	// Which bounds there are is said, and what is said holds inside.
	doctor, err := r.CLI(ctx, "", "doctor")
	switch {
	case strings.Contains(doctor, "memory, processes and processor are bounded by control groups"):
	case !strings.Contains(doctor, "no control group for memory, processes, processor: memory is bounded for each process instead of all together, the processor not at all"):
		t.Errorf("doctor does not say how sandboxes are bounded: %v", err)
	case strings.Contains(said, "Max data size             unlimited"):
		t.Error("memory of the agent is not bounded")
	}
	if t.Failed() {
		t.Logf("the agent wrote:\n%s\ndoctor:\n%s", said, doctor)
	}
}
