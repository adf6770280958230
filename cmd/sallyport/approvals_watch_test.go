package main

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"sallyport.dev/api/sallyport/v1"
)

// screenOf is a terminal: what is written to the first is typed, the second is what a command reads.
func screenOf(t *testing.T) (keyboard, tty *os.File) {
	t.Helper()
	keyboard, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keyboard.Close(); tty.Close() })
	return keyboard, tty
}

// patient bounds a command that waits for a key which never counts.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), guard)
	t.Cleanup(cancel)
	return ctx
}

// typed writes to the terminal. What stands in its queue when the writing returns is typed ahead.
func typed(t *testing.T, keyboard *os.File, text string) {
	t.Helper()
	if _, err := keyboard.WriteString(text); err != nil {
		t.Error(err)
	}
}

// A key that was pressed for something else decides nothing: neither one that lay in the terminal's queue before the question was shown, nor one
// that comes before the question stood for its moment.
func TestTypedAheadDecidesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		ahead string
		stand time.Duration
	}{
		"in the queue, line unfinished": {"a", 0},
		"in the queue, whole lines":     {"a\na\n", 0},
		"in the queue, and it stands":   {"a", 20 * time.Millisecond},
		"an end of input":               {"\x04", 0},
	} {
		t.Run(name, func(t *testing.T) {
			keyboard, tty := screenOf(t)
			typed(t, keyboard, c.ahead)
			offered := 0
			key, err := readKey(patient(t), tty, c.stand, func() {
				offered++
				typed(t, keyboard, "d")
			})
			if err != nil || key != 'd' || offered != 1 { // offered again, it would be what was typed ahead that was read first
				t.Errorf("%q, %v, offered %d times: what was typed ahead is %q", key, err, offered, c.ahead)
			}
		})
	}
}

// A key that comes while the question does not stand long enough yet is dropped, with the terminal already in raw mode. After it, what arrives at once
// is a paste, or a key that sends several bytes: no decision either.
func TestTypedTooEarlyDecidesNothing(t *testing.T) {
	keyboard, tty := screenOf(t)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() { // somebody leans on the key until it counts
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				typed(t, keyboard, "a")
			}
		}
	}()
	offered := 0
	key, err := readKey(patient(t), tty, 50*time.Millisecond, func() {
		switch offered++; offered {
		case 1:
			close(stop)
			<-done
			typed(t, keyboard, "z") // what was pressed between the end of the moment and this call counts, so it is taken away first
			for b := []byte{0}; b[0] != 'z'; {
				if _, err := tty.Read(b); err != nil {
					t.Error(err)
					return
				}
			}
			typed(t, keyboard, "sx")
		case 2: // again, since that was no key
			typed(t, keyboard, "d")
		}
	})
	if err != nil || key != 'd' || offered != 2 {
		t.Errorf("%q, %v, offered %d times", key, err, offered)
	}
}

// Who wants to end it need not wait; a terminal that goes away, and a command that ends, decide nothing.
func TestKeysThatEnd(t *testing.T) {
	t.Run("ctrl-c", func(t *testing.T) {
		keyboard, tty := screenOf(t)
		done := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer close(done)
			for ctx.Err() == nil {
				typed(t, keyboard, "\x03") // before raw mode it is a signal to nobody here
				<-time.After(time.Millisecond)
			}
		}()
		key, err := readKey(patient(t), tty, time.Hour, func() { t.Error("it was offered") })
		cancel()
		<-done
		if err != nil || key != ctrlC {
			t.Errorf("%q, %v", key, err)
		}
	})
	t.Run("hang-up", func(t *testing.T) {
		keyboard, tty := screenOf(t)
		key, err := readKey(patient(t), tty, 0, func() { keyboard.Close() })
		if err != nil || key != 'q' {
			t.Errorf("%q, %v", key, err)
		}
	})
	t.Run("the command ends", func(t *testing.T) {
		_, tty := screenOf(t)
		ctx, cancel := context.WithCancel(patient(t))
		if key, err := readKey(ctx, tty, 0, cancel); err != nil || key != 'q' {
			t.Errorf("%q, %v", key, err)
		}
	})
}

// The last thing above the keys is what they decide on, whatever the arguments show above it.
func TestDecidesOn(t *testing.T) {
	got := decidesOn(&sallyportv1.ShowApprovalResponse{
		Approval:  &sallyportv1.ApprovalRow{Connection: "tracker", Tool: "create\x1b[2J", Effect: "write", Digest: strings.Repeat("a", 64)},
		Arguments: make([]byte, 300000),
	})
	if want := "This decides on tracker/create\\u{001b}[2J (write), 300000 bytes of arguments, digest aaaaaaaaaaaa."; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
