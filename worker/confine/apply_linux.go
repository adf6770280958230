package confine

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// newestABI is the newest Landlock ABI whose restrictions are used: 10 restricts UDP, which name resolution needs.
const newestABI = 9

// Apply confines the process, all its threads and for good. It must be called before the first foreign byte is read, and after the last file was opened
// for writing. What the kernel cannot enforce is in the report; nothing is fatal here, and whether to run like that is the caller's to decide.
func Apply(cfg Config) Report {
	preload()
	r := &Report{}
	r.step("no core dumps", noCore())
	r.step("capabilities", dropCapabilities())
	abi, err := ll.LandlockGetABIVersion()
	switch {
	case err != nil || abi < 1:
		r.Notes = append(r.Notes, "the kernel has no landlock")
	default:
		r.step("landlock", restrict(cfg, min(abi, newestABI)))
	}
	r.step("seccomp", filter(cfg))
	r.Findings = try(cfg)
	return *r
}

// step notes what failed.
func (r *Report) step(name string, err error) {
	if err != nil {
		r.Notes = append(r.Notes, fmt.Sprintf("%s unavailable: %v", name, err))
	}
}

// preload reads once what the runtime reads lazily and keeps: roots and time zone.
func preload() {
	_, _ = x509.SystemCertPool()
	_ = time.Now().Local().String()
}

// noCore: neither a core file nor a debugger of the same user may read the keys.
func noCore() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

// dropCapabilities gives up what root may do beyond a user, on all threads.
func dropCapabilities() error {
	if _, _, errno := psx.Syscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return capset()
}

// readable are the files that name resolution and TLS read while the worker runs.
var readable = []string{"/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/services", "/etc/protocols", "/etc/ssl", "/etc/pki", "/etc/ca-certificates"}

// restrict applies Landlock: reading a short list, connecting to the known ports, signals and abstract sockets to nobody outside.
func restrict(cfg Config, abi int) error {
	configs := []landlock.Config{1: landlock.V1, landlock.V2, landlock.V3, landlock.V4, landlock.V5, landlock.V6, landlock.V7, landlock.V8, landlock.V9}
	c := configs[abi]
	var rules []landlock.Rule
	paths := append(append([]string{}, readable...), cfg.Read...)
	if real, err := filepath.EvalSymlinks("/etc/resolv.conf"); err == nil {
		if dir := filepath.Dir(real); dir != "/etc" {
			paths = append(paths, dir) // a resolver's own directory, in which the file is replaced
		}
	}
	if os.Geteuid() != 0 {
		paths = append(paths, "/etc") // the file may be replaced there, and nothing else in it is secret to a plain user
	}
	for _, p := range paths {
		info, err := os.Stat(p)
		switch {
		case err != nil:
		case info.IsDir():
			rules = append(rules, landlock.PathAccess(ll.AccessFSReadFile|ll.AccessFSReadDir, p))
		default:
			rules = append(rules, landlock.PathAccess(ll.AccessFSReadFile, p))
		}
	}
	if abi >= 9 && cfg.UnixDir != "" {
		rules = append(rules, landlock.PathAccess(0, cfg.UnixDir).WithResolveUnix())
	}
	if abi >= 4 {
		if len(cfg.Ports) == 0 {
			c.HandledAccessNet &^= ll.AccessNetConnectTCP
		}
		for _, p := range cfg.Ports {
			rules = append(rules, landlock.ConnectTCP(p))
		}
	}
	return c.Restrict(rules...)
}

// runtimeArch is named in notes where a filter does not exist.
const runtimeArch = runtime.GOARCH
