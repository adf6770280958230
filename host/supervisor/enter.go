package supervisor

import (
	"context"
	"io"
	"syscall"

	"sallyport.dev/host/sandbox"
)

// Enter runs a further command in a live sandbox and returns its exit code. As for the agent itself, the command gets a terminal of ours where
// the caller works on one, and pipes otherwise; signals go to the command. A ctx that ends ends the command.
func Enter(ctx context.Context, in sandbox.Reached, c sandbox.Command, stdio Stdio) (code int, err error) {
	signals := catch()
	defer signals.release()
	streams, err := openStreams(stdio, io.Discard)
	if err != nil {
		return Failed, err
	}
	defer streams.close()
	running, err := in.Exec(ctx, c, streams.inside())
	streams.handOver()
	if err != nil {
		return Failed, err
	}
	ended := make(chan ending, 1)
	go func() {
		exit, err := running.Wait()
		ended <- ending{exit, err}
	}()
	if err := streams.connect(); err != nil {
		return Failed, err
	}
	done := ctx.Done()
	for {
		select {
		case e := <-ended:
			// What the command left behind in the sandbox may still write; who does not want to wait for it says so with a signal.
			copied := make(chan struct{})
			go func() {
				streams.drain()
				close(copied)
			}()
			select {
			case <-copied:
			case <-signals.all:
			case <-done:
			}
			return e.exit.Code, e.err
		case <-done:
			done = nil
			_ = running.Signal(syscall.SIGKILL)
		case s := <-signals.all:
			switch {
			case suspends(s):
				streams.suspend()
			case resizes(s):
				streams.resize()
			default:
				_ = running.Signal(s)
			}
		}
	}
}
