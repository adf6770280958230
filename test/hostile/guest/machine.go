package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sallyport.dev/relay"
)

// forks starts programs that compute, until it may start no more, and again where one is gone.
func forks(ctx context.Context, a *attacker) {
	self, err := os.Executable()
	if err != nil {
		a.count(err)
		return
	}
	var all []*exec.Cmd
	for ctx.Err() == nil {
		cmd := exec.CommandContext(ctx, self, "burn")
		err := cmd.Start()
		a.count(err)
		if err == nil {
			all = append(all, cmd)
		}
		if err != nil || len(all) >= 400 {
			<-ctx.Done()
		}
	}
	for _, cmd := range all {
		_ = cmd.Wait()
	}
}

// burn computes until it is killed.
func burn() {
	for n := uint64(1); n != 0; n += 2 {
		_ = n
	}
}

// watches takes all the inotify instances and watches that it can get.
func watches(ctx context.Context, a *attacker) {
	for ctx.Err() == nil {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		a.count(err)
		if err != nil {
			<-ctx.Done()
			return
		}
		for range 64 {
			dir := filepath.Join(outDir, relay.TmpDir, relay.NewID())
			if err := os.Mkdir(dir, 0o700); err != nil {
				break
			}
			_, err = unix.InotifyAddWatch(fd, dir, unix.IN_ALL_EVENTS)
			a.count(err)
			_ = os.Remove(dir)
		}
	}
}

// memory takes memory until it is killed, however long that takes.
func memory(_ context.Context, a *attacker) {
	var all [][]byte
	for {
		b := make([]byte, 4<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		all = append(all, b)
		a.did.Store(int64(len(all)))
	}
}
