package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// cmdTaken sets a variable to an address on which another program listens: taken VARIABLE
func cmdTaken(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: taken VARIABLE")
	}
	ts.Setenv(args[0], fmt.Sprintf("127.0.0.1:%d", worldOf(ts).fixture.Port()))
}

// cmdFree sets a variable to a port on which nobody listens now: free VARIABLE
func cmdFree(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: free VARIABLE")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Setenv(args[0], strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	ts.Check(l.Close())
}

// cmdGet makes what an address answers the last standard output: get URL
func cmdGet(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: get URL")
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: guard}
	r, err := client.Get(args[0])
	ts.Check(err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	ts.Check(err)
	fmt.Fprintf(ts.Stdout(), "%s", b)
}

// cmdSmallDisk mounts a disk of its own, private to this script: smalldisk DIRECTORY SIZE
func cmdSmallDisk(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: smalldisk DIRECTORY SIZE")
	}
	ts.Check(os.MkdirAll(args[0], 0o700))
	ts.Check(unix.Mount("tmpfs", args[0], "tmpfs", 0, "mode=0700,size="+args[1]))
	worldOf(ts).disk = args[0]
}

// cmdUnmount takes the small disk away, and all that is on it: unmount
func cmdUnmount(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: unmount")
	}
	w := worldOf(ts)
	ts.Check(unix.Unmount(w.disk, unix.MNT_DETACH))
	w.disk = ""
}

// cmdFillDisk writes until nothing more fits: filldisk FILE
func cmdFillDisk(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: filldisk FILE")
	}
	f, err := os.Create(args[0])
	ts.Check(err)
	defer f.Close()
	block := make([]byte, 1<<20)
	for len(block) > 0 {
		if _, err := f.Write(block); errors.Is(err, unix.ENOSPC) {
			block = block[:len(block)/2]
		} else {
			ts.Check(err)
		}
	}
}
