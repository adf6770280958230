package sandbox

import (
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

// Fixed paths in a sandbox.
const (
	Home         = "/home/agent"
	In           = "/run/sallyport/in"
	Out          = "/run/sallyport/out"
	Guest        = In + "/bin/sallyport-guest"
	ElseWorkdir  = "/workspace" // where a workspace lies whose own path cannot be had inside
	InnerUser    = "agent"
	InnerUID     = 1000
	InnerGID     = 1000
	DefaultPIDs  = 512
	DefaultBytes = 4 << 30
	DefaultCPU   = 2.0
)

// WorkspaceMode says how the workspace is shown.
type WorkspaceMode string

// Modes of a workspace.
const (
	ReadWrite   WorkspaceMode = "read-write"
	ReadOnly    WorkspaceMode = "read-only"
	NoWorkspace WorkspaceMode = "none"
)

// Workspace is the folder that the agent works in.
type Workspace struct {
	Path string        `json:"path"`
	Mode WorkspaceMode `json:"mode"`
	// Protected are the names below Path that stay read-only; nil for [DefaultProtected].
	Protected []string `json:"protected,omitempty"`
	// EnvFiles shows .env files, which are masked otherwise.
	EnvFiles bool `json:"env_files,omitempty"`
}

// Bounds are the limits of a sandbox; 0 is the default of each.
type Bounds struct {
	Memory int64   `json:"memory"` // bytes
	PIDs   int64   `json:"pids"`
	CPU    float64 `json:"cpu"` // processors
}

// WithDefaults fills in the defaults.
func (b Bounds) WithDefaults() Bounds {
	if b.Memory == 0 {
		b.Memory = DefaultBytes
	}
	if b.PIDs == 0 {
		b.PIDs = DefaultPIDs
	}
	if b.CPU == 0 {
		b.CPU = DefaultCPU
	}
	return b
}

// Plan is all that a driver needs to make one sandbox. It is plain data: the host writes it down for the supervisor that it starts.
type Plan struct {
	Driver  string `json:"driver"`
	Session string `json:"session"`
	Epoch   int64  `json:"epoch"`
	// Dir is the session's folder of the host; the driver keeps its own notes there. In and Out are what the relay made for this epoch, shown
	// at [In] and [Out]; HOME lies below Dir and is the driver's.
	Dir       string    `json:"dir"`
	In        string    `json:"in"`
	Out       string    `json:"out"`
	Workspace Workspace `json:"workspace"`
	// Gate is the first process and its arguments, as paths inside; Args is the agent, which the gate starts.
	Gate []string `json:"gate"`
	Args []string `json:"args"`
	// Env is the whole environment of the agent: nothing is inherited.
	Env []string `json:"env"`
	// Installs are folders and files shown read-only at their own paths: the harness and what it needs to run.
	Installs []string `json:"installs,omitempty"`
	Bounds   Bounds   `json:"bounds"`
	// Nested says that the harness makes a sandbox of its own, which needs user namespaces and mounts.
	Nested bool  `json:"nested,omitempty"`
	Where  Where `json:"where"`
	// InsecureNoSandbox is the user's word that a driver without isolation may run.
	InsecureNoSandbox bool `json:"insecure_no_sandbox,omitempty"`
}

// DefaultProtected are the names in a workspace that programs outside obey without being asked: an agent that could write them would run
// code there. .git/commondir and .git/config.worktree belong to the same family, but cannot be held back without disturbing git: they are
// looked at afterwards (see the bwrap driver).
func DefaultProtected() []string {
	return []string{".git/hooks", ".git/config", ".claude", ".codex", ".pi", ".mcp.json", ".vscode", ".idea", ".envrc"}
}

// Check reports the first thing that is wrong with a plan, before anything is made. It touches nothing.
func (p *Plan) Check() error {
	switch {
	case !relay.ValidID(p.Session):
		return errs.New(errs.Invalid, "the session's id is not one of ours")
	case p.Epoch < 1:
		return errs.New(errs.Invalid, "the session's epoch is less than 1")
	case !cleanAbs(p.Dir), !cleanAbs(p.In), !cleanAbs(p.Out):
		return errs.New(errs.Invalid, "the session's folders are not absolute paths")
	case len(p.Args) == 0 || p.Args[0] == "":
		return errs.New(errs.Invalid, "no command to run; write it after --")
	case len(p.Gate) == 0:
		return errs.New(errs.Invalid, "the plan names no gate")
	}
	switch p.Workspace.Mode {
	case ReadWrite, ReadOnly:
		if !cleanAbs(p.Workspace.Path) {
			return errs.New(errs.Invalid, "the workspace is not an absolute path")
		}
	case NoWorkspace:
	default:
		return errs.Newf(errs.Invalid, "workspace is %q; it is one of read-write, read-only, none", p.Workspace.Mode)
	}
	for _, name := range p.Workspace.Protected {
		if !filepath.IsLocal(name) || path.Clean(name) != name || name == "." {
			return errs.Newf(errs.Invalid, "protected: %q is not a path below the workspace", name)
		}
	}
	for _, install := range p.Installs {
		if !cleanAbs(install) {
			return errs.Newf(errs.Invalid, "%q is not an absolute path", install)
		}
	}
	if p.Bounds.Memory < 0 || p.Bounds.PIDs < 0 || p.Bounds.CPU < 0 {
		return errs.New(errs.Invalid, "memory, pids and cpu are not negative")
	}
	for _, entry := range p.Env {
		name, _, ok := strings.Cut(entry, "=")
		if !ok || name == "" || strings.ContainsRune(entry, 0) {
			return errs.New(errs.Invalid, "a variable of the environment has no name or holds a zero byte")
		}
	}
	for _, arg := range slices.Concat(p.Gate, p.Args) {
		if strings.ContainsRune(arg, 0) {
			return errs.New(errs.Invalid, "an argument holds a zero byte")
		}
	}
	return nil
}

// Settle returns an environment in which every variable stands once: the last entry of a name counts, as in a shell. (Programs differ in what
// they make of two.)
func Settle(env []string) []string {
	last := make(map[string]int, len(env))
	for i, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		last[name] = i
	}
	settled := make([]string, 0, len(last))
	for i, entry := range env {
		if name, _, _ := strings.Cut(entry, "="); last[name] == i {
			settled = append(settled, entry)
		}
	}
	return settled
}

func cleanAbs(p string) bool { return filepath.IsAbs(p) && filepath.Clean(p) == p }

// reserved are the folders inside that are ours: a workspace whose own path is one of them, or lies above them, is shown at /workspace.
var reserved = []string{
	"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/proc", "/sys", "/dev", "/run", "/boot", Home,
}

// Workdir is where a workspace lies inside: at its own path, so that what tools write down (traces, settings, caches by path) means the
// same on both sides, or at /workspace where that path is ours.
func Workdir(w Workspace) string {
	if w.Mode == NoWorkspace {
		return Home
	}
	for _, r := range reserved {
		if within(w.Path, r) || within(r, w.Path) {
			return ElseWorkdir
		}
	}
	if within(ElseWorkdir, w.Path) || len(strings.Split(w.Path, "/")) < 3 {
		return ElseWorkdir // a folder directly below / (/srv, /tmp, /opt) may be something that programs expect to be theirs
	}
	return w.Path
}

// within reports whether p is dir or lies in it; both are clean.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}
