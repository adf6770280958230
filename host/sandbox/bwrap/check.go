package bwrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/bounds"
	"sallyport.dev/relay/hostside"
)

// Check implements [sandbox.Driver]. It makes a sandbox that does nothing and looks at what comes of it; guessing from settings alone would
// miss what a container or a security module forbids.
func (d *Driver) Check(ctx context.Context, where sandbox.Where) []sandbox.Finding {
	find := func(level sandbox.FindingLevel, subject, message string) sandbox.Finding {
		return sandbox.Finding{Level: level, Subject: subject, Message: message}
	}
	path, err := bubblewrap()
	if err != nil {
		return []sandbox.Finding{find(sandbox.Failure, "bubblewrap", errs.Message(err))}
	}
	found := []sandbox.Finding{checkNamespaces(ctx, path)}
	if os.Geteuid() == 0 && !hostside.MayMount() {
		found = append(found, find(sandbox.Failure, "root", "root without CAP_SYS_ADMIN cannot lend folders to the sandbox's own user: run Sallyport as a plain user, or give it the capability"))
	}
	if _, err := exec.LookPath("nsenter"); err != nil {
		found = append(found, find(sandbox.Warning, "nsenter", "nsenter is missing, so sandboxes exec does not work; install util-linux"))
	}
	if noExec(where.State) {
		found = append(found, find(sandbox.Failure, "state folder", "the state folder is on a file system mounted noexec, so sandboxes cannot run the guest from it; choose another with --state"))
	}
	levels, err := bounds.Probe(ctx)
	switch {
	case err != nil:
		found = append(found, find(sandbox.Warning, "bounds", errs.Message(err)))
	case levels.Summary() == sandbox.Cgroup && levels.CPU == sandbox.Cgroup:
		found = append(found, find(sandbox.Fine, "bounds", "memory, processes and processor are bounded by control groups"))
	default:
		var missing []string
		for _, l := range []struct {
			name  string
			level sandbox.Level
		}{{"memory", levels.Memory}, {"processes", levels.PIDs}, {"processor", levels.CPU}} {
			if l.level != sandbox.Cgroup {
				missing = append(missing, l.name)
			}
		}
		found = append(found, find(sandbox.Warning, "bounds", fmt.Sprintf(
			"no control group for %s: memory is bounded for each process instead of all together, the processor not at all; run Sallyport as root, or as a systemd user service with Delegate=yes", strings.Join(missing, ", "))))
	}
	return found
}

func checkNamespaces(ctx context.Context, path string) sandbox.Finding {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--unshare-user", "--unshare-pid", "--unshare-net", "--disable-userns", "--uid", strconv.Itoa(sandbox.InnerUID),
		"--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--", "/bin/true")
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	if os.Geteuid() == 0 { // root's sandboxes too are made by an unprivileged user
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: firstUID + countUID, Gid: firstUID + countUID}}
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if err == nil {
		return sandbox.Finding{Level: sandbox.Fine, Subject: "bubblewrap", Message: "sandboxes can be made"}
	}
	return sandbox.Finding{Level: sandbox.Failure, Subject: "bubblewrap", Message: "a sandbox could not be made (" + firstLine(out.String(), err) + "); " + advice(kernelSetting, out.String())}
}

// kernelSetting reads a setting below /proc/sys; "" where the kernel has none of that name.
func kernelSetting(name string) string {
	data, _ := os.ReadFile("/proc/sys/" + name)
	return strings.TrimSpace(string(data))
}

// advice is what to do, from what bubblewrap says and what the kernel is set to.
func advice(read func(name string) string, output string) string {
	switch {
	case read("kernel/unprivileged_userns_clone") == "0":
		return "allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1"
	case read("user/max_user_namespaces") == "0":
		return "allow user namespaces: sysctl -w user.max_user_namespaces=15000"
	case read("kernel/apparmor_restrict_unprivileged_userns") == "1":
		return "AppArmor forbids user namespaces: give bwrap a profile with userns (Ubuntu: apt-get install apparmor-profiles), or sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
	case strings.Contains(output, "proc"):
		return "a new /proc cannot be mounted here, as in most containers: run Sallyport on the machine itself, or start the container with an unmasked /proc"
	case strings.Contains(output, "disable-userns"):
		return "bubblewrap is older than 0.8.0: install a newer one"
	default:
		return "user namespaces seem to be forbidden here, as in most containers: run Sallyport on the machine itself"
	}
}

func firstLine(s string, err error) string {
	s = strings.TrimSpace(s)
	if line, _, _ := strings.Cut(s, "\n"); line != "" {
		return line
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.String()
	}
	return "it did not answer"
}

func noExec(dir string) bool {
	for ; dir != "" && dir != "/" && dir != "."; dir = parent(dir) {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil {
			return st.Flags&unix.ST_NOEXEC != 0
		}
	}
	return false
}

func parent(dir string) string {
	return dir[:max(strings.LastIndexByte(dir, '/'), 0)]
}
