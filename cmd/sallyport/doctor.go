package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/host/daemon"
	"sallyport.dev/host/sandbox"
)

type doctorCmd struct{}

// Run looks at this machine and at what runs on it, and says what to type. It changes nothing.
func (doctorCmd) Run(ctx context.Context, g *Globals) error {
	var all []sandbox.Finding
	add := func(level sandbox.FindingLevel, subject, format string, args ...any) {
		all = append(all, sandbox.Finding{Level: level, Subject: subject, Message: fmt.Sprintf(format, args...)})
	}
	state, err := g.stateDir()
	if err != nil {
		return err
	}
	run, err := g.runDir()
	if err != nil {
		return err
	}
	stateFindings(state, add)
	for _, name := range []string{"sallyport-guest", "sallyport-bridge"} {
		if _, err := guestProgram(name); err != nil {
			add(sandbox.Failure, name, "%s", errs.Message(err))
		} else {
			add(sandbox.Fine, name, "found")
		}
	}
	for _, d := range drivers().All() {
		if d.Capabilities().Closed == sandbox.Open {
			continue // it closes nothing and needs nothing
		}
		all = append(all, d.Check(ctx, sandbox.Where{State: state, Run: run})...)
	}
	if _, err := daemon.ReadConfig(filepath.Join(state, "host", "host.yaml")); err != nil {
		add(sandbox.Failure, "host.yaml", "%s", errs.Message(err))
	}
	harnesses(add)
	g.running(ctx, add)
	return g.findings(all)
}

func stateFindings(state string, add func(sandbox.FindingLevel, string, string, ...any)) {
	info, err := os.Stat(state)
	switch {
	case os.IsNotExist(err):
		add(sandbox.Warning, "state", "there is no %s yet; type: sallyport init", state)
		return
	case err != nil:
		add(sandbox.Failure, "state", "%s cannot be looked at: use the account that made it", state)
		return
	case foreign(info) != "":
		add(sandbox.Failure, "state", "%s belongs to %s: run as that user, or name a directory of your own with --state", state, foreign(info))
		return
	case info.Mode().Perm()&0o077 != 0:
		add(sandbox.Failure, "state", "others can enter %s; type: chmod 700 %s", state, state)
		return
	}
	add(sandbox.Fine, "state", "%s", state)
	var fs unix.Statfs_t
	if unix.Statfs(state, &fs) != nil {
		return
	}
	if fs.Flags&unix.ST_NOEXEC != 0 {
		add(sandbox.Failure, "state", "%s lies on a noexec mount, where the guest's programs cannot run; move it, or name another with --state", state)
	}
	if name, ok := networkFS[fs.Type]; ok {
		add(sandbox.Failure, "state", "%s lies on %s, which may lose what it said was written; move it to a local disk", state, name)
	}
	if free := int64(fs.Bavail) * fs.Bsize; free < 256<<20 {
		add(sandbox.Failure, "disk", "only %d MiB are free under %s; new calls are refused when it is full", free>>20, state)
	}
	for part, files := range map[string][]string{"control": {"journal.key", "ca/root.key", "intent/root.key"}, "worker": {"pool.key"}, "host": {"host.yaml"}} {
		for _, f := range files {
			p := filepath.Join(state, part, f)
			if info, err := os.Stat(p); err == nil && info.Mode().Perm()&0o077 != 0 {
				add(sandbox.Failure, "modes", "others can read %s; type: chmod 600 %s", p, p)
			}
		}
	}
}

// foreign names the owner of what is not this user's, "" for what is.
func foreign(info os.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) == os.Geteuid() {
		return ""
	}
	if u, err := user.LookupId(strconv.Itoa(int(st.Uid))); err == nil {
		return u.Username
	}
	return fmt.Sprintf("uid %d", st.Uid)
}

// File systems on which fsync promises less than it says.
var networkFS = map[int64]string{unix.NFS_SUPER_MAGIC: "NFS", 0xff534d42: "CIFS", 0xfe534d42: "SMB", unix.V9FS_MAGIC: "9p", unix.FUSE_SUPER_MAGIC: "FUSE"}

