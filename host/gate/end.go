package gate

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/host/sandbox/proc"
)

// watch ends the guarding once the supervisor is gone: with its last word, or without.
func (g *guarded) watch() {
	if !g.supervisorGone(g.hub.life) {
		return
	}
	g.mu.Lock()
	ended, refused, c := g.ended, g.refused, g.conn
	g.mu.Unlock()
	if ended == nil && c != nil {
		// Its last word may still be on the way; the connection ends with the process.
		select {
		case <-g.over:
			g.mu.Lock()
			ended = g.ended
			g.mu.Unlock()
		case <-time.After(time.Second):
		}
	}
	r := Result{Refused: refused, Lost: ended == nil}
	if ended != nil {
		r.Ended = *ended
	}
	if !r.Absent {
		ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
		r.Err = g.Recover(ctx)
		cancel()
		r.Absent = r.Err == nil
	}
	g.hub.mu.Lock()
	delete(g.hub.boxes, g.Session)
	g.hub.mu.Unlock()
	if g.Ended != nil {
		g.Ended(r)
	}
	close(g.done)
}

// supervisorGone waits for the end of the very process that was expected; false: ctx ended, and it lives.
func (g *guarded) supervisorGone(ctx context.Context) bool {
	h, err := proc.Open(g.Supervisor.PID)
	if err != nil {
		return true
	}
	defer h.Close()
	return h.ID != g.Supervisor || h.Wait(ctx) == nil || !g.Supervisor.Alive()
}

// endSoon kills a supervisor that does not end in time; the kernel ends its sandbox then.
func (g *guarded) endSoon(patience time.Duration) {
	g.hub.watchers.Go(func() {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-g.done:
		case <-g.hub.life.Done():
		case <-timer.C:
			g.kill()
		}
	})
}

func (g *guarded) kill() {
	h, err := proc.Open(g.Supervisor.PID)
	if err != nil {
		return
	}
	defer h.Close()
	if h.ID == g.Supervisor {
		if err := h.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
			g.hub.log.Error("a supervisor cannot be ended", "session", g.Session, "err", err)
		}
	}
}
