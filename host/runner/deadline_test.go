package runner

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/host/link/linktest"
	"sallyport.dev/relay"
	"sallyport.dev/relay/hostside"
)

// clock is a rig inside a synctest bubble: the host polls, and the guest is the test itself.
type clock struct {
	t       *testing.T
	control *linktest.Control
	runner  *Runner
	session Session
	start   time.Time
}

func inBubble(t *testing.T, do func(*clock)) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "session")
	synctest.Test(t, func(t *testing.T) {
		x := &clock{t: t, start: time.Now()}
		x.control = linktest.New(func(err error) { t.Error("the host broke the rules:", err) })
		x.session = Session{ID: relay.NewID(), Epoch: 1, Open: true, Owners: []uint32{uint32(os.Getuid())}, Folder: hostside.Folder{Root: root}}
		if err := x.session.Folder.Create(os.Getuid(), os.Getgid(), false); err != nil {
			t.Fatal(err)
		}
		stop := x.begin()
		do(x)
		stop()
	})
}

func (x *clock) begin() (stop func()) {
	x.runner = New(Config{Link: x.control, Log: slog.New(slog.DiscardHandler), Watcher: hostside.NewPoller()})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- x.runner.Run(ctx) }()
	if err := x.runner.Add(x.session); err != nil {
		x.t.Fatal(err)
	}
	return func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			x.t.Error("run:", err)
		}
	}
}

// call publishes a record and lets the host take it.
func (x *clock) call(timeout time.Duration) string {
	x.t.Helper()
	id := relay.NewID()
	record, err := relay.AppendCall(nil, &relay.Call{
		Session: x.session.ID, Epoch: 1, Shim: relay.NewID(), ID: id, Tool: "echo", Arguments: []byte(`{}`), TimeoutMS: timeout.Milliseconds(),
	})
	if err != nil {
		x.t.Fatal(err)
	}
	out := x.session.Folder.Out()
	if err := relay.Publish(filepath.Join(out, "tmp", id), filepath.Join(out, "new", relay.CallName(id)), record); err != nil {
		x.t.Fatal(err)
	}
	x.pass(100 * time.Millisecond)
	x.start = time.Now()
	return id
}

func (x *clock) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (x *clock) result(id string) (text string, ok bool) {
	data, err := os.ReadFile(filepath.Join(x.session.Folder.In(), "results", relay.ResultName(id)))
	if err != nil {
		return "", false
	}
	r, err := relay.ParseResult(data)
	if err != nil {
		x.t.Fatal(err)
	}
	return string(r.Result), true
}

func (x *clock) wantResult(id string, parts ...string) {
	x.t.Helper()
	text, ok := x.result(id)
	if !ok {
		x.t.Fatalf("no result after %v", time.Since(x.start))
	}
	wantText(x.t, text, parts...)
}

func (x *clock) find(id string) (k *linktest.Call) {
	x.t.Helper()
	if err := x.control.Await(context.Background(), func(v *linktest.View) bool { k = v.Call(x.session.ID, id); return true }); err != nil {
		x.t.Fatal(err)
	}
	return k
}

func (x *clock) lose() {
	x.control.Break(errAway)
	synctest.Wait()
}

const deadline = sallyportv1.CancelWhy_CANCEL_WHY_DEADLINE

// Control is asked 15 s before the end, and its answer is the result.
func TestDeadlineAsksControl(t *testing.T) {
	inBubble(t, func(x *clock) {
		id := x.call(2 * time.Minute)
		k := x.find(id)
		k.Journal()
		x.pass(2*time.Minute - relay.DeadlineMargin - 200*time.Millisecond)
		if len(k.State().Cancels) != 0 {
			t.Errorf("asked after %v", time.Since(x.start))
		}
		x.pass(200 * time.Millisecond)
		if !k.State().Cancelled(deadline) {
			t.Fatalf("not asked after %v", time.Since(x.start))
		}
		k.Answer("asking", answer("pending"))
		synctest.Wait()
		x.wantResult(id, "pending")
		x.pass(time.Hour)
		if len(k.State().Cancels) != 1 {
			t.Errorf("cancels: %v", k.State().Cancels)
		}
	})
}

// A short call is asked for at its half.
func TestDeadlineOfAShortCall(t *testing.T) {
	inBubble(t, func(x *clock) {
		id := x.call(4 * time.Second)
		k := x.find(id)
		x.pass(2 * time.Second)
		if !k.State().Cancelled(deadline) {
			t.Error("not asked at the half")
		}
		if _, ok := x.result(id); ok {
			t.Error("answered too early")
		}
		x.pass(2 * time.Second)
		x.wantResult(id, "may or may not run")
	})
}

// Control cannot be reached, and never heard of the call: it did not run, and never will.
func TestDeadlineOfACallThatWasNeverSent(t *testing.T) {
	inBubble(t, func(x *clock) {
		x.lose()
		id := x.call(time.Minute)
		x.pass(time.Minute)
		x.wantResult(id, "Sallyport did not run echo", "(deadline_exceeded)", "safe to call", `"isError":true`)
		x.control.Mend()
		x.pass(time.Minute)
		if k := x.find(id); k != nil {
			t.Errorf("control got %+v", k)
		}
	})
}

