// Command worker is a worker as it ships, for tests of what a confined one can do.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"sallyport.dev/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	cfg := worker.Config{
		State: os.Args[1], Token: os.Args[2], Build: "test", Confine: worker.Confinement(os.Args[3]),
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	for p := range strings.SplitSeq(os.Args[4], ",") {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		cfg.Ports = append(cfg.Ports, uint16(n))
	}
	if err := worker.Run(ctx, cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
