package hostside

import (
	"encoding/binary"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
)

// perShard sessions share one inotify instance. The kernel's default is 128 instances a user; one queue overflows for all of its sessions.
const perShard = 64

// watchMask: a record arrives by link or by rename; the rest says that the directory itself went.
const watchMask = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVE_SELF | unix.IN_DELETE_SELF | unix.IN_ONLYDIR

// shard is one inotify instance with its reader.
type shard struct {
	file *os.File
	done chan struct{}

	mu      sync.Mutex
	watches map[int32]*Watch
}

func newShard() (*shard, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, "no inotify instance is to be had; sessions are polled", err)
	}
	s := &shard{file: os.NewFile(uintptr(fd), "inotify"), done: make(chan struct{}), watches: make(map[int32]*Watch)}
	go s.run()
	return s, nil
}

// add arms w and reports whether there was room; w.mu is held.
func (s *shard) add(w *Watch) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.watches) >= perShard {
		return false, nil
	}
	wd, err := s.control(func(fd int) (int, error) { return unix.InotifyAddWatch(fd, w.box.watchPath(), watchMask) })
	if err != nil {
		return false, errs.Wrap(errs.Unavailable, "no inotify watch is to be had; the session is polled", err)
	}
	s.watches[int32(wd)] = w
	w.shard, w.wd = s, int32(wd)
	return true, nil
}

func (s *shard) remove(wd int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watches, wd)
	// It fails where the directory is gone: the kernel has removed the watch then.
	_, _ = s.control(func(fd int) (int, error) { return unix.InotifyRmWatch(fd, uint32(wd)) })
}

func (s *shard) control(call func(fd int) (int, error)) (n int, err error) {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	if ctlErr := raw.Control(func(fd uintptr) { n, err = call(int(fd)) }); ctlErr != nil {
		return 0, ctlErr
	}
	return n, err
}

func (s *shard) close() {
	_ = s.file.Close()
	<-s.done
}

// touched is what one read brought for one session.
type touched struct {
	watch  *Watch
	events int
	reason Wake
}

func (s *shard) run() {
	defer close(s.done)
	buffer := make([]byte, 16<<10)
	var all []touched
	for {
		n, err := s.file.Read(buffer)
		if err != nil {
			return
		}
		all = s.sort(buffer[:n], all[:0])
		for i := range all {
			all[i].watch.events(all[i].events, all[i].reason)
			all[i].watch = nil
		}
	}
}

// sort groups the events of one read by session. Names are not looked at: the directory is the truth.
func (s *shard) sort(events []byte, all []touched) []touched {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(events) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(events))
		mask := binary.NativeEndian.Uint32(events[4:])
		size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		if size > len(events) {
			break
		}
		events = events[size:]
		if mask&unix.IN_Q_OVERFLOW != 0 { // events of any session may be lost: list them all
			for _, w := range s.watches {
				all = touch(all, w, 0, WakeEvent|WakeCheck)
			}
			continue
		}
		w := s.watches[wd]
		if w == nil {
			continue
		}
		reason := WakeEvent
		if mask&(unix.IN_MOVE_SELF|unix.IN_DELETE_SELF|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0 {
			reason |= WakeCheck
		}
		all = touch(all, w, 1, reason)
	}
	return all
}

func touch(all []touched, w *Watch, events int, reason Wake) []touched {
	for i := len(all) - 1; i >= 0; i-- { // the last one most often: events come in bursts of a session
		if all[i].watch == w {
			all[i].events += events
			all[i].reason |= reason
			return all
		}
	}
	return append(all, touched{watch: w, events: events, reason: reason})
}
