package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// secret is the form of every planted secret.
var secret = regexp.MustCompile(`canary-[0-9a-f]{32}`)

// system are the folders that come with the machine: nothing is planted there, and they are large.
var system = []string{"/usr", "/proc", "/sys", "/dev"}

// search looks for secrets in this process, in every file, and in every other process.
func (r *report) search() {
	for _, v := range os.Environ() {
		r.note("the environment", []byte(v))
	}
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, "/") && !strings.HasPrefix(target, "/dev/") {
			r.read(fd + " (" + target + ")")
		}
	}
	err := filepath.WalkDir("/", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil //nolint:nilerr // what cannot be read holds no secret for this process
		case d.IsDir() && (p == "/usr" || p == "/proc" || p == "/sys" || p == "/dev" || d.Name() == "node_modules"):
			return fs.SkipDir
		}
		if strings.HasPrefix(p, "/run/") {
			r.Run = append(r.Run, p)
		}
		switch {
		case d.Type()&fs.ModeSocket != 0:
			r.Sockets = append(r.Sockets, p)
		case d.Type().IsRegular():
			r.read(p)
		case d.Type()&fs.ModeSymlink != 0:
			if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() && !inSystem(p) {
				r.read(p)
			}
		}
		return nil
	})
	if err != nil {
		r.Secrets["the search"] = err.Error()
	}
	r.processes()
}

func inSystem(link string) bool {
	target, err := filepath.EvalSymlinks(link)
	if err != nil {
		return true
	}
	for _, s := range system {
		if strings.HasPrefix(target, s+"/") {
			return true
		}
	}
	return strings.Contains(target, "/node_modules/")
}

// note keeps a secret that data holds.
func (r *report) note(where string, data []byte) {
	if found := secret.Find(data); found != nil {
		r.Secrets[where] = string(found)
	}
}

func (r *report) read(p string) {
	name, _, _ := strings.Cut(p, " (")
	f, err := os.Open(name)
	if err != nil {
		return
	}
	defer f.Close()
	r.Searched++
	r.stream(p, f)
}

// stream searches a stream in pieces that overlap.
func (r *report) stream(where string, in io.Reader) {
	const overlap = 64
	buffer := make([]byte, 1<<20)
	kept := 0
	for {
		n, err := in.Read(buffer[kept:])
		r.note(where, buffer[:kept+n])
		if err != nil || n == 0 {
			return
		}
		end := kept + n
		kept = copy(buffer, buffer[max(0, end-overlap):end])
	}
}

// processes looks at every process that is seen: its command line, its environment, and, where that is allowed, its memory.
func (r *report) processes() {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		line, err := os.ReadFile(p + "/cmdline")
		if err != nil {
			continue
		}
		r.Processes = append(r.Processes, string(bytes.ReplaceAll(bytes.TrimRight(line, "\x00"), []byte{0}, []byte{' '})))
		r.note(p+"/cmdline", line)
		if env, err := os.ReadFile(p + "/environ"); err == nil {
			r.note(p+"/environ", env)
		}
		if p != fmt.Sprintf("/proc/%d", os.Getpid()) { // this one's holds what it found
			r.memory(p)
		}
	}
}

func (r *report) memory(p string) {
	maps, err := os.ReadFile(p + "/maps")
	if err != nil {
		return
	}
	mem, err := os.Open(p + "/mem")
	if err != nil {
		return
	}
	defer mem.Close()
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if n, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); n != 3 || err != nil || !strings.HasPrefix(mode, "rw") || to-from > 64<<20 {
			continue
		}
		r.stream(p+"/mem", io.NewSectionReader(mem, from, to-from))
	}
}