// Control has the call, and does not answer: what is known is said, in time, and what comes later is not taken for an answer.
func TestDeadlineOfACallThatWasSent(t *testing.T) {
	for _, journaled := range []bool{false, true} {
		for _, lost := range []bool{false, true} {
			inBubble(t, func(x *clock) {
				id := x.call(time.Minute)
				k := x.find(id)
				want := []string{"may or may not run", ", outcome_uncertain)", "Do not repeat it"}
				if journaled {
					k.Journal()
					synctest.Wait()
					want = []string{"was recorded", ", still_running)", "Do not repeat it", relay.CallID(x.session.ID, id)}
				}
				if lost {
					x.lose()
				}
				x.pass(relay.AnswerAt(time.Minute) - 200*time.Millisecond)
				if _, ok := x.result(id); ok {
					t.Error("answered too early")
				}
				x.pass(time.Second)
				x.wantResult(id, want...)
				x.control.Mend()
				x.pass(time.Minute)
				if !k.State().Cancelled(sallyportv1.CancelWhy_CANCEL_WHY_CLOSED) || k.State().Sent != 1 || k.State().Attached != 0 {
					t.Errorf("sent %d times, attached %d, cancels %v", k.State().Sent, k.State().Attached, k.State().Cancels)
				}
				k.Answer("answered", answer("late"))
				synctest.Wait()
				if text, _ := x.result(id); strings.Contains(text, "late") {
					t.Errorf("the result became %s", text)
				}
			})
		}
	}
}

// The clock runs from the first sight, over lost links and restarts; control hears how long the call has waited.
func TestDeadlineOverARestart(t *testing.T) {
	root := filepath.Join(t.TempDir(), "session")
	synctest.Test(t, func(t *testing.T) {
		x := &clock{t: t}
		x.control = linktest.New(func(err error) { t.Error("the host broke the rules:", err) })
		x.session = Session{ID: relay.NewID(), Epoch: 1, Open: true, Owners: []uint32{uint32(os.Getuid())}, Folder: hostside.Folder{Root: root}}
		if err := x.session.Folder.Create(os.Getuid(), os.Getgid(), false); err != nil {
			t.Fatal(err)
		}
		stop := x.begin()
		id := x.call(time.Minute)
		k := x.find(id)
		k.Journal()
		synctest.Wait()
		stop()
		x.control.Forget()
		x.start = time.Now()
		stop = x.begin()
		x.pass(time.Minute)
		if k.State().Attached != 1 {
			t.Errorf("attached %d times", k.State().Attached)
		}
		// Its name was not kept; its digest was, so its writer takes the answer.
		x.wantResult(id, "the call was recorded", ", still_running)")
		stop()
	})
}

func TestWaitedIsCounted(t *testing.T) {
	inBubble(t, func(x *clock) {
		x.lose()
		id := x.call(time.Minute)
		x.pass(10 * time.Second)
		x.control.Mend()
		synctest.Wait()
		k := x.find(id)
		if k.State().WaitedMS < 10_000 || k.State().WaitedMS > 10_200 {
			t.Errorf("waited %d ms", k.State().WaitedMS)
		}
		k.Answer("answered", answer("done"))
		synctest.Wait()
		x.wantResult(id, "done")
	})
}

// A call that nobody waits for and that control never heard of is not sent.
func TestCancelBeforeSending(t *testing.T) {
	inBubble(t, func(x *clock) {
		x.lose()
		id := x.call(time.Minute)
		record, err := relay.AppendCancel(nil, &relay.Cancel{Session: x.session.ID, Epoch: 1, ID: id, Why: relay.WhyHarness})
		if err != nil {
			t.Fatal(err)
		}
		out := x.session.Folder.Out()
		if err := relay.Publish(filepath.Join(out, "tmp", id), filepath.Join(out, "new", relay.CancelName(id)), record); err != nil {
			t.Fatal(err)
		}
		x.pass(time.Second)
		x.wantResult(id, "cancelled", "did not run", "(cancelled)")
		x.control.Mend()
		x.pass(time.Second)
		if k := x.find(id); k != nil {
			t.Errorf("control got %+v", k)
		}
	})
}

func TestHealthIsSent(t *testing.T) {
	inBubble(t, func(x *clock) {
		x.pass(21 * time.Second)
		reports := 0
		_ = x.control.Await(context.Background(), func(v *linktest.View) bool {
			for _, f := range v.Frames() {
				if h := f.GetHealth(); h != nil && h.GetSessions() == 1 && h.GetRssBytes() > 0 {
					reports++
				}
			}
			return true
		})
		if reports != 4 {
			t.Errorf("%d reports in 21 s", reports)
		}
	})
}
