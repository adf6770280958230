// Command rig-attach is a supervisor without a sandbox, for tests: it opens sessions at a host as the process driver's, plays their first process
// (the gate record; it probes no network), and lets a shim of the host's own program serve MCP on this process's standard streams. What it opened
// it reports on descriptor 3, a line of JSON each. The sessions end with their shim, or with standard input.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/host/daemon"
	"sallyport.dev/host/gate"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/proc"
	"sallyport.dev/identity/unixsock"
	"sallyport.dev/relay"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "rig-attach:", err)
		os.Exit(1)
	}
}

type attach struct {
	state    string
	profile  string
	attended bool
	harness  string
	opened   *json.Encoder
	mu       sync.Mutex // of opened
}

func run(ctx context.Context, args []string) error {
	a := &attach{opened: json.NewEncoder(os.NewFile(3, "opened"))}
	flags := flag.NewFlagSet("rig-attach", flag.ContinueOnError)
	flags.StringVar(&a.state, "state", "", "state directory of the installation")
	flags.StringVar(&a.profile, "profile", "", "profile of the sessions")
	flags.BoolVar(&a.attended, "attended", false, "a person is there")
	flags.StringVar(&a.harness, "harness", "", "name of the harness")
	idle := flags.Int("idle", 0, "open so many sessions without a shim, and hold them until standard input ends")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *idle > 0 {
		return a.idle(ctx, *idle)
	}
	return a.serve(ctx)
}

// open opens one session.
func (a *attach) open(ctx context.Context) (*daemon.Opened, error) {
	socket := filepath.Join(a.state, "run", "control.sock")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return unixsock.Dial(ctx, socket)
	}}}
	api := sallyportv1connect.NewOperatorClient(connect.NewClient(connecthttp.NewTransport(client, "http://control")))
	ticket, err := api.SessionTicket(ctx, &sallyportv1.SessionTicketRequest{Profile: a.profile, Attended: a.attended})
	if err != nil {
		return nil, err
	}
	return daemon.Open(ctx, filepath.Join(a.state, "run", "host.sock"), daemon.Request{
		Profile: a.profile, Ticket: ticket.GetTicket(), Attended: a.attended, Harness: a.harness, Driver: "process", Insecure: true,
	})
}

// enter goes through a session's gate with a process as its sandbox.
func (a *attach) enter(ctx context.Context, s *daemon.Opened, pid int) (*gate.Client, error) {
	child, err := proc.Read(pid)
	if err != nil {
		return nil, err
	}
	net, err := proc.Namespace(pid, "net")
	if err != nil {
		return nil, err
	}
	probe, err := relay.AppendProbe(nil, &relay.Probe{Interfaces: []string{"lo"}, Asked: []relay.Asked{{How: "nothing", To: "127.0.0.1:9", Got: relay.GotForbidden}}})
	if err != nil {
		return nil, err
	}
	guest := relay.NewGuest(s.In, s.Out)
	defer guest.Close() //nolint:errcheck // it holds nothing
	if err := guest.Gate(&relay.Gate{Session: s.Session, Epoch: s.Epoch, Build: "rig", NetNS: net, Probe: probe}); err != nil {
		return nil, err
	}
	client, err := gate.NewClient(gate.Dial(s.Gate))
	if err != nil {
		return nil, err
	}
	err = client.Open(ctx, gate.Proof{
		Session: s.Session, Epoch: s.Epoch, Sandbox: sandbox.Process{PID: pid, Start: child.Start, Outer: pid, NetNS: net},
	})
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return client, a.opened.Encode(s)
}

// serve opens one session and lives as long as its shim.
func (a *attach) serve(ctx context.Context) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	shim := exec.Command(filepath.Join(s.In, relay.BinDir, "sallyport-guest"), "shim", "--in", s.In, "--out", s.Out) //nolint:noctx // ended below
	shim.Stdin, shim.Stdout, shim.Stderr = os.Stdin, os.Stdout, os.Stderr
	shim.Env = []string{}
	if err := shim.Start(); err != nil {
		return err
	}
	var ended error
	over := make(chan struct{})
	go func() {
		ended = shim.Wait()
		close(over)
	}()
	client, err := a.enter(ctx, s, shim.Process.Pid)
	if err != nil {
		err = errors.Join(err, shim.Process.Kill())
		<-over
		return err
	}
	told := true
	select {
	case <-over:
		told = false
	case <-client.Stops():
	case <-ctx.Done():
	}
	if told {
		shim.Process.Kill() //nolint:errcheck // it may have ended
		<-over
		ended = nil
	}
	client.Close(gate.Ended{Ran: true, Absent: true})
	return ended
}

// idle opens many sessions, with one process in place of all their sandboxes.
func (a *attach) idle(ctx context.Context, n int) error {
	cat := exec.Command("cat") //nolint:noctx // it ends with its standard input
	in, err := cat.StdinPipe()
	if err != nil {
		return err
	}
	if err := cat.Start(); err != nil {
		return err
	}
	defer cat.Wait() //nolint:errcheck // nothing depends on it
	defer in.Close()
	var (
		mu      sync.Mutex
		clients []*gate.Client
		failed  error
	)
	var work sync.WaitGroup
	next := make(chan struct{}, n)
	for range n {
		next <- struct{}{}
	}
	close(next)
	for range 8 {
		work.Go(func() {
			for range next {
				s, err := a.open(ctx)
				var client *gate.Client
				if err == nil {
					client, err = a.enter(ctx, s, cat.Process.Pid)
				}
				mu.Lock()
				if err != nil {
					failed = errors.Join(failed, err)
				} else {
					clients = append(clients, client)
				}
				stop := failed != nil
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	work.Wait()
	if failed == nil {
		go func() {
			<-ctx.Done()
			os.Stdin.Close()
		}()
		io.Copy(io.Discard, os.Stdin) //nolint:errcheck // its end is what is waited for
	}
	for _, c := range clients {
		c.Close(gate.Ended{Ran: true, Absent: true})
	}
	return failed
}
