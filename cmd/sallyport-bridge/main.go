// Command sallyport-bridge joins a sandbox's loopback to the host's one Unix socket. It is the only program of ours in a sandbox that links
// the network package, and it connects to nothing else.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"sallyport.dev/guest/bridge"
)

func main() { os.Exit(run(os.Args[1:])) }

const usage = "usage: sallyport-bridge [--port N] [--socket PATH] [--ready-fd N]\n"

func run(args []string) int {
	flags := flag.NewFlagSet("sallyport-bridge", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	port := flags.Int("port", bridge.DefaultPort, "")
	socket := flags.String("socket", bridge.DefaultSocket, "")
	ready := flags.Int("ready-fd", -1, "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 || *port < 0 || *port > 65535 {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	// The kernel takes 107 bytes for a socket's name; outside of a sandbox its path may have more.
	if err := os.Chdir(filepath.Dir(*socket)); err != nil {
		fmt.Fprintf(os.Stderr, "sallyport-bridge: the folder of --socket cannot be entered: %v\n", err)
		return 1
	}
	b, err := bridge.Listen(*port, filepath.Base(*socket))
	if err != nil {
		fmt.Fprintf(os.Stderr, "sallyport-bridge: %v; another program in this sandbox has the port\n", err)
		return 1
	}
	if *ready >= 0 {
		// One byte says that connections are accepted; whoever started us waits for it.
		f := os.NewFile(uintptr(*ready), "ready")
		_, _ = f.Write([]byte("\n"))
		_ = f.Close()
	}
	if err := b.Serve(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "sallyport-bridge: %v\n", err)
		return 1
	}
	return 0
}
