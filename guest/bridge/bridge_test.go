package bridge

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start serves a bridge to socket until the test ends.
func start(t *testing.T, socket string) *Bridge {
	t.Helper()
	b, err := Listen(0, socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return b
}

// host is the other side: it answers every connection with handle until closed.
type host struct {
	ln *net.UnixListener
	wg sync.WaitGroup
}

func bind(t *testing.T, socket string, handle func(*net.UnixConn)) *host {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	h := &host{ln: ln}
	h.wg.Go(func() {
		for {
			c, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			h.wg.Go(func() {
				defer c.Close()
				handle(c)
			})
		}
	})
	t.Cleanup(h.close)
	return h
}

func (h *host) close() { h.ln.Close(); h.wg.Wait() }

func connect(t *testing.T, b *Bridge) *net.TCPConn {
	t.Helper()
	c, err := net.DialTCP("tcp4", nil, b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func echo(c *net.UnixConn) { io.Copy(c, c) }

func socketIn(t *testing.T) string { return filepath.Join(t.TempDir(), "bridge.sock") }

func TestListensOnLoopbackOnly(t *testing.T) {
	b := start(t, socketIn(t))
	if ip := b.Addr().IP; !ip.Equal(net.IPv4(127, 0, 0, 1)) {
		t.Fatalf("listens on %v", ip)
	}
	if _, err := Listen(b.Addr().Port, "x"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("a second bridge on the same port: %v", err)
	}
}

func TestBytesPassUntouched(t *testing.T) {
	socket := socketIn(t)
	bind(t, socket, echo)
	b := start(t, socket)
	body := make([]byte, 3<<20)
	rand.Read(body)
	// What asks an HTTP proxy for another destination is only bytes here.
	sent := append([]byte("CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n"), body...)
	c := connect(t, b)
	go func() {
		c.Write(sent)
		c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, sent) {
		t.Fatalf("%d bytes came back, %d were sent, or they differ", len(got), len(sent))
	}
}

func TestHalfClose(t *testing.T) {
	t.Run("client ends first", func(t *testing.T) {
		socket := socketIn(t)
		bind(t, socket, func(c *net.UnixConn) {
			all, _ := io.ReadAll(c) // returns only if the end of the request was passed on
			io.WriteString(c, "got "+string(all))
		})
		c := connect(t, start(t, socket))
		io.WriteString(c, "request")
		c.CloseWrite()
		if got, err := io.ReadAll(c); err != nil || string(got) != "got request" {
			t.Fatalf("%q, %v", got, err)
		}
	})
	t.Run("host ends first", func(t *testing.T) {
		socket := socketIn(t)
		late := make(chan string, 1)
		bind(t, socket, func(c *net.UnixConn) {
			io.WriteString(c, "answer")
			c.CloseWrite()
			all, _ := io.ReadAll(c)
			late <- string(all)
		})
		c := connect(t, start(t, socket))
		if got, err := io.ReadAll(c); err != nil || string(got) != "answer" {
			t.Fatalf("%q, %v", got, err)
		}
		io.WriteString(c, "still writing")
		c.CloseWrite()
		if got := <-late; got != "still writing" {
			t.Fatalf("host read %q", got)
		}
	})
}

// A client that vanishes must reach the host as the end of the connection, so that nothing upstream goes on for nobody.
func TestClientResetReachesTheHost(t *testing.T) {
	socket := socketIn(t)
	gone := make(chan error, 1)
	bind(t, socket, func(c *net.UnixConn) {
		io.ReadFull(c, make([]byte, 5))
		_, err := c.Read(make([]byte, 1))
		gone <- err
	})
	c := connect(t, start(t, socket))
	io.WriteString(c, "hello")
	c.SetLinger(0)
	c.Close()
	if err := <-gone; err == nil {
		t.Fatal("the host still reads after the client reset")
	}
}

func TestHostBindsAgain(t *testing.T) {
	socket := socketIn(t)
	first := bind(t, socket, func(c *net.UnixConn) { io.WriteString(c, "first") })
	b := start(t, socket)
	if got, _ := io.ReadAll(connect(t, b)); string(got) != "first" {
		t.Fatalf("got %q", got)
	}
	first.close()
	// The connection is made while nothing listens; it is served once the host is back.
	c := connect(t, b)
	bind(t, socket, func(c *net.UnixConn) { io.WriteString(c, "second") })
	if got, err := io.ReadAll(c); err != nil || string(got) != "second" {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestManyConnectionsAreBounded(t *testing.T) {
	socket := socketIn(t)
	var mu sync.Mutex
	open, most := 0, 0
	full := make(chan struct{})
	closeFull := sync.OnceFunc(func() { close(full) })
	release := make(chan struct{})
	bind(t, socket, func(c *net.UnixConn) {
		mu.Lock()
		open++
		most = max(most, open)
		if open == MaxConns {
			closeFull()
		}
		mu.Unlock()
		<-release
		io.WriteString(c, "x")
		mu.Lock()
		open--
		mu.Unlock()
	})
	b := start(t, socket)
	const extra = 20
	conns := make([]*net.TCPConn, MaxConns+extra)
	for i := range conns {
		conns[i] = connect(t, b)
	}
	<-full
	close(release)
	for i, c := range conns {
		if got, err := io.ReadAll(c); err != nil || string(got) != "x" {
			t.Fatalf("connection %d: %q, %v", i, got, err)
		}
		c.Close()
	}
	if most > MaxConns {
		t.Fatalf("%d connections at once, the bound is %d", most, MaxConns)
	}
}

func TestServeEndsWithItsConnections(t *testing.T) {
	socket := socketIn(t)
	bind(t, socket, echo)
	b, err := Listen(0, socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Serve(ctx) }()
	c := connect(t, b)
	io.WriteString(c, "x")
	io.ReadFull(c, make([]byte, 1))
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Fatal("the connection outlived Serve")
	}
}

// After traffic, every socket of this process is either a Unix socket or has both ends on 127.0.0.1 (I2). The client's ends are in
// this process too, so nothing is missed by looking at one side.
func TestNoSocketLeavesTheLoopback(t *testing.T) {
	socket := socketIn(t)
	bind(t, socket, echo)
	b := start(t, socket)
	c := connect(t, b)
	io.WriteString(c, "GET http://192.0.2.1/ HTTP/1.1\r\n\r\n")
	io.ReadFull(c, make([]byte, 10))

	mine := map[string]bool{}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil {
			if inode, ok := strings.CutPrefix(to, "socket:["); ok {
				mine[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	seen := 0
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6", "raw", "raw6"} {
		f, err := os.Open("/proc/self/net/" + table)
		if err != nil {
			continue // a kernel without that family has no such sockets
		}
		for sc := bufio.NewScanner(f); sc.Scan(); {
			col := strings.Fields(sc.Text())
			if len(col) < 10 || !mine[col[9]] {
				continue
			}
			seen++
			const loopback = "0100007F:" // 127.0.0.1 as the kernel prints it on a little-endian machine
			listening := col[2] == "00000000:0000"
			if table != "tcp" || !strings.HasPrefix(col[1], loopback) || (!listening && !strings.HasPrefix(col[2], loopback)) {
				t.Errorf("%s socket %s -> %s", table, col[1], col[2])
			}
		}
		f.Close()
	}
	if seen < 3 {
		t.Fatalf("saw %d sockets of this process, expected the listener and both ends of a connection", seen)
	}
}
