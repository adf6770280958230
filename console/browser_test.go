package console_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

var shots = flag.String("shots", "", "write screenshots of the pages into this folder")

// guard bounds a whole test: nothing here waits for a time, only for what a page shows.
const guard = 3 * time.Minute

// chromium starts one browser for a test; its tabs have nothing in common.
func chromium(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("chromium is missing: make prepare installs it")
	}
	profile, err := os.MkdirTemp("", "console")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), guard)
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(profile),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true))
	alloc, endAlloc := chromedp.NewExecAllocator(ctx, opts...)
	browser, endBrowser := chromedp.NewContext(alloc)
	if err := chromedp.Do(browser); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := chromedp.Cancel(browser); err != nil {
			t.Log(err)
		}
		endBrowser()
		endAlloc()
		cancel()
		if err := os.RemoveAll(profile); err != nil {
			t.Log(err) // its last children still write into it
		}
	})
	return browser
}

// tab is one person's browser.
type tab struct {
	t    *testing.T
	ctx  context.Context
	base string
}

type screen struct {
	name          string
	width, height int64
	dark          bool
}

var (
	desktop = screen{"light", 1280, 800, false}
	dark    = screen{"dark", 1280, 800, true}
	phone   = screen{"phone", 360, 740, false}
)

// comes opens a tab with cookies of its own, and comes in by a link.
func (s *site) comes(t *testing.T, browser context.Context, person string, on screen) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	b := &tab{t, ctx, s.web.URL}
	scheme := "light"
	if on.dark {
		scheme = "dark"
	}
	b.do(chromedp.EmulateViewport(on.width, on.height))
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}},
	}); err != nil {
		t.Fatal(err)
	}
	b.do(chromedp.Navigate(s.link(person)))
	b.until(`location.pathname === "/" && location.hash === "" && document.querySelector("h1")?.textContent === "Overview"`)
	return b
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *tab) open(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.base + path))
}

func (b *tab) click(selector string) {
	b.t.Helper()
	b.do(chromedp.Click(chromedp.CSS(selector)))
}

// until waits for a page to be as an expression says, over navigations.
func (b *tab) until(expression string) {
	b.t.Helper()
	last := ""
	for b.ctx.Err() == nil {
		got, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](
			`new Promise((r) => setTimeout(() => r((`+expression+`) ? "" : location.href + "\n" + document.body.innerText), 20))`, chromedp.EvalAwaitPromise))
		if err == nil && got == "" {
			return
		}
		last = fmt.Sprint(got, err)
	}
	b.t.Fatalf("never: %s\n%.2000s", expression, last)
}

func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	got, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatal(err)
	}
	return got
}

func says(text string) string {
	return fmt.Sprintf("document.body.innerText.includes(%q)", text)
}

// One person decides; another who reads the same page sees it by itself, and so does the inbox.
func TestBrowserLiveDecision(t *testing.T) {
	s := newSite(t)
	s.questions = append(s.questions, asks())
	browser := chromium(t)
	ada, bea := s.comes(t, browser, "ada", desktop), s.comes(t, browser, "bea", phone)
	bea.open("/inbox/" + questionID)
	ada.open("/inbox")
	ada.until(says("create_issue"))
	// By keyboard: j goes to the first.
	eval[bool](ada, `document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "j", bubbles: true })), document.activeElement.click(), true`)
	ada.until(`location.pathname.startsWith("/inbox/")`)
	ada.until(says("9007199254740993"))
	ada.do(chromedp.SendKeys(chromedp.CSS("#reason"), "duplicate of #41"))
	ada.click(".stop")
	ada.until(says("Denied by ada"))
	bea.until(says("Denied by ada"))
	bea.until(`!document.querySelector(".decide")`)
	ada.open("/inbox")
	ada.until(says("Nothing waits for a person"))
	// A question that comes is there without a touch.
	s.mu.Lock()
	again := asks()
	again.Approval.Id = "n7v5w2m7abcdefghijklmnopqr"
	s.questions = append(s.questions, again)
	s.tellLocked("question")
	s.mu.Unlock()
	ada.until(says("create_issue"))
}

