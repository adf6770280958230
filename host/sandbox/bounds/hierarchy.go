// Package bounds limits a sandbox as a whole, with control groups where they can be had, and says what was reached.
//
// Both versions of control groups are used, also side by side (a hybrid host keeps memory, pids and cpu in version 1 and killing and
// freezing in version 2). Where no group can be made, each process is bounded by resource limits instead, which is weaker: the level is data
// that doctor and approvals show.
package bounds

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// hierarchy is one mounted tree of control groups.
type hierarchy struct {
	mount       string
	own         string // this process's group below mount, "" for the root
	controllers []string
	v2          bool
}

// controllers that a group of ours needs.
var wanted = []string{"memory", "pids", "cpu"}

// discover returns the trees that are of use, from the kernel's lists as they are read by [hierarchies].
func discover(mountinfo, cgroup []byte) []hierarchy {
	own := make(map[string]string) // controller (or "" for version 2) to path
	for line := range bytes.Lines(cgroup) {
		parts := strings.SplitN(strings.TrimSpace(string(line)), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for name := range strings.SplitSeq(parts[1], ",") {
			own[name] = parts[2]
		}
	}
	var found []hierarchy
	scanner := bufio.NewScanner(bytes.NewReader(mountinfo))
	for scanner.Scan() {
		before, after, ok := strings.Cut(scanner.Text(), " - ")
		head, tail := strings.Fields(before), strings.Fields(after)
		if !ok || len(head) < 6 || len(tail) < 3 {
			continue
		}
		root, mount := head[3], unescape(head[4])
		switch tail[0] {
		case "cgroup2":
			found = append(found, hierarchy{mount: mount, own: below(own[""], root), v2: true})
		case "cgroup":
			h := hierarchy{mount: mount}
			for option := range strings.SplitSeq(tail[2], ",") {
				if slices.Contains(wanted, option) {
					h.controllers = append(h.controllers, option)
					h.own = below(own[option], root)
				}
			}
			if len(h.controllers) > 0 {
				found = append(found, h)
			}
		}
	}
	return found
}

// below returns a group's path relative to what is mounted: in a container the mount's root is often the container's own group.
func below(own, root string) string {
	if root == "/" {
		return strings.TrimPrefix(own, "/")
	}
	if rest, ok := strings.CutPrefix(own, root); ok {
		return strings.TrimPrefix(rest, "/")
	}
	return ""
}

// unescape undoes mountinfo's octal escapes of space, tab, newline and backslash.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

func hierarchies() []hierarchy {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	cgroup, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	found := discover(mountinfo, cgroup)
	for i, h := range found {
		// A group of another namespace cannot be found by its name; the mount's root is then the nearest that there is.
		if _, err := os.Stat(filepath.Join(h.mount, h.own)); err != nil {
			found[i].own = ""
		}
	}
	return found
}

// parents returns the groups in which one of ours may be made, the best first. In version 1 that is our own group, so that its bounds go on
// holding. In version 2 a group with processes can have no bounded children: ours becomes the neighbour of our own, below a parent that hands
// its controllers down.
func (h hierarchy) parents() []string {
	own := filepath.Join(h.mount, h.own)
	if !h.v2 {
		return []string{own}
	}
	if own == h.mount {
		return []string{own} // the root alone may have both
	}
	return []string{filepath.Dir(own), h.mount}
}

// available returns what a version 2 group can hand down to its children, and what it hands down now.
func available(dir string) (can, does []string) {
	a, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	b, _ := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	return strings.Fields(string(a)), strings.Fields(string(b))
}
