package relay

import (
	"encoding/binary"
	"os"
	"sync"
	"syscall"
)

// watch announces new names in results/ and progress/. It is a hint and nothing else: where it cannot be had it stays silent, and polling does
// the work.
type watch struct {
	file          *os.File // nil: no watch to be had
	announce      func(name string, progress bool)
	results       string
	progressDir   string
	mu            sync.Mutex
	resultsWatch  int32
	progressWatch int32
	done          chan struct{}
}

// watchMask: a result arrives by link or rename, progress by rename.
const watchMask = syscall.IN_CREATE | syscall.IN_MOVED_TO | syscall.IN_ONLYDIR

func newWatch(results, progress string, announce func(name string, progress bool)) *watch {
	w := &watch{announce: announce, results: results, progressDir: progress, resultsWatch: -1, progressWatch: -1, done: make(chan struct{})}
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		close(w.done)
		return w
	}
	wd, err := syscall.InotifyAddWatch(fd, results, watchMask)
	if err != nil {
		_ = syscall.Close(fd)
		close(w.done)
		return w
	}
	w.resultsWatch = int32(wd)
	w.file = os.NewFile(uintptr(fd), "inotify")
	go w.run()
	return w
}

// progress adds progress/ to the watch, once.
func (w *watch) progress() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file != nil && w.progressWatch < 0 {
		w.progressWatch = w.add(w.progressDir)
	}
}

func (w *watch) add(dir string) int32 {
	wd := -1
	if raw, err := w.file.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			if n, err := syscall.InotifyAddWatch(int(fd), dir, watchMask); err == nil {
				wd = n
			}
		})
	}
	return int32(wd)
}

func (w *watch) close() error {
	if w.file == nil {
		return nil
	}
	err := w.file.Close()
	<-w.done
	return err
}

func (w *watch) run() {
	defer close(w.done)
	buffer := make([]byte, 4096)
	for {
		n, err := w.file.Read(buffer)
		if err != nil {
			return
		}
		for rest := buffer[:n]; len(rest) >= syscall.SizeofInotifyEvent; {
			wd := int32(binary.NativeEndian.Uint32(rest))
			mask := binary.NativeEndian.Uint32(rest[4:])
			size := syscall.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(rest[12:]))
			if size > len(rest) {
				break
			}
			w.event(wd, mask, cString(rest[syscall.SizeofInotifyEvent:size]))
			rest = rest[size:]
		}
	}
}

func (w *watch) event(wd int32, mask uint32, name string) {
	w.mu.Lock()
	progress := wd == w.progressWatch
	if mask&syscall.IN_IGNORED != 0 { // the directory went: a resumed session has a new one
		if progress {
			w.progressWatch = w.add(w.progressDir)
		} else if wd == w.resultsWatch {
			w.resultsWatch = w.add(w.results)
		}
	}
	w.mu.Unlock()
	if mask&(syscall.IN_Q_OVERFLOW|syscall.IN_IGNORED) != 0 {
		w.announce("", false)
		return
	}
	w.announce(name, progress)
}

func cString(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
