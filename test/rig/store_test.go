package rig_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"
	"golang.org/x/sys/unix"

	"sallyport.dev/test/rig"
)

// A store that cannot be written, because its disk is full or another program holds it locked: the model, the terminal and control's log say so and
// what to do (such a call can have no row in the journal), nothing is sent, and once the cause is gone everything goes on by itself.
func TestStoreThatCannotBeWritten(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a full disk of its own is a mount, and that needs root")
	}
	programs := programs(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	disk := t.TempDir()
	must(t, unix.Mount("tmpfs", disk, "tmpfs", 0, "size=192m"))
	defer func() { must(t, unix.Unmount(disk, unix.MNT_DETACH)) }()
	up, err := rig.StartUpstream(ctx, programs, "s3cret", "--auth", "bearer")
	must(t, err)
	defer up.Close()
	r, err := rig.Start(ctx, rig.Options{Programs: programs, Apart: true, Dir: filepath.Join(disk, "installation")})
	must(t, err)
	defer func() {
		if t.Failed() {
			t.Log(r.Log())
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	tracker := rig.Connection{Name: "tracker", URL: up.URL, Auth: "{type: bearer}", Secret: "s3cret", Reads: []string{"echo", "get_issue"}, Writes: []string{"create_issue"}}
	must(t, r.Configure(ctx, []rig.Connection{tracker}, badInputProfiles))
	s, err := r.Open(ctx, rig.SessionOptions{Profile: "work", Attended: true})
	must(t, err)

	for _, c := range []struct {
		name                 string
		begin                func(t *testing.T) (end func())
		model, terminal, log string
	}{
		{
			name:     "a full disk",
			begin:    func(t *testing.T) func() { return fillDisk(t, disk) },
			model:    "Sallyport did not run tracker_echo: its record cannot be written (store_full). Nothing was sent. Go on without it, or call it again later.",
			terminal: "sallyport: the disk of the store is full, so nothing new is admitted; make room (store_full)",
			log:      "the disk of the store is full: nothing new is admitted until there is room",
		},
		{
			name:     "a locked store",
			begin:    func(t *testing.T) func() { return lockStore(t, filepath.Join(r.State(), "control", "store.db")) },
			model:    "Sallyport did not run tracker_echo: its record cannot be written (unavailable). Nothing was sent. Go on without it, or call it again later.",
			terminal: "sallyport: another program holds the store's database locked; close it, then try again (unavailable)",
			log:      "another program holds the store's database locked; close it, then try again",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			arguments := fmt.Sprintf(`{"text":%q}`, c.name)
			mark := len(r.Log())
			end := c.begin(t)
			got, err := s.Call(ctx, "tracker_echo", arguments)
			if err != nil || !got.IsError || got.Text != c.model {
				t.Errorf("the model reads %q, %v", got.Text, err)
			}
			if _, err := r.CLI(ctx, "", "enrol", "worker", "another"); err == nil || !strings.Contains(err.Error(), c.terminal) {
				t.Errorf("the terminal says %v", err)
			}
			if log := r.Log()[mark:]; !strings.Contains(log, c.log) {
				t.Errorf("the log says %s", log)
			}
			end()
			// The store looks at its disk again by itself.
			for got.IsError {
				got, err = s.Call(ctx, "tracker_echo", arguments)
				must(t, errors.Join(err, ctx.Err()))
			}
			if requests, _, err := up.Count(ctx, "echo", arguments); err != nil || requests != 1 || got.Text != c.name {
				t.Errorf("afterwards %q; the server got %d calls, %v", got.Text, requests, err)
			}
		})
	}
}

// fillDisk takes all that is left of a file system, until end.
func fillDisk(t *testing.T, dir string) (end func()) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	must(t, err)
	defer f.Close()
	for block := make([]byte, 1<<20); len(block) > 0; {
		switch _, err := f.Write(block); {
		case errors.Is(err, syscall.ENOSPC):
			block = block[:len(block)/2]
		case err != nil:
			t.Fatal(err)
		}
	}
	return func() { must(t, os.Remove(f.Name())) }
}

// lockStore is another program that writes to the database, until end.
func lockStore(t *testing.T, path string) (end func()) {
	t.Helper()
	db, err := sqlite3.Open("file:" + path)
	must(t, err)
	must(t, db.Exec("BEGIN IMMEDIATE"))
	return func() { must(t, errors.Join(db.Exec("ROLLBACK"), db.Close())) }
}