func harnesses(add func(sandbox.FindingLevel, string, string, ...any)) {
	found := false
	for _, name := range []string{"claude", "codex", "pi"} {
		if path, err := exec.LookPath(name); err == nil {
			found = true
			add(sandbox.Fine, name, "%s", path)
		}
	}
	if !found {
		add(sandbox.Warning, "agents", "none of claude, codex, pi is on the PATH; name the program after -- with its path")
	}
}

// running asks what runs, where something does.
func (g *Globals) running(ctx context.Context, add func(sandbox.FindingLevel, string, string, ...any)) {
	api, err := g.client()
	if err != nil {
		add(sandbox.Failure, "control", "%s", errs.Message(err))
		return
	}
	s, err := answer(api.Status(ctx, &sallyportv1.StatusRequest{}))
	if err != nil {
		add(sandbox.Warning, "control", "%s", errs.Message(err))
		return
	}
	add(sandbox.Fine, "control", "build %s, node %s, a durable commit takes %.1f ms", s.GetBuild(), s.GetNode(), float64(s.GetFsyncUs())/1000)
	if s.GetBuild() != buildName() {
		add(sandbox.Warning, "control", "it is build %s, this command %s; use the same", s.GetBuild(), buildName())
	}
	if s.GetQuarantine() != "" {
		add(sandbox.Failure, "store", "quarantine: %s. Look at what was lost, then: sallyport store accept-restore", s.GetQuarantine())
	}
	if !s.GetDurable() {
		add(sandbox.Failure, "store", "it does not promise durability, so nothing is dispatched")
	}
	roles := map[string]bool{}
	for _, m := range s.GetMachines() {
		switch m.GetState() {
		case "up":
			roles[m.GetRole()] = true
			more := ""
			if m.GetConfinement() != "" {
				more = "; " + m.GetConfinement()
			}
			add(sandbox.Fine, m.GetRole()+" "+m.GetName(), "up, build %s%s", m.GetBuild(), more)
		case "removed":
		case "revoked":
			add(sandbox.Warning, m.GetRole()+" "+m.GetName(), "its access was withdrawn; give it back with: sallyport restore %s %s", m.GetRole(), m.GetName())
		default:
			add(sandbox.Warning, m.GetRole()+" "+m.GetName(), "%s since %s; start it with: sallyport %s", m.GetState(), ago(m.GetSeenMs()), m.GetRole())
		}
	}
	for _, role := range []string{"worker", "host"} {
		if !roles[role] {
			add(sandbox.Failure, role, "none is up; start one with: sallyport %s", role)
		}
	}
	if conns, err := answer(api.ListConnections(ctx, &sallyportv1.ListConnectionsRequest{})); err == nil {
		for _, c := range conns.GetConnections() {
			if c.GetState() == "untested" {
				add(sandbox.Warning, "connection "+c.GetName(), "not in service until it passes a test: sallyport connections enable %s", c.GetName())
			}
			if strings.Contains(c.GetNetwork(), "plain http") || strings.Contains(c.GetNetwork(), "/") {
				add(sandbox.Warning, "connection "+c.GetName(), "reaches more than public https: %s", c.GetNetwork())
			}
		}
	}
}

func (g *Globals) findings(all []sandbox.Finding) error {
	bad := 0
	for _, f := range all {
		if f.Level == sandbox.Failure {
			bad++
		}
	}
	if g.JSON {
		g.printJSON(all)
	} else {
		marks := map[sandbox.FindingLevel]string{sandbox.Fine: "ok  ", sandbox.Warning: "note", sandbox.Failure: "FAIL"}
		for _, f := range all {
			fmt.Fprintf(g.out, "%s  %-22s %s\n", marks[f.Level], oneLine(f.Subject), oneLine(f.Message))
		}
	}
	if bad > 0 {
		return exitError{code: exitFailed}
	}
	return nil
}
