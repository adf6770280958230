package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"sallyport.dev/guest/gate"
	"sallyport.dev/relay"
)

const gateUsage = `usage: sallyport-guest gate [options] [--] CMD [ARG …]
  --in DIR --out DIR   the halves of the relay directory
  --bridge PATH        the bridge to start; default IN/bin/sallyport-bridge
  --port N             where the bridge listens on the loopback (4180)
  --no-bridge          start none
  --wait DURATION      how long the host may take to open (1m)
  --grace DURATION     between a signal to end and SIGKILL (10s)
`

func runGate(args []string) int {
	flags := newFlags("gate")
	in, out := relayFlags(flags)
	bridge := flags.String("bridge", "", "")
	port := flags.Uint("port", 0, "")
	noBridge := flags.Bool("no-bridge", false, "")
	wait := flags.Duration("wait", gate.DefaultWait, "")
	grace := flags.Duration("grace", gate.DefaultGrace, "")
	if err := flags.Parse(args); err != nil || flags.NArg() == 0 || *wait <= 0 || *grace < 0 {
		fmt.Fprint(os.Stderr, gateUsage)
		return exitUsage
	}
	c := gate.Config{In: *in, Out: *out, Build: buildName(), Wait: *wait, Grace: *grace, Command: flags.Args()}
	if !*noBridge {
		path := *bridge
		if path == "" {
			path = filepath.Join(*in, relay.BinDir, "sallyport-bridge")
		}
		c.Bridge = []string{path, "--socket", filepath.Join(*in, relay.BridgeName)}
		if *port > 0 { // without a sandbox around it, a session needs a port of its own
			c.Bridge = append(c.Bridge, "--port", strconv.FormatUint(uint64(*port), 10))
		}
	}
	return gate.Run(c)
}
