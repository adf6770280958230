package supervisor

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox"
)

// streams lie between the caller's streams and the sandbox's. The sandbox never gets one of the caller's: a terminal could be given input,
// a file read back or cut. Where the caller works on a terminal the sandbox gets one of ours; everything else is a pipe.
type streams struct {
	outer Stdio
	inner sandbox.Stdio
	pty   *os.File // our end of the terminal; nil without one
	saved *term.State
	feed  *os.File // our end of standard input without a terminal

	untidy bool // the agent had no chance to put the terminal right

	record io.Writer // a second reader of all output, which never blocks for long

	copies sync.WaitGroup // output, until the sandbox's ends are closed
	input  sync.WaitGroup
	wake   *os.File // closing it ends the copying of input
	once   sync.Once
}

func isTerminal(f *os.File) bool { return f != nil && term.IsTerminal(int(f.Fd())) }

// openStreams makes the sandbox's streams. Output is copied from the start, for what the driver prints before the agent runs; input once the
// agent does.
func openStreams(outer Stdio, record io.Writer) (_ *streams, err error) {
	s := &streams{outer: outer, record: record}
	defer func() {
		if err != nil {
			s.handOver()
			s.close()
			err = errs.Wrap(errs.Unavailable, "the agent's terminal could not be made", err)
		}
	}()
	if isTerminal(outer.In) && isTerminal(outer.Out) {
		ours, theirs, err := pty.Open()
		if err != nil {
			return nil, err
		}
		s.pty = ours
		s.inner = sandbox.Stdio{In: theirs, Out: theirs, Err: theirs}
		s.resize()
		s.copyOut(s.outer.Out, ours)
		if isTerminal(outer.Err) {
			return s, nil
		}
		s.inner.Err, err = s.output(outer.Err)
		return s, err
	}
	in, feed, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s.inner.In, s.feed = in, feed
	if s.inner.Out, err = s.output(outer.Out); err == nil {
		s.inner.Err, err = s.output(outer.Err)
	}
	return s, err
}

// output returns the sandbox's end of a pipe to one of the caller's streams.
func (s *streams) output(to *os.File) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s.copies.Go(func() {
		defer r.Close()
		if to == nil {
			_, _ = io.Copy(s.record, r)
			return
		}
		if _, err := io.Copy(to, io.TeeReader(r, s.record)); err != nil {
			_, _ = io.Copy(s.record, r) // the reader went away; the agent must not block for ever
		}
	})
	return w, nil
}

// copyOut copies a terminal's output. Its end reads as an input/output error once nobody holds the other side.
func (s *streams) copyOut(to, from *os.File) {
	s.copies.Go(func() {
		buffer := make([]byte, 32<<10)
		for {
			n, err := from.Read(buffer)
			if n > 0 {
				_, _ = s.record.Write(buffer[:n])
				_, _ = to.Write(buffer[:n])
			}
			if err != nil {
				return
			}
		}
	})
}

// inside are the streams that the sandbox gets.
func (s *streams) inside() sandbox.Stdio { return s.inner }

// handOver closes our copies of the sandbox's ends, so that their end is seen.
func (s *streams) handOver() {
	for _, f := range []*os.File{s.inner.In, s.inner.Out, s.inner.Err} {
		if f != nil {
			_ = f.Close() // a terminal stands here three times; closing it again does nothing
		}
	}
}

// connect gives the caller's input to the agent, and the caller's terminal into its hands.
func (s *streams) connect() error {
	woken, wake, err := os.Pipe()
	if err != nil {
		return errs.Wrap(errs.Unavailable, "the agent's input could not be connected", err)
	}
	s.wake = wake
	to := s.feed
	if s.pty != nil {
		to = s.pty
		if err := s.raw(); err != nil {
			_ = woken.Close()
			return err
		}
		s.resize()
	}
	if s.outer.In == nil {
		_ = woken.Close()
		if s.feed != nil {
			_ = s.feed.Close()
		}
		return nil
	}
	s.input.Go(func() {
		defer woken.Close()
		copyInput(to, s.outer.In, woken)
		if s.feed != nil {
			_ = s.feed.Close() // the agent reads the end
		}
	})
	return nil
}

// copyInput copies until the source ends or woken does. It never reads ahead of what there is, so that what is typed after the agent ended is
// left to whoever reads the terminal next.
func copyInput(to, from, woken *os.File) {
	buffer := make([]byte, 32<<10)
	for {
		fds := []unix.PollFd{{Fd: int32(from.Fd()), Events: unix.POLLIN}, {Fd: int32(woken.Fd()), Events: unix.POLLIN}}
		_, err := unix.Poll(fds, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || fds[1].Revents != 0 {
			return
		}
		n, err := unix.Read(int(from.Fd()), buffer)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// raw hands every key of the caller's terminal to the agent.
func (s *streams) raw() error {
	saved, err := term.MakeRaw(int(s.outer.In.Fd()))
	if err != nil {
		return errs.Wrap(errs.Unavailable, "the terminal could not be switched", err)
	}
	s.saved = saved
	return nil
}

// tidy leaves what a program on the whole screen may have switched on: its second screen, a hidden cursor, pasting and mouse modes, colours.
const tidy = "\x1b[?1049l\x1b[?25h\x1b[?2004l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[0m\r\n"

// restore gives the caller's terminal back as it was.
func (s *streams) restore() {
	if s.saved != nil {
		if s.untidy {
			_, _ = s.outer.Out.WriteString(tidy)
		}
		_ = term.Restore(int(s.outer.In.Fd()), s.saved)
		s.saved = nil
	}
}

// resize gives the agent's terminal the size of the caller's. The kernel tells the agent.
func (s *streams) resize() {
	if s.pty == nil {
		return
	}
	if size, err := pty.GetsizeFull(s.outer.Out); err == nil {
		_ = pty.Setsize(s.pty, size)
	}
}

// suspend stops this process as the shell asked, with the terminal as the shell expects it, and goes on when it is continued.
func (s *streams) suspend() {
	switched := s.saved != nil
	s.restore()
	// Another thread may take the stop, and this one run on for a moment: only the continuation says that it is over.
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, unix.SIGCONT)
	defer signal.Stop(continued)
	if unix.Kill(os.Getpid(), unix.SIGSTOP) == nil {
		<-continued
	}
	if switched {
		_ = s.raw()
		s.resize()
	}
}

// drain waits until all output was copied. It is for a sandbox that is proven gone: then its ends are closed.
func (s *streams) drain() { s.copies.Wait() }

// close ends the copying of input and gives the terminal back. Output that somebody could still write is left alone. It is safe to repeat.
func (s *streams) close() {
	s.once.Do(func() {
		s.restore()
		if s.wake != nil {
			_ = s.wake.Close()
		}
		s.input.Wait()
		if s.feed != nil {
			_ = s.feed.Close()
		}
		if s.pty != nil {
			_ = s.pty.Close()
		}
	})
}
