package console_test

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// browser is a client with cookies, and without a script.
type browser struct {
	t    *testing.T
	http *http.Client
	base string
}

func (s *site) browser(t *testing.T) *browser {
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &browser{t, &http.Client{Jar: jar, Transport: tr}, s.web.URL}
}

// in is a browser that came in by a link.
func (s *site) in(t *testing.T, person string) *browser {
	b := s.browser(t)
	status, _ := b.post("/enter", url.Values{"secret": {s.link(person)}}, nil)
	if status != http.StatusOK {
		t.Fatalf("entering: %d", status)
	}
	return b
}

func (b *browser) do(r *http.Request) (int, string) {
	b.t.Helper()
	got, err := b.http.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	if !strings.HasPrefix(got.Request.URL.Path, "/static/") {
		policy := got.Header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "frame-ancestors 'none'", "script-src 'self';"} {
			if !strings.Contains(policy, want) {
				b.t.Errorf("%s without %s", r.URL.Path, want)
			}
		}
		if strings.Contains(policy, "unsafe") || got.Header.Get("Cache-Control") != "no-store" {
			b.t.Errorf("%s: %v", r.URL.Path, got.Header)
		}
	}
	return got.StatusCode, string(body)
}

func (b *browser) get(path string) (int, string) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, b.base+path, http.NoBody)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.do(r)
}

func (b *browser) post(path string, form url.Values, header map[string]string) (int, string) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, b.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	for k, v := range header {
		r.Header.Set(k, v)
	}
	return b.do(r)
}

var pages = []string{
	"/", "/?since=24h", "/inbox", "/inbox?state=denied", "/calls", "/calls?state=answered&since=1h", "/uncertain", "/sessions", "/sessions?all=1", "/connections", "/machines",
	"/profiles", "/grants", "/people", "/switches", "/switches?kind=connection&name=tracker",
}

func TestEveryPageNeedsASession(t *testing.T) {
	s := newSite(t)
	s.questions, s.calls = append(s.questions, asks(), hostile()), history()
	stranger, ada := s.browser(t), s.in(t, "ada")
	for _, p := range append([]string{"/inbox/" + questionID, "/calls/" + callID, "/events"}, pages...) {
		if status, body := stranger.get(p); status != http.StatusUnauthorized || !strings.Contains(body, "Come in") || strings.Contains(body, "tracker") {
			t.Errorf("%s for a stranger: %d", p, status)
		}
	}
	for _, p := range append([]string{"/inbox/" + questionID, "/inbox/" + callID, "/calls/" + callID}, pages...) {
		if status, body := ada.get(p); status != http.StatusOK {
			t.Errorf("%s: %d %s", p, status, body)
		}
	}
	if status, _ := ada.get("/calls/zzzz"); status != http.StatusNotFound {
		t.Errorf("what is not there: %d", status)
	}
	if status, _ := ada.get("/nowhere"); status != http.StatusNotFound {
		t.Errorf("no page: %d", status)
	}
	if status, _ := ada.post("/leave", nil, nil); status != http.StatusOK {
		t.Errorf("leaving: %d", status)
	}
	if status, _ := ada.get("/inbox"); status != http.StatusUnauthorized {
		t.Errorf("after leaving: %d", status)
	}
}

// No page has a tag, an attribute or a character of somebody else, and none has the words that people never read.
func TestForeignTextIsText(t *testing.T) {
	s := newSite(t)
	s.questions, s.calls = append(s.questions, asks(), hostile()), history()
	ada := s.in(t, "ada")
	for _, p := range append([]string{"/inbox/" + hostile().GetApproval().GetId(), "/calls/h1" + strings.Repeat("a", 24)}, pages...) {
		_, body := ada.get(p)
		for _, bad := range []string{"<img", "<script>", "onerror=\"", "\u202e", "\u2066", "\u200b", "\x1b", "\U000e0041", "style=\"", " onclick", "javascript:"} {
			if strings.Contains(body, bad) {
				t.Errorf("%s holds %q", p, bad)
			}
		}
		for _, word := range []string{"intent", "barrier", "epoch"} {
			if strings.Contains(strings.ToLower(body), word) {
				t.Errorf("%s says %s", p, word)
			}
		}
	}
	_, body := ada.get("/inbox/" + hostile().GetApproval().GetId())
	if !strings.Contains(body, "U+202E") || !strings.Contains(body, "U+200B") || !strings.Contains(body, "U+001B") {
		t.Error("hidden characters are not written out")
	}
}

func TestADecisionIsBoundAndMadeOnce(t *testing.T) {
	s := newSite(t)
	s.questions = append(s.questions, asks())
	ada, bea := s.in(t, "ada"), s.in(t, "bea")
	at := "/inbox/" + questionID
	if _, body := ada.get(at); !strings.Contains(body, digest) || !strings.Contains(body, "9007199254740993") || !strings.Contains(body, "1.10") {
		t.Error("the page does not show what is decided")
	}
	if status, body := ada.post(at, url.Values{"digest": {"00"}, "decision": {"approve"}}, nil); status != http.StatusConflict || !strings.Contains(body, "not what would run now") {
		t.Errorf("another digest: %d", status)
	}
	if status, body := ada.post(at, url.Values{"digest": {digest}, "decision": {"deny"}}, nil); status != http.StatusBadRequest || !strings.Contains(body, "say why") {
		t.Errorf("no reason: %d", status)
	}
	// Two at once: one is it, and the other reads who was.
	var wg sync.WaitGroup
	answers := make(chan string, 2)
	for _, b := range []*browser{ada, bea} {
		wg.Go(func() {
			_, body := b.post(at, url.Values{"digest": {digest}, "decision": {"approve"}}, nil)
			answers <- body
		})
	}
	wg.Wait()
	close(answers)
	for body := range answers {
		if !strings.Contains(body, "Approved by <bdi>") {
			t.Error("who won is not said")
		}
		if strings.Contains(body, "Approve once") {
			t.Error("it can still be decided")
		}
	}
	if s.decisions != 1 {
		t.Errorf("%d decisions", s.decisions)
	}
}