func TestBrowserTwoDecideAtOnce(t *testing.T) {
	s := newSite(t)
	s.questions = append(s.questions, asks())
	browser := chromium(t)
	both := []*tab{s.comes(t, browser, "ada", desktop), s.comes(t, browser, "bea", phone)}
	for _, b := range both {
		b.open("/inbox/" + questionID)
	}
	var wg sync.WaitGroup
	for _, b := range both {
		wg.Go(func() {
			// The page may change under the click: then there is nothing left to click on, as it should be.
			_, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`document.querySelector(".go")?.click(), true`))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, b := range both {
		b.until(says("Approved by"))
		b.until(`!document.querySelector(".decide")`)
	}
	if s.decisions != 1 {
		t.Errorf("%d decisions", s.decisions)
	}
}

// A question that ends while it is read, one that what it asked about left, and a server that was away between page and decision.
func TestBrowserThingsChangeUnderAPage(t *testing.T) {
	s := newSite(t)
	expires, leaves, stays := asks(), asks(), asks()
	expires.Approval.Id, expires.Approval.ExpiresMs = "e7v5w2m7abcdefghijklmnopqr", ago(-8*time.Second)
	leaves.Approval.Id = "l7v5w2m7abcdefghijklmnopqr"
	s.questions = append(s.questions, expires, leaves, stays)
	browser := chromium(t)
	one, two, three := s.comes(t, browser, "ada", phone), s.comes(t, browser, "bea", desktop), s.comes(t, browser, "ada", desktop)
	one.open("/inbox/" + expires.GetApproval().GetId())
	two.open("/inbox/" + leaves.GetApproval().GetId())
	three.open("/inbox/" + questionID)
	two.until(says("Approve once"))
	s.change(leaves.GetApproval().GetId(), "closed", "")
	two.until(says("does not wait any more"))
	two.until(`!document.querySelector(".decide")`)

	three.until(says("Approve once"))
	address, handler := s.web.Listener.Addr().String(), s.web.Config.Handler
	s.web.CloseClientConnections()
	s.web.Close()
	three.until(`!document.getElementById("live-state").hidden`)
	again := httptest.NewUnstartedServer(handler)
	again.Listener.Close()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	again.Listener = l
	again.Start()
	t.Cleanup(func() {
		again.CloseClientConnections()
		again.Close()
	})
	three.until(`document.getElementById("live-state").hidden`)
	three.click(".go")
	three.until(says("Approved by ada"))
	one.until(says("is over; it did not run"))
	if s.decisions != 1 {
		t.Errorf("%d decisions", s.decisions)
	}
}

// Another site cannot decide, cannot put the console into a frame, and what a server wrote runs nothing.
func TestBrowserHostile(t *testing.T) {
	s := newSite(t)
	s.questions, s.calls = append(s.questions, asks(), hostile()), history()
	browser := chromium(t)
	ada := s.comes(t, browser, "ada", desktop)
	for _, p := range append([]string{"/inbox/" + hostile().GetApproval().GetId(), "/calls/h1" + strings.Repeat("a", 24)}, pages...) {
		ada.open(p)
		if title := eval[string](ada, "document.title"); strings.HasPrefix(title, "owned") {
			t.Errorf("%s runs what is not ours", p)
		}
		if n := eval[int](ada, `document.querySelectorAll("img, iframe, object, embed, script:not([src='/static/live.js'])").length`); n != 0 {
			t.Errorf("%s has %d elements that are not ours", p, n)
		}
	}
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		if r.URL.Path == "/frame" {
			fmt.Fprintf(w, `<title>frame</title><iframe src="%s/inbox/%s" onload="document.title='loaded'"></iframe>`, s.web.URL, questionID)
			return
		}
		fmt.Fprintf(w, `<form method="post" action="%s/inbox/%s"><input name="digest" value="%s"><input name="decision" value="approve"></form><script>document.forms[0].submit()</script>`,
			s.web.URL, questionID, digest)
	}))
	t.Cleanup(evil.Close)
	elsewhere := strings.Replace(evil.URL, "127.0.0.1", "localhost", 1)
	ada.do(chromedp.Navigate(elsewhere + "/form"))
	ada.until(says("asked from another site"))
	ada.do(chromedp.Navigate(elsewhere + "/frame"))
	ada.until(`document.title === "loaded"`)
	if n := eval[bool](ada, `(() => { try { return document.querySelector("iframe").contentDocument !== null } catch { return false } })()`); n {
		t.Error("the frame can be read")
	}
	if s.decisions != 0 {
		t.Errorf("%d decisions", s.decisions)
	}
}

// axe finds nothing, and nothing is wider than the screen, on any page, in any of the three looks.
func TestBrowserLooks(t *testing.T) {
	axe, err := os.ReadFile(filepath.Join("testdata", "axe", "axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t)
	s.questions, s.calls = append(s.questions, asks(), more("w7", "comment_issue", 3*time.Minute), more("x7", "close_issue", 11*time.Minute)), history()
	browser := chromium(t)
	named := map[string]string{
		"overview": "/", "inbox": "/inbox", "question": "/inbox/" + questionID, "calls": "/calls", "call": "/calls/9c2kq3v5w2m7abcdefghijklmn", "uncertain": "/uncertain",
		"sessions": "/sessions", "connections": "/connections", "machines": "/machines", "profiles": "/profiles", "grants": "/grants", "people": "/people", "switches": "/switches",
	}
	// The dark colours are the same everywhere: pages that have all of them between them.
	darkToo := []string{"overview", "inbox", "question", "call"}
	for _, on := range []screen{desktop, dark, phone} {
		b := s.comes(t, browser, "ada", on)
		for name, path := range named {
			if on.dark && !slices.Contains(darkToo, name) {
				continue
			}
			b.open(path)
			if *shots != "" {
				png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
				if err == nil {
					err = os.WriteFile(filepath.Join(*shots, name+"-"+on.name+".png"), png, 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if wide := eval[int64](b, "document.documentElement.scrollWidth"); wide > on.width {
				t.Errorf("%s, %s: %d pixels wide", name, on.name, wide)
			}
			if found := eval[string](b, string(axe)+`;axe.run(document).then((r) => r.violations.map((v) => v.id + ": " + v.nodes.map((n) => n.html.slice(0, 160)).slice(0, 3).join(" | ")).join("\n"))`); found != "" {
				t.Errorf("%s, %s:\n%s", name, on.name, found)
			}
		}
	}
}
