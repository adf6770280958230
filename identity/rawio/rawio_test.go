package rawio_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport.dev/identity/rawio"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pairs are both ends of a connection of each kind.
func pairs(t *testing.T) map[string][2]net.Conn {
	t.Helper()
	all := map[string][2]net.Conn{}
	for network, address := range map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(t.TempDir(), "s")} {
		l, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		near, err := net.Dial(network, l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		far, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		all[network] = [2]net.Conn{rawio.New(near), rawio.New(far)}
		t.Cleanup(func() { near.Close(); far.Close() })
	}
	return all
}

func TestWholeMessages(t *testing.T) {
	for network, c := range pairs(t) {
		if _, ok := c[0].(*rawio.Conn); !ok {
			t.Fatalf("%s: a %T", network, c[0])
		}
		sent := bytes.Repeat([]byte("0123456789abcdef"), 256<<10) // far more than a socket takes at once
		wrote := make(chan int, 1)
		go func() {
			n, _ := c[0].Write(sent)
			c[0].Close()
			wrote <- n
		}()
		got, err := io.ReadAll(c[1])
		if err != nil || !bytes.Equal(got, sent) || <-wrote != len(sent) {
			t.Errorf("%s: read %d of %d bytes: %v", network, len(got), len(sent), err)
		}
		if n, err := c[1].Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("%s: after the end: %d, %v", network, n, err)
		}
	}
}

// What a write reports is what the kernel took, no byte more or less: a claim that nothing was sent rests on it.
func TestCountsWhatTheKernelTook(t *testing.T) {
	for network, c := range pairs(t) {
		if err := c[0].SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, err := c[0].Write(make([]byte, 64<<20))
		if !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 {
			t.Errorf("%s: %d bytes, %v", network, n, err)
		}
		c[0].Close()
		if got, err := io.ReadAll(c[1]); err != nil || len(got) != n {
			t.Errorf("%s: %d bytes were reported, %d came: %v", network, n, len(got), err)
		}
		if n, err := c[0].Write([]byte("x")); n != 0 || !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: closed: %d, %v", network, n, err)
		}
		if n, err := c[0].Read(make([]byte, 1)); n != 0 || !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: closed: %d, %v", network, n, err)
		}
	}
}

func TestDeadlineOfARead(t *testing.T) {
	for network, c := range pairs(t) {
		if err := c[0].SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
			t.Fatal(err)
		}
		var timeout net.Error
		if _, err := c[0].Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("%s: %v", network, err)
		}
	}
}

func TestWriteToAPeerThatIsGone(t *testing.T) {
	for network, c := range pairs(t) {
		c[1].Close()
		var err error
		for range 1000 { // TCP learns of it with the answer to the first
			if _, err = c[0].Write([]byte("x")); err != nil {
				break
			}
		}
		var op *net.OpError
		if !errors.As(err, &op) || op.Op != "write" {
			t.Errorf("%s: %v", network, err)
		}
	}
}

func TestOthersStayAsTheyAre(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if rawio.New(a) != a {
		t.Error("a pipe has no descriptor")
	}
}

// A reset is said once by the kernel; it must not read as an ordinary end.
func TestResetIsNoEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if err := far.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	far.Close()
	if n, err := rawio.New(near).Read(make([]byte, 1)); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%d, %v", n, err)
	}
}
