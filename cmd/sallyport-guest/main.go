// Command sallyport-guest is what runs in a sandbox: the MCP server that a harness starts (shim), and the sandbox's first process (gate).
//
// It uses the standard library alone and links no network package: what leaves the sandbox through it is files.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"sallyport.dev/guest/shim"
	"sallyport.dev/relay"
)

// build is set by the linker (-X main.build=…).
var build string

func main() { os.Exit(run(os.Args[1:])) }

const usage = `usage:
  sallyport-guest shim [--in DIR] [--out DIR]             serve MCP on standard input and output
  sallyport-guest gate [options] [--] CMD [ARG …]         be a sandbox's first process; run CMD once the host opened
  sallyport-guest version                                 print the build
`

// Exit codes: those of the shell for a program that cannot be run, and 125 where it never came to that.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func run(args []string) int {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return exitUsage
	}
	switch args[0] {
	case "shim":
		return runShim(args[1:])
	case "gate":
		return runGate(args[1:])
	case "version":
		fmt.Println(buildName())
		return exitOK
	case "help", "-h", "--help":
		fmt.Print(usage)
		return exitOK
	}
	fmt.Fprintf(os.Stderr, "sallyport-guest: unknown command %q\n%s", args[0], usage)
	return exitUsage
}

func runShim(args []string) int {
	flags := newFlags("shim")
	in, out := relayFlags(flags)
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		fmt.Fprint(os.Stderr, usage)
		return exitUsage
	}
	ctx, stop := shim.WhileWanted(context.Background())
	defer stop()
	stdin, stdout, restore := shim.Stdio()
	defer restore()
	err := shim.New(shim.Config{
		In: stdin, Out: stdout, Log: os.Stderr,
		RelayIn: *in, RelayOut: *out, Build: buildName(),
	}).Run(ctx)
	if err != nil {
		fmt.Fprintf(os.Stderr, "sallyport-guest shim: standard input cannot be read: %v\n", err)
		return exitFailed
	}
	return exitOK
}

func newFlags(name string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return flags
}

// relayFlags are the two halves of the relay directory: elsewhere than in a sandbox they lie where the host says.
func relayFlags(flags *flag.FlagSet) (in, out *string) {
	return flags.String("in", relay.GuestIn, ""), flags.String("out", relay.GuestOut, "")
}

// buildName names this build, in gate.json and to harnesses.
func buildName() string {
	if build != "" {
		return build
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "devel"
}