func TestOverIsSaid(t *testing.T) {
	s := newSite(t)
	expired, voided := asks(), asks()
	expired.Approval.ExpiresMs = ago(time.Second)
	voided.Approval.Id, voided.Approval.State = "v7v5w2m7abcdefghijklmnopqr", "closed"
	s.questions = append(s.questions, expired, voided)
	ada := s.in(t, "ada")
	if _, body := ada.get("/inbox/" + questionID); !strings.Contains(body, "is over; it did not run") || strings.Contains(body, "Approve once") {
		t.Error("an expired question")
	}
	if status, _ := ada.post("/inbox/"+questionID, url.Values{"digest": {digest}, "decision": {"approve"}}, nil); status != http.StatusConflict {
		t.Errorf("deciding it: %d", status)
	}
	if _, body := ada.get("/inbox/" + voided.GetApproval().GetId()); !strings.Contains(body, "does not wait any more") || strings.Contains(body, "Approve once") {
		t.Error("a question that what it asked about left")
	}
}

func TestOtherSitesAndHostsGetNothing(t *testing.T) {
	s := newSite(t)
	s.questions = append(s.questions, asks())
	ada := s.in(t, "ada")
	form := url.Values{"digest": {digest}, "decision": {"approve"}}
	for name, header := range map[string]map[string]string{
		"another site": {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example.org"}, "another port": {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:1"},
		"an old browser": {"Sec-Fetch-Site": "", "Origin": "https://evil.example.org"},
	} {
		if status, body := ada.post("/inbox/"+questionID, form, header); status != http.StatusForbidden || !strings.Contains(body, "another site") {
			t.Errorf("%s: %d", name, status)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.web.URL+"/inbox", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "rebound.example.org"
	if status, body := ada.do(r); status != http.StatusMisdirectedRequest || strings.Contains(body, "create_issue") {
		t.Errorf("another Host: %d", status)
	}
	if s.decisions != 0 {
		t.Error("somebody else decided")
	}
}

func TestALinkIsUsedOnce(t *testing.T) {
	s := newSite(t)
	link, b := s.link("ada"), s.browser(t)
	if status, _ := b.post("/enter", url.Values{"secret": {link}}, nil); status != http.StatusOK {
		t.Fatal(status)
	}
	if status, body := s.browser(t).post("/enter", url.Values{"secret": {link}}, nil); status != http.StatusForbidden || !strings.Contains(body, "ask for a new one") {
		t.Errorf("a second time: %d", status)
	}
	for _, c := range b.http.Jar.Cookies(must(url.Parse(s.web.URL))) {
		if c.Value != secretOf["ada"] {
			t.Errorf("cookie %v", c)
		}
	}
}

func TestResolveAndSwitches(t *testing.T) {
	s := newSite(t)
	s.calls = history()
	ada := s.in(t, "ada")
	uncertain := "9c2kq3v5w2m7abcdefghijklmn"
	if status, _ := ada.post("/calls/"+uncertain+"/resolve", url.Values{"resolution": {"done"}}, nil); status != http.StatusBadRequest {
		t.Errorf("without a note: %d", status)
	}
	if status, body := ada.post("/calls/"+uncertain+"/resolve", url.Values{"resolution": {"done"}, "note": {"seen there"}}, nil); status != http.StatusOK || !strings.Contains(body, "resolved: done") {
		t.Errorf("resolving: %d", status)
	}
	form := url.Values{"kind": {"connection"}, "name": {"tracker"}, "reason": {"drill"}}
	if _, body := ada.post("/switches", form, nil); !strings.Contains(body, "2 sessions") || len(s.switches) != 0 {
		t.Error("a preview throws nothing, and says what it would hit")
	}
	form.Set("do", "throw")
	if _, body := ada.post("/switches", form, nil); !strings.Contains(body, "1.8 ms") || len(s.switches) != 1 {
		t.Error("a switch says how long it took")
	}
	form.Set("do", "restore")
	if _, body := ada.post("/switches", form, nil); !strings.Contains(body, "restored") || len(s.switches) != 0 {
		t.Error("a switch is given back")
	}
}

// A store that cannot be reached is said, and nobody is thrown out for it.
func TestLockedStore(t *testing.T) {
	s := newSite(t)
	s.questions = append(s.questions, asks())
	ada := s.in(t, "ada")
	s.mu.Lock()
	s.locked = true
	s.mu.Unlock()
	if status, body := ada.get("/inbox"); status != http.StatusServiceUnavailable || !strings.Contains(body, "the store is locked") {
		t.Errorf("%d", status)
	}
	s.mu.Lock()
	s.locked = false
	s.mu.Unlock()
	if status, _ := ada.get("/inbox"); status != http.StatusOK {
		t.Errorf("afterwards: %d", status)
	}
}

// A mebibyte of arguments is shown to its last byte.
func TestABigCallIsShownWhole(t *testing.T) {
	s := newSite(t)
	q := asks()
	q.Arguments = []byte(`{"body":"` + strings.Repeat("x", 1<<20) + `the-end"}`)
	s.questions = append(s.questions, q)
	if status, body := s.in(t, "ada").get("/inbox/" + questionID); status != http.StatusOK || strings.Count(body, "the-end") < 1 || !strings.Contains(body, "1.0 MiB") {
		t.Errorf("%d", status)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) //nolint:forbidigo // a test's own set-up
	}
	return v
}
