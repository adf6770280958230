package harness

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sallyport.dev/errs"
)

// Found is a program as it can be shown in a sandbox.
type Found struct {
	Harness string   // by name; "other" for a program that is none
	Path    string   // where it really is
	Args    []string // how it is started: an interpreter that must be named goes first
	// Installs are what a sandbox must show, read-only, beside /usr.
	Installs []string
	// Paths go before the system's in PATH: the interpreter of a script with "#!/usr/bin/env" is looked up there.
	Paths []string
}

// Find looks a command up as a shell would, follows it to where it is installed, and says what a sandbox must show of that: the outermost
// node_modules for an npm package (its dependencies, and packages with native programs, lie beside it), the file alone for a program that
// is one file, and the interpreter of a script. Errors: [errs.NotFound], [errs.NotAllowed].
func Find(command, searchPath string) (Found, error) {
	at, err := lookPath(command, searchPath)
	if err != nil {
		return Found{}, err
	}
	real, err := filepath.EvalSymlinks(at)
	if err != nil {
		return Found{}, errs.Wrap(errs.NotFound, command+" leads nowhere: "+at, err)
	}
	f := Found{Harness: nameOf(command, real), Path: real, Args: []string{real}}
	f.show(real)
	interpreter, env, err := shebang(real)
	if err != nil {
		return Found{}, err
	}
	switch {
	case interpreter == "":
	case env: // found by name, through PATH
		at, err := lookPath(interpreter, searchPath)
		if err != nil {
			return Found{}, errs.Newf(errs.NotFound, "%s is a script for %s, which is in no folder of PATH", command, interpreter)
		}
		if err := f.interpreter(at); err != nil {
			return Found{}, err
		}
	default:
		if err := f.interpreter(interpreter); err != nil {
			return Found{}, err
		}
	}
	return f, nil
}

func (f *Found) interpreter(at string) error {
	real, err := filepath.EvalSymlinks(at)
	if err != nil {
		return errs.Wrap(errs.NotFound, "the interpreter "+at+" does not exist", err)
	}
	f.show(real)
	if real != f.Path && !strings.HasPrefix(real, "/usr/bin/") {
		f.Paths = append(f.Paths, filepath.Dir(real))
	}
	return nil
}

// show adds what a sandbox must show of a program at a real path.
func (f *Found) show(real string) {
	install := real
	if i := strings.Index(real, "/node_modules/"); i >= 0 {
		install = real[:i+len("/node_modules")]
	}
	if strings.HasPrefix(install, "/usr/") || slices.ContainsFunc(f.Installs, func(have string) bool { return install == have || strings.HasPrefix(install, have+"/") }) {
		return
	}
	f.Installs = append(f.Installs, install)
}

// packages are the npm packages of the harnesses.
var packages = map[string]string{
	"@anthropic-ai/claude-code": "claude", "@openai/codex": "codex", "@earendil-works/pi-coding-agent": "pi",
}

// nameOf says which harness a program is: by the package that it lies in, else by the name under which it was called.
func nameOf(command, real string) string {
	for pkg, name := range packages {
		if strings.Contains(real, "/node_modules/"+pkg+"/") || strings.Contains(real, "/node_modules/"+pkg+"-linux-") {
			return name
		}
	}
	switch base := filepath.Base(command); base {
	case "claude", "codex", "pi":
		return base
	}
	return "other"
}

func lookPath(command, searchPath string) (string, error) {
	if strings.Contains(command, "/") {
		abs, err := filepath.Abs(command)
		if err == nil {
			err = executable(abs)
		}
		if err != nil {
			return "", errs.Wrap(errs.NotFound, command+" is not a program that can be run", err)
		}
		return abs, nil
	}
	for _, dir := range filepath.SplitList(searchPath) {
		p := filepath.Join(dir, command)
		if filepath.IsAbs(dir) && executable(p) == nil {
			return p, nil
		}
	}
	return "", errs.Newf(errs.NotFound, "%s is in no folder of PATH", command)
}

func executable(p string) error {
	info, err := os.Stat(p)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return fs.ErrPermission
	}
	return nil
}

// shebang returns the interpreter of a script: "" for a program, and env for one that env(1) looks up.
func shebang(p string) (interpreter string, env bool, err error) {
	f, err := os.Open(p)
	if err != nil {
		return "", false, errs.Wrap(errs.NotAllowed, p+" cannot be read", err)
	}
	defer f.Close()
	line, err := bufio.NewReaderSize(f, 256).ReadSlice('\n')
	if err != nil && !errors.Is(err, bufio.ErrBufferFull) && len(line) == 0 {
		return "", false, nil // an empty file: exec says what it thinks of it
	}
	rest, ok := strings.CutPrefix(string(line), "#!")
	if !ok {
		return "", false, nil
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return "", false, nil
	}
	if filepath.Base(fields[0]) != "env" {
		return fields[0], false, nil
	}
	for _, arg := range fields[1:] {
		if !strings.HasPrefix(arg, "-") && !strings.Contains(arg, "=") {
			return arg, true, nil
		}
	}
	return "", false, nil
}
