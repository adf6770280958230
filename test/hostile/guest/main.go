// Command guest is a hostile program in a sandbox: it misuses the relay's directories, and the sandbox, as its first argument says, for as long as
// its second one says. It prints one line when it begins, and one with what it did when it ends.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"sallyport.dev/relay"
)

const (
	inDir  = "/run/sallyport/in"
	outDir = "/run/sallyport/out"
)

// attacker is what an attack works with.
type attacker struct {
	relay.Session
	guest  *relay.Guest
	args   []string     // beyond the name and the time
	did    atomic.Int64 // what was done, each in its attack's own unit
	failed atomic.Int64 // what the sandbox or the relay did not let it do
	got    atomic.Value // a string: what it learned
}

var attacks = map[string]func(context.Context, *attacker){
	"flood":       flood,
	"publish":     publish,
	"notes":       notes,
	"lies":        lies,
	"links":       links,
	"swaps":       swaps,
	"directories": directories,
	"disk":        disk,
	"forks":       forks,
	"watches":     watches,
	"forged":      forged,
	"memory":      memory,
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "burn" { // a child of forks
		burn()
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) < 3 {
		return fmt.Errorf("usage: guest ATTACK TIME [ARGUMENTS]")
	}
	attack := attacks[os.Args[1]]
	if attack == nil {
		return fmt.Errorf("no attack %q", os.Args[1])
	}
	span, err := time.ParseDuration(os.Args[2])
	if err != nil {
		return err
	}
	a := &attacker{guest: relay.NewGuest(inDir, outDir), args: os.Args[3:]}
	defer a.guest.Close() //nolint:errcheck // it ends
	if a.Session, err = a.guest.Session(); err != nil {
		return err
	}
	fmt.Printf("{\"session\":%q}\n", a.Session.Session)
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil { // until it is told to begin
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), span)
	defer cancel()
	attack(ctx, a)
	out, err := json.Marshal(map[string]any{"did": a.did.Load(), "failed": a.failed.Load(), "got": a.got.Load()})
	if err != nil {
		return err
	}
	fmt.Printf("%s\n", out)
	return nil
}

// count counts one attempt.
func (a *attacker) count(err error) {
	if a.did.Add(1); err != nil {
		a.failed.Add(1)
	}
}

// name is a file of new/.
func name(file string) string { return filepath.Join(outDir, relay.NewDir, file) }

// call is a read that a well-behaved guest would make.
func (a *attacker) call(text string) *relay.Call {
	return &relay.Call{
		V: 1, Session: a.Session.Session, Epoch: a.Epoch, Shim: relay.NewID(), ID: relay.NewID(), Tool: "tracker_echo",
		Arguments: fmt.Appendf(nil, `{"text":%q}`, text), TimeoutMS: 10_000,
	}
}

// put publishes a record as it is, valid or not.
func put(file string, record []byte) error {
	return relay.Publish(filepath.Join(outDir, relay.TmpDir, relay.NewID()), name(file), record)
}
