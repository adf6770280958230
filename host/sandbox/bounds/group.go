package bounds

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox"
)

// Group is a sandbox's control groups, one directory in each tree that is used. Its methods may be called concurrently.
type Group struct {
	dirs []string
}

// Make makes the control groups of a sandbox and sets its limits. It returns what was reached; an empty group is no error, because a plain
// user often may not make one. A limit that was accepted is read back: a kernel that ignores it does not count.
func Make(name string, limits sandbox.Bounds) (*Group, sandbox.Levels) {
	g := &Group{}
	levels := sandbox.Levels{Memory: sandbox.None, PIDs: sandbox.None, CPU: sandbox.None}
	for _, h := range hierarchies() {
		for _, parent := range h.parents() {
			if g.add(h, parent, name, limits, &levels) {
				break
			}
		}
	}
	return g, levels
}

func (g *Group) add(h hierarchy, parent, name string, limits sandbox.Bounds, levels *sandbox.Levels) bool {
	if h.v2 {
		can, does := available(parent)
		for _, c := range wanted {
			if slices.Contains(can, c) && !slices.Contains(does, c) {
				// Best effort: refused where the parent is not ours, and where it has processes of its own.
				_ = write(parent, "cgroup.subtree_control", "+"+c)
			}
		}
	}
	dir := filepath.Join(parent, name)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return false
	}
	if unix.Access(filepath.Join(dir, "cgroup.procs"), unix.W_OK) != nil {
		_ = os.Remove(dir)
		return false
	}
	g.dirs = append(g.dirs, dir)
	if limitMemory(h, dir, limits.Memory) {
		levels.Memory = sandbox.Cgroup
	}
	if limitPIDs(h, dir, limits.PIDs) {
		levels.PIDs = sandbox.Cgroup
	}
	if limitCPU(h, dir, limits.CPU) {
		levels.CPU = sandbox.Cgroup
	}
	return true
}

// has reports whether the group in dir has the controller.
func has(h hierarchy, dir, controller string) bool {
	if h.v2 {
		can, _ := available(dir)
		return slices.Contains(can, controller)
	}
	return slices.Contains(h.controllers, controller)
}

func limitMemory(h hierarchy, dir string, bytes int64) bool {
	if !has(h, dir, "memory") {
		return false
	}
	value := strconv.FormatInt(bytes, 10)
	if h.v2 {
		// Swap would let the sandbox push the rest of the machine out of memory.
		_ = write(dir, "memory.swap.max", "0")
		return write(dir, "memory.max", value) == nil && atMost(dir, "memory.max", bytes)
	}
	ok := write(dir, "memory.limit_in_bytes", value) == nil && atMost(dir, "memory.limit_in_bytes", bytes)
	_ = write(dir, "memory.memsw.limit_in_bytes", value) // absent where the kernel does not account for swap
	_ = write(dir, "memory.swappiness", "0")
	return ok
}

func limitPIDs(h hierarchy, dir string, n int64) bool {
	return has(h, dir, "pids") && write(dir, "pids.max", strconv.FormatInt(n, 10)) == nil && atMost(dir, "pids.max", n)
}

// cpuPeriod is the kernel's usual accounting period in microseconds.
const cpuPeriod = 100_000

// weight is a sandbox's share of a busy processor where another group of the same level has 100: a guest that computes all it can leaves the host, which
// serves every sandbox, most of what both want. It costs nothing while the processor is not busy.
const weight = 25

func limitCPU(h hierarchy, dir string, processors float64) bool {
	if !has(h, dir, "cpu") {
		return false
	}
	quota := int64(math.Ceil(processors * cpuPeriod))
	// Best effort: a kernel without shares still has the limit.
	if h.v2 {
		_ = write(dir, "cpu.weight", strconv.Itoa(weight))
		return write(dir, "cpu.max", fmt.Sprintf("%d %d", quota, cpuPeriod)) == nil
	}
	_ = write(dir, "cpu.shares", strconv.Itoa(1024*weight/100))
	return write(dir, "cpu.cfs_period_us", strconv.Itoa(cpuPeriod)) == nil && write(dir, "cpu.cfs_quota_us", strconv.FormatInt(quota, 10)) == nil
}

