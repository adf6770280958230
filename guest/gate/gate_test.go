package gate

import (
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTables(t *testing.T) {
	const dev = "Inter-|   Receive                                                |  Transmit\n" +
		" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n" +
		"    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0\n" +
		"eth0.1:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0\n"
	if got := interfaces([]byte(dev)); !slices.Equal(got, []string{"eth0.1", "lo"}) {
		t.Errorf("interfaces %q", got)
	}
	if got := interfaces(nil); got != nil {
		t.Errorf("interfaces of nothing: %q", got)
	}
	const route4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\neth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\nlo\t0000007F\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n"
	if got := routes([]byte(route4), 0, 1); got != 1 {
		t.Errorf("%d routes", got)
	}
	const route6 = "00000000000000000000000000000001 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000002 00000000 80200001       lo\n" +
		"fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n"
	if got := routes([]byte(route6), 9, 0); got != 1 {
		t.Errorf("%d IPv6 routes", got)
	}
	conf := "# nameserver 9.9.9.9\nsearch example\nnameserver 127.0.0.53\nnameserver ::1\nnameserver 10.0.0.2\nnameserver fd00::1\nnameserver\n"
	if got := resolvers([]byte(conf)); !slices.Equal(got, []string{"10.0.0.2", "fd00::1"}) {
		t.Errorf("resolvers %q", got)
	}
}

// The addresses in text and those in bytes are the same, and a record carries them.
func TestQuestions(t *testing.T) {
	ask := questions([]string{"10.0.0.2", "fd00::1", "300.1.1.1", "1.2.3"})
	if last := ask[len(ask)-1]; last.how != "resolver" || last.to != "10.0.0.2:53" {
		t.Errorf("the resolver is not asked: %+v", last)
	}
	hows := map[string]bool{}
	for _, q := range ask {
		hows[q.how] = true
		var want net.IP
		var port int
		switch a := q.addr.(type) {
		case *syscall.SockaddrInet4:
			want, port = a.Addr[:], a.Port
		case *syscall.SockaddrInet6:
			want, port = a.Addr[:], a.Port
		}
		if got := (&net.TCPAddr{IP: want, Port: port}).String(); got != q.to {
			t.Errorf("%s: asks %s and says %s", q.how, got, q.to)
		}
		if (q.kind == syscall.SOCK_DGRAM) != (q.send != nil) {
			t.Errorf("%s: sends %q", q.how, q.send)
		}
	}
	for _, how := range []string{"tcp", "udp", "dns", "tcp6", "dns6", "metadata", "metadata6"} {
		if !hows[how] {
			t.Errorf("%s is not asked", how)
		}
	}
}

// Every outcome, on the loopback.
func TestAsking(t *testing.T) {
	answers, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer answers.Close()
	silent, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	echoes, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer echoes.Close()
	go func() {
		b := make([]byte, 16)
		if n, from, err := echoes.ReadFromUDP(b); err == nil {
			echoes.WriteToUDP(b[:n], from)
		}
	}()
	gone, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	nobody := gone.Addr().(*net.TCPAddr).Port
	gone.Close()

	loopback := func(how string, port, kind int, send string) question {
		return question{how: how, addr: &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}, to: how, kind: kind, send: []byte(send)}
	}
	ask := []question{
		loopback("connects", answers.Addr().(*net.TCPAddr).Port, syscall.SOCK_STREAM, ""),
		loopback("refuses", nobody, syscall.SOCK_STREAM, ""),
		loopback("replies", echoes.LocalAddr().(*net.UDPAddr).Port, syscall.SOCK_DGRAM, "x"),
		loopback("is silent", silent.LocalAddr().(*net.UDPAddr).Port, syscall.SOCK_DGRAM, "x"),
		loopback("refuses a datagram", nobody, syscall.SOCK_DGRAM, "x"),
		{how: "no way", to: "x", kind: syscall.SOCK_STREAM, addr: &syscall.SockaddrInet4{Port: 1, Addr: [4]byte{255, 255, 255, 255}}},
	}
	got := map[string]relay.Got{}
	for _, a := range askAll(ask, false, 200*time.Millisecond) {
		got[a.How] = a.Got
	}
	want := map[string]relay.Got{
		"connects": relay.GotConnection, "refuses": relay.GotRefusal, "replies": relay.GotReply,
		"is silent": relay.GotSilence, "refuses a datagram": relay.GotRefusal, "no way": got["no way"],
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
	if got["no way"].Answers() {
		t.Errorf("a broadcast address answered: %s", got["no way"])
	}
	// Quietly, nothing arrives anywhere.
	for _, a := range askAll(ask[:4], true, 200*time.Millisecond) {
		if a.Got.Answers() {
			t.Errorf("%s answered a question that was not to be sent: %s", a.How, a.Got)
		}
	}
	marker, err := net.DialUDP("udp4", nil, silent.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer marker.Close()
	marker.Write([]byte("marker"))
	for _, want := range []string{"x", "marker"} { // one of the questions that were asked aloud, and nothing between
		b := make([]byte, 16)
		if n, _, err := silent.ReadFromUDP(b); err != nil || string(b[:n]) != want {
			t.Fatalf("%q arrived, %v", b[:n], err)
		}
	}
}

// What was found always fits the record, whatever machine the test runs on.
func TestLook(t *testing.T) {
	p := look()
	data, err := relay.AppendProbe(nil, p)
	if err != nil {
		t.Fatal(err)
	}
	if back, err := relay.ParseProbe(data); err != nil || !slices.Contains(back.Interfaces, "lo") {
		t.Errorf("%s: %v", data, err)
	}
	if ns := networkNamespace(); ns == "unknown" {
		t.Error("the network namespace has no identity")
	}
}

func TestVerdicts(t *testing.T) {
	for errno, want := range map[syscall.Errno]relay.Got{
		syscall.ECONNREFUSED: relay.GotRefusal, syscall.ECONNRESET: relay.GotRefusal, syscall.EPERM: relay.GotForbidden, syscall.EACCES: relay.GotForbidden,
		syscall.ETIMEDOUT: relay.GotSilence, syscall.EAGAIN: relay.GotSilence, syscall.ENETUNREACH: relay.GotUnreachable, syscall.EHOSTUNREACH: relay.GotUnreachable,
		syscall.ENETDOWN: relay.GotUnreachable, syscall.EADDRNOTAVAIL: relay.GotUnreachable,
	} {
		if got := verdict(errno); got != want {
			t.Errorf("%v: %s", errno, got)
		}
	}
}

func TestLookUp(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, perm os.FileMode) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), perm); err != nil {
			t.Fatal(err)
		}
	}
	write("runs", 0o755)
	write("does-not", 0o644)
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", "/nonexistent:"+dir)
	tests := []struct {
		command []string
		path    string
		code    int
	}{
		{[]string{"runs", "x"}, filepath.Join(dir, "runs"), 0},
		{[]string{filepath.Join(dir, "runs")}, filepath.Join(dir, "runs"), 0},
		{[]string{"does-not"}, "", exitNotExecutable},
		{[]string{"folder"}, "", exitNotExecutable},
		{[]string{"nothing"}, "", exitNotFound},
		{[]string{"/nonexistent/x"}, "/nonexistent/x", exitNotFound},
		{[]string{""}, "", exitNotRun},
		{nil, "", exitNotRun},
	}
	for _, tt := range tests {
		path, err := lookUp(tt.command)
		code := 0
		if err != nil {
			code = codeOf(err)
			if errs.CodeOf(err) == errs.Internal {
				t.Errorf("%q: no message for a person: %v", tt.command, err)
			}
		}
		if path != tt.path || code != tt.code {
			t.Errorf("%q: %q and %d, want %q and %d", tt.command, path, code, tt.path, tt.code)
		}
	}
}

func TestExitCodes(t *testing.T) {
	for status, want := range map[syscall.WaitStatus]int{0: 0, 3 << 8: 3, 255 << 8: 255, 9: 137, 15: 143, 0x80 | 11: 139} {
		if got := exitCode(status); got != want {
			t.Errorf("%#x: %d, want %d", uint32(status), got, want)
		}
	}
	if got := codeOf(stopped{syscall.SIGTERM}); got != 143 {
		t.Errorf("ended while shut: %d", got)
	}
}

func TestBridgePause(t *testing.T) {
	if bridgePause(time.Hour) != 0 || bridgePause(time.Millisecond) != bridgePauseMost {
		t.Error("a bridge that ran is back at once, one that cannot run is not tried all the time")
	}
}
