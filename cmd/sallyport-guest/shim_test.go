package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport.dev/guest/fakehost"
	"sallyport.dev/relay"
)

const hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"tester","version":"1"}}}` + "\n"

func call(id int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":{}}}`+"\n", id)
}

func calls(n int) func(fakehost.Seen) bool {
	return func(s fakehost.Seen) bool { return len(s.Calls) >= n }
}

func TestShimServes(t *testing.T) {
	h := session(t, func(h *fakehost.Host, c fakehost.Call) {
		if err := h.Answer(c, `{"content":[]}`); err != nil {
			t.Error(err)
		}
	})
	r := start(t, nil, programs.guest, "shim", "--in", h.In(), "--out", h.Out())
	io.WriteString(r.in, hello)
	r.out.wait(t, `"serverInfo":{"name":"sallyport","title":"Sallyport","version":"test"}`, 1)
	io.WriteString(r.in, call(1))
	r.out.wait(t, `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`, 1)
	seen(t, h, func(s fakehost.Seen) bool { return len(s.Acks) == 1 })
	r.in.Close()
	if code := r.code(); code != 0 || r.err.String() != "" {
		t.Errorf("exit code %d, says %q", code, r.err)
	}
}

// Each way in which harnesses stop their servers detaches what waits, even where the signal comes several times and the pipe stays open.
func TestShimIsStopped(t *testing.T) {
	ways := map[string]func(r *running){
		"closed pipe": func(r *running) { r.in.Close() },
		"SIGTERM":     func(r *running) { r.signal(syscall.SIGTERM) },
		"SIGHUP":      func(r *running) { r.signal(syscall.SIGHUP) },
		"SIGINT, often": func(r *running) {
			for range 20 {
				_ = r.cmd.Process.Signal(syscall.SIGINT) // it may have ended by now
			}
		},
	}
	for name, stop := range ways {
		t.Run(name, func(t *testing.T) {
			h := session(t, nil)
			r := start(t, nil, programs.guest, "shim", "--in", h.In(), "--out", h.Out())
			io.WriteString(r.in, hello+call(1)+call(2))
			seen(t, h, calls(2))
			stop(r)
			if code := r.code(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			s := seen(t, h, func(s fakehost.Seen) bool { return len(s.Cancels) == 2 })
			for _, c := range s.Cancels {
				if c.Why != relay.WhyClosed {
					t.Errorf("cancelled by %s", c.Why)
				}
			}
		})
	}
}

// A wrapper's streams are the same open files as ours: they are as they were once we have ended. One that is non-blocking, as a shim that was killed
// leaves it for the next one on the same pipe, is served like any other.
func TestShimGivesItsStreamsBack(t *testing.T) {
	for name, flags := range map[string]int{"blocking": 0, "non-blocking": unix.O_NONBLOCK} {
		t.Run(name, func(t *testing.T) { streamsAreGivenBack(t, flags) })
	}
}

func streamsAreGivenBack(t *testing.T, given int) {
	var in, out [2]int
	for _, p := range []*[2]int{&in, &out} {
		if err := syscall.Pipe2(p[:], syscall.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
	}
	for _, fd := range []int{in[0], out[1]} {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, given); err != nil {
			t.Fatal(err)
		}
	}
	defer syscall.Close(in[0])
	defer syscall.Close(out[0])
	defer syscall.Close(out[1])
	pid, err := syscall.ForkExec(programs.guest, []string{programs.guest, "shim", "--in", "/nonexistent", "--out", "/nonexistent"}, &syscall.ProcAttr{Files: []uintptr{uintptr(in[0]), uintptr(out[1]), 2}})
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	for range 100 { // between two of them it waits
		if _, err := syscall.Write(in[1], []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`+"\n")); err != nil {
			t.Fatal(err)
		}
		if n, err := syscall.Read(out[0], b); err != nil || !strings.Contains(string(b[:n]), `"result":{}`) {
			t.Fatalf("%q, %v", b[:n], err)
		}
	}
	syscall.Close(in[1])
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || status != 0 {
		t.Fatalf("%#x, %v", status, err)
	}
	for _, fd := range []int{in[0], out[1]} {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK != given {
			t.Errorf("descriptor %d is left with flags %#x, %v", fd, flags, err)
		}
	}
}

// A harness that is killed says nothing, and somebody else may hold its end of the pipe.
func TestShimDiesWithItsParent(t *testing.T) {
	h := session(t, nil)
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer inW.Close()
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer outR.Close()
	parent := start(t, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{inR, outW} }, append(self(t, "parent"), programs.guest, "shim", "--in", h.In(), "--out", h.Out())...)
	inR.Close()
	outW.Close()
	io.WriteString(inW, hello+call(1))
	seen(t, h, calls(1))
	parent.out.wait(t, "\n", 1)
	pid, err := strconv.Atoi(strings.TrimSpace(parent.out.String()))
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(parent.in, "x") // it kills itself
	s := seen(t, h, func(s fakehost.Seen) bool { return len(s.Cancels) == 1 })
	if s.Cancels[0].Why != relay.WhyClosed {
		t.Errorf("cancelled by %s", s.Cancels[0].Why)
	}
	gone(t, pid)
}

// The kernel tells of the death of the thread that started a process; a harness whose thread ended is still there.
func TestShimOutlivesItsParentsThread(t *testing.T) {
	h := session(t, func(h *fakehost.Host, c fakehost.Call) {
		if err := h.Answer(c, `{"content":[]}`); err != nil {
			t.Error(err)
		}
	})
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer inW.Close()
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer outR.Close()
	lines := bufio.NewReader(outR)
	parent := start(t, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{inR, outW} }, append(self(t, "thread"), programs.guest, "shim", "--in", h.In(), "--out", h.Out())...)
	inR.Close()
	outW.Close()
	parent.out.wait(t, "thread gone", 1)
	io.WriteString(inW, hello)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		io.WriteString(inW, call(i+1))
		if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, `"result":{"content":[]}`) {
			t.Fatalf("%q, %v", line, err)
		}
	}
	seen(t, h, func(s fakehost.Seen) bool { return len(s.Acks) == 3 })
	if cancels := h.Seen().Cancels; len(cancels) > 0 {
		t.Errorf("it took its harness for dead: %+v", cancels)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"nothing"}, {"shim", "--nothing"}, {"shim", "x"}, {"gate"}, {"gate", "--wait", "0s", "true"}, {"gate", "--grace", "x", "true"}} {
		r := start(t, nil, append([]string{programs.guest}, args...)...)
		if code := r.code(); code != 2 || !strings.Contains(r.err.String(), "usage:") || r.out.String() != "" {
			t.Errorf("%q: exit code %d, %q", args, code, r.err)
		}
	}
	if r := start(t, nil, programs.guest, "version"); r.code() != 0 || r.out.String() != "test\n" {
		t.Errorf("version: %q", r.out)
	}
	if r := start(t, nil, programs.guest, "help"); r.code() != 0 || !strings.Contains(r.out.String(), "usage:") {
		t.Errorf("help: %q", r.out)
	}
	for _, args := range [][]string{{"x"}, {"--port", "99999"}, {"--port", "x"}} {
		if r := start(t, nil, append([]string{programs.bridge}, args...)...); r.code() != 2 || !strings.Contains(r.err.String(), "usage:") {
			t.Errorf("bridge %q: %q", args, r.err)
		}
	}
}

// BenchmarkSpawn measures from fork to the answer of initialize, with the files of a session in place.
func BenchmarkSpawn(b *testing.B) {
	h, err := fakehost.New(b.TempDir(), [][]byte{[]byte(`{"name":"echo","inputSchema":{"type":"object"}}`)}, nil)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		cmd := exec.Command(programs.guest, "shim", "--in", h.In(), "--out", h.Out())
		in, err := cmd.StdinPipe()
		if err != nil {
			b.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		io.WriteString(in, hello)
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		in.Close()
		if err := cmd.Wait(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkCalls runs calls one after another through the program and an in-process host, and reports the program's memory before and after.
func BenchmarkCalls(b *testing.B) {
	h, err := fakehost.New(b.TempDir(), [][]byte{[]byte(`{"name":"echo","inputSchema":{"type":"object"}}`)}, func(h *fakehost.Host, c fakehost.Call) {
		if err := h.Answer(c, `{"content":[]}`); err != nil {
			b.Error(err)
		}
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := h.Start(); err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	cmd := exec.Command(programs.guest, "shim", "--in", h.In(), "--out", h.Out())
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	lines := bufio.NewReader(out)
	ask := func(line string) {
		io.WriteString(in, line)
		if _, err := lines.ReadString('\n'); err != nil {
			b.Fatal(err)
		}
	}
	ask(hello)
	idle := resident(b, cmd.Process.Pid)
	n := 0
	for b.Loop() {
		n++
		ask(call(n))
	}
	b.ReportMetric(idle, "idle-MiB")
	b.ReportMetric(resident(b, cmd.Process.Pid), "after-MiB")
	in.Close()
	if err := cmd.Wait(); err != nil {
		b.Fatal(err)
	}
}

func resident(b *testing.B, pid int) float64 {
	b.Helper()
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			if err != nil {
				b.Fatal(err)
			}
			return kib / 1024
		}
	}
	b.Fatal("no VmRSS")
	return 0
}

func BenchmarkSize(b *testing.B) {
	for b.Loop() {
	}
	for name, path := range map[string]string{"guest-MB": programs.guest, "bridge-MB": programs.bridge} {
		st, err := os.Stat(path)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(st.Size())/1e6, name)
	}
}
