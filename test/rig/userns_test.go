package rig_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport.dev/test/rig"
)

// Where the kernel gives no user namespaces, doctor and run say so and what to type; run starts nothing, and its session is over.
func TestNoUserNamespaces(t *testing.T) {
	programs := programs(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	up, err := rig.StartUpstream(ctx, programs, "s3cret", "--auth", "bearer")
	must(t, err)
	defer up.Close()
	r, err := rig.Start(ctx, rig.Options{Programs: programs})
	must(t, err)
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	must(t, r.Configure(ctx, []rig.Connection{{Name: "tracker", URL: up.URL, Auth: "{type: bearer}", Secret: "s3cret", Reads: []string{"echo"}}},
		"profiles:\n  closed:\n    grants:\n      - {tools: [tracker/echo], rule: allow}\n"))
	work := r.Path("work")
	must(t, os.Mkdir(work, 0o755))
	// In a namespace of our own nobody may make another one: as on a machine whose administrator forbids them.
	without := func(args ...string) (string, error) {
		cmd := r.Command(ctx, args...)
		script := append([]string{"-c", `echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"`, "sh"}, cmd.Args...)
		inside := exec.CommandContext(ctx, "/bin/sh", script...)
		inside.Args[3+1] = cmd.Path
		inside.Env = cmd.Env
		size := 1
		if os.Getuid() == 0 {
			size = 1 << 31 // root hands a sandbox's home to the user that it runs it as
		}
		inside.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: size}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: size}},
		}
		out, err := inside.CombinedOutput()
		return string(out), err
	}
	const says = "allow user namespaces: sysctl -w user.max_user_namespaces=15000"
	if out, err := without("doctor"); err == nil || !strings.Contains(out, says) {
		t.Errorf("doctor says %s, %v", out, err)
	}
	runSays := says
	if os.Getuid() == 0 {
		runSays = "(doctor says more)" // root needs one to show the workspace to the sandbox's user, before there is a sandbox
	}
	out, err := without("run", "--profile", "closed", "--workspace", work, "--", "/bin/sh", "-c", "echo it ran")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 125 || !strings.Contains(out, runSays) || strings.Contains(out, "it ran") {
		t.Errorf("run says %s, %v", out, err)
	}
	var list struct{ Sessions []struct{ State string } }
	must(t, r.JSON(ctx, &list, "sessions", "list"))
	for _, s := range list.Sessions {
		if s.State == "open" {
			t.Errorf("sessions: %s", fmt.Sprint(list.Sessions))
		}
	}
}
