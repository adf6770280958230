package main

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/test/fixture/wire"
)

// look says what the machine is and how quiet it is.
func look() (machine, error) {
	m := machine{At: time.Now().UTC().Truncate(time.Second), Processors: runtime.NumCPU(), Go: runtime.Version(), Load: loadAverage()}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return m, err
	}
	m.Kernel = unix.ByteSliceToString(u.Release[:])
	busy, total := ticks()
	timer := time.NewTimer(time.Second)
	<-timer.C
	busy2, total2 := ticks()
	if total2 > total {
		m.Busy = 100 * (busy2 - busy) / (total2 - total)
	}
	wake, err := threadWake()
	m.Wake = wake
	return m, err
}

// threadWake is what it takes one thread to wake another, in microseconds: half a round trip over two pipes.
func threadWake() (float64, error) {
	var there, back [2]int
	if err := unix.Pipe(there[:]); err != nil {
		return 0, err
	}
	if err := unix.Pipe(back[:]); err != nil {
		return 0, err
	}
	defer func() {
		for _, fd := range []int{there[0], there[1], back[0], back[1]} {
			unix.Close(fd) //nolint:errcheck // a pipe
		}
	}()
	const rounds = 2000
	go func() {
		b := make([]byte, 1)
		for range rounds {
			if n, err := unix.Read(there[0], b); err != nil || n != 1 {
				return
			}
			if _, err := unix.Write(back[1], b); err != nil {
				return
			}
		}
	}()
	b := make([]byte, 1)
	times := make(sample, 0, rounds)
	for range rounds {
		began := time.Now()
		if _, err := unix.Write(there[1], b); err != nil {
			return 0, err
		}
		if _, err := unix.Read(back[0], b); err != nil {
			return 0, err
		}
		times = append(times, time.Since(began))
	}
	return float64(times.p50().Nanoseconds()) / 2000, nil
}

// fsync is what the disk asks for one fresh page, as the store writes it.
func fsync(dir string, n int) (sample, error) {
	f, err := os.OpenFile(filepath.Join(dir, "fsync"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	page := make([]byte, 4096)
	times := make(sample, 0, n)
	for i := range n {
		began := time.Now()
		if _, err := f.WriteAt(page, int64(i%64)*4096); err != nil {
			return nil, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return nil, err
		}
		times = append(times, time.Since(began))
	}
	return times, nil
}

// handshake is a TLS handshake with a server of this machine, from a new connection on, as a write's connection needs one.
func handshake(ctx context.Context, n int) (sample, error) {
	authority, err := wire.NewAuthority()
	if err != nil {
		return nil, err
	}
	s, err := wire.Listen(wire.Options{Address: "127.0.0.1:0", Name: "tls", Authority: authority, Recorder: wire.NewRecorder(wire.RecorderOptions{Records: -1})},
		func(ex *wire.Exchange) { ex.Respond(200, nil, nil) })
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return sequential(ctx, n, func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.Addr().String())
		if err != nil {
			return err
		}
		defer c.Close()
		return tls.Client(c, &tls.Config{RootCAs: authority.Pool(), ServerName: "127.0.0.1", NextProtos: []string{"http/1.1"}}).HandshakeContext(ctx)
	})
}