func atMost(dir, file string, n int64) bool {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return false
	}
	got, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return err == nil && got <= n
}

func write(dir, file, value string) error {
	return os.WriteFile(filepath.Join(dir, file), []byte(value), 0o644)
}

// Name is what the control groups of one start of a session's sandbox are called.
func Name(session string, epoch int64) string { return prefix(session) + strconv.FormatInt(epoch, 10) }

func prefix(session string) string { return "sallyport-" + session + "-" }

// Candidates are all the directories that [Make] may make for a name.
func Candidates(name string) []string {
	var dirs []string
	for _, h := range hierarchies() {
		for _, parent := range h.parents() {
			dirs = append(dirs, filepath.Join(parent, name))
		}
	}
	return dirs
}

// Left are the control groups of any start of a session that exist, where this process would have made them.
func Left(session string) []string {
	var dirs []string
	for _, pattern := range Candidates(prefix(session) + "*") {
		found, err := filepath.Glob(pattern)
		if err == nil { // the pattern is ours
			dirs = append(dirs, found...)
		}
	}
	return dirs
}

// Attach returns the group of directories that [Group.Dirs] once gave.
func Attach(dirs []string) *Group { return &Group{dirs: slices.Clone(dirs)} }

// Dirs returns the group's directories, to be written down before anything runs in it.
func (g *Group) Dirs() []string { return slices.Clone(g.dirs) }

// Add moves a process into the group; what it starts later is born there.
func (g *Group) Add(pid int) error {
	for _, dir := range g.dirs {
		if err := write(dir, "cgroup.procs", strconv.Itoa(pid)); err != nil {
			return errs.Wrap(errs.Unavailable, "the sandbox could not be put into its control group", err)
		}
	}
	return nil
}

// Processes returns the processes in the group, over all its trees.
func (g *Group) Processes() ([]int, error) {
	seen := make(map[int]bool)
	for _, dir := range g.dirs {
		err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return err
			}
			data, err := os.ReadFile(filepath.Join(p, "cgroup.procs"))
			for field := range strings.FieldsSeq(string(data)) {
				if pid, err := strconv.Atoi(field); err == nil {
					seen[pid] = true
				}
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			return nil, err
		}
	}
	pids := make([]int, 0, len(seen))
	for pid := range seen {
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	return pids, nil
}

// Kill ends every process in the group and returns nil once none is left. It repeats until ctx ends: a process may fork between two looks,
// and the group's limit on processes bounds how long that can go on.
func (g *Group) Kill(ctx context.Context) error {
	if len(g.dirs) == 0 {
		return nil
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, dir := range g.dirs {
			_ = write(dir, "cgroup.kill", "1") // version 2 since Linux 5.14: all at once, forks included
		}
		pids, err := g.Processes()
		if err != nil {
			return errs.Wrap(errs.Internal, "the control group cannot be read", err)
		}
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		select {
		case <-ctx.Done():
			return errs.Newf(errs.Internal, "%d processes of the sandbox are still there", len(pids))
		case <-tick.C:
		}
	}
}

// Remove removes the group, which must be empty. The kernel lets go of a process a moment after it was reaped, so a busy directory is tried
// again until ctx ends.
func (g *Group) Remove(ctx context.Context) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		var busy error
		for _, dir := range g.dirs {
			if err := removeTree(dir); err != nil {
				busy = err
			}
		}
		if busy == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errs.Wrap(errs.Internal, "a control group of the sandbox could not be removed", busy)
		case <-tick.C:
		}
	}
}

// removeTree removes a group and the groups below it; the files in them go with them.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// Probe makes and removes a group and returns what could be reached on this machine.
func Probe(ctx context.Context) (sandbox.Levels, error) {
	g, levels := Make("sallyport-probe-"+strconv.Itoa(os.Getpid()), sandbox.Bounds{}.WithDefaults())
	return levels, g.Remove(ctx)
}
