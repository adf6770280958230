// Package remains looks for what a sandbox may have left on a machine. It asks the kernel and no notes of ours, so that an absence that it
// reports does not rest on what somebody wrote down before a crash.
package remains

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/bounds"
	"sallyport.dev/host/sandbox/proc"
)

// Remains is what exists of a session's sandbox.
type Remains struct {
	Processes []int    `json:"processes,omitempty"` // in a control group of the session, or with its HOME at the sandbox's place
	Cgroups   []string `json:"cgroups,omitempty"`
	Mounts    []string `json:"mounts,omitempty"` // below the session's folder
	Dir       string   `json:"dir,omitempty"`    // the session's folder
}

// Live reports whether something may still run.
func (r Remains) Live() bool { return len(r.Processes)+len(r.Cgroups) > 0 }

// Any reports whether anything is left.
func (r Remains) Any() bool { return r.Live() || len(r.Mounts) > 0 || r.Dir != "" }

// String says what is left, for a person.
func (r Remains) String() string {
	var parts []string
	if len(r.Processes) > 0 {
		pids := make([]string, len(r.Processes))
		for i, pid := range r.Processes {
			pids[i] = strconv.Itoa(pid)
		}
		parts = append(parts, "processes "+strings.Join(pids, ", "))
	}
	for _, list := range []struct {
		name string
		all  []string
	}{{"control groups ", r.Cgroups}, {"mounts ", r.Mounts}} {
		if len(list.all) > 0 {
			parts = append(parts, list.name+strings.Join(list.all, ", "))
		}
	}
	if r.Dir != "" {
		parts = append(parts, "folder "+r.Dir)
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, "; ")
}

// Find looks for what is left of the session whose folder is dir; the folder is named after it. What cannot be looked at is an error, never
// an absence.
func Find(dir string) (Remains, error) {
	session := filepath.Base(dir)
	r := Remains{Cgroups: bounds.Left(session)}
	if _, err := os.Lstat(dir); err == nil {
		r.Dir = dir
	} else if !errors.Is(err, fs.ErrNotExist) {
		return r, err
	}
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return r, err
	}
	for m := range mounts(data) {
		if m.point == dir || strings.HasPrefix(m.point, dir+"/") {
			r.Mounts = append(r.Mounts, m.point)
		}
	}
	r.Processes = proc.Find(func(pid int) bool { return pid != os.Getpid() && proc.Runs(pid) && belongs(pid, session) })
	return r, nil
}

// belongs reports whether a process is one of the session's sandbox: by its control group, or by the HOME that it sees.
func belongs(pid int, session string) bool {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err == nil && bytes.Contains(groups, []byte("/sallyport-"+session+"-")) {
		return true
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return false // it ended, or is another user's: a sandbox of ours is not
	}
	for m := range mounts(data) {
		if m.point == sandbox.Home && strings.HasSuffix(m.root, "/"+session+"/home") {
			return true
		}
	}
	return false
}

// mount is one line of mountinfo (proc_pid_mountinfo(5)).
type mount struct{ root, point string }

func mounts(data []byte) func(yield func(mount) bool) {
	return func(yield func(mount) bool) {
		for line := range bytes.Lines(data) {
			fields := strings.Fields(string(line))
			const point = 4
			if len(fields) > point && !yield(mount{root: plain(fields[point-1]), point: plain(fields[point])}) {
				return
			}
		}
	}
}

// plain undoes the kernel's escapes of white space and backslashes.
func plain(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
