package egress

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

// What a guest writes into a decision is a short text that every frame can carry.
func TestSafeTexts(t *testing.T) {
	t.Setenv("SALLYPORT_TEST_KEY", "k")
	var lines []Decision
	g, err := New(Policy{Session: "s", Provider: "anthropic"}, Source{Provider: "anthropic", URL: "http://127.0.0.1:1", Env: "SALLYPORT_TEST_KEY"},
		NewTransport(), func(d Decision) { lines = append(lines, d) }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("\xe4\xb8\x96", 4<<20/3)
	for name, r := range map[string]*http.Request{
		"path":           {Method: "GET", URL: mustURL(t, "/anthropic/%FF")},
		"path elsewhere": {Method: "GET", URL: mustURL(t, "/%FF")},
		"cut path":       {Method: "GET", URL: mustURL(t, "/anthropic/"+strings.Repeat("\xe4\xb8\x96", 1000))},
		"method":         {Method: strings.Repeat("M", 1<<16), URL: mustURL(t, "/anthropic/v1/messages")},
		"query":          {Method: "POST", URL: mustURL(t, "/anthropic/v1/messages?\xff"+strings.Repeat("q", 1<<16))},
		"beta":           {Method: "POST", URL: mustURL(t, "/anthropic/v1/messages"), Header: http.Header{"Anthropic-Beta": {"files-api-\xff" + strings.Repeat("b", 1<<16)}}, Body: body(`{"messages":[]}`)},
		"member":         {Method: "POST", URL: mustURL(t, "/anthropic/v1/messages"), Body: body(`{"` + long + `":1}`)},
		"tool":           {Method: "POST", URL: mustURL(t, "/anthropic/v1/messages"), Body: body(`{"tools":[{"type":"` + long + `"}]}`)},
		"nested":         {Method: "POST", URL: mustURL(t, "/anthropic/v1/messages"), Body: body(`{"messages":[{"` + long + `":{"type":"container_upload"}}]}`)},
	} {
		t.Run(name, func(t *testing.T) {
			lines = nil
			if r.Body == nil {
				r.Body = http.NoBody
			} else {
				r.ContentLength = -1
			}
			w := httptest.NewRecorder()
			g.ServeHTTP(w, r)
			if len(lines) != 1 || lines[0].Verdict == Allowed || w.Code < 400 {
				t.Fatalf("%d %.80s", w.Code, w.Body)
			}
			for _, s := range []string{lines[0].Target, lines[0].Reason} {
				if !utf8.ValidString(s) || len(s) > maxText+len("…") {
					t.Errorf("%d bytes: %.300q", len(s), s)
				}
			}
			if n := w.Body.Len(); n > 8*maxText {
				t.Errorf("an answer of %d bytes", n)
			}
		})
	}
}

// However a body is nested, ruling on it takes memory for a part of it at most.
func TestRulingCopiesNothing(t *testing.T) {
	const size = 4 << 20
	text := `"` + strings.Repeat("x", size) + `"`
	for name, body := range map[string]string{
		"deep":    `{"messages":` + strings.Repeat("[", 95) + text + strings.Repeat("]", 95) + `}`,
		"objects": `{"messages":` + strings.Repeat(`{"a":`, 95) + text + strings.Repeat("}", 95) + `}`,
		"tool":    `{"messages":[],"tools":[{"name":` + text + `}]}`,
		"names":   `{"messages":[{` + text + `:{` + text + `:{}}}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			raw := []byte(body)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r := Rule("anthropic", "POST", "/v1/messages", "", raw)
			runtime.ReadMemStats(&after)
			if r.Verdict != Allowed {
				t.Fatal(r)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > size/2 {
				t.Errorf("%d bytes allocated for a body of %d", took, len(raw))
			}
		})
	}
}

// The bodies of one session share its room: beyond it, the next one waits.
func TestBodiesShareRoom(t *testing.T) {
	g := &Gateway{bodies: newBodies()}
	read := func(length int64, content io.Reader) func() {
		t.Helper()
		r := httptest.NewRequest("POST", "/", io.NopCloser(content))
		r.ContentLength = length
		_, free, err := g.body(httptest.NewRecorder(), r)
		if err != nil {
			t.Fatal(err)
		}
		return free
	}
	large := strings.Repeat(" ", MaxBody)
	first, second := read(MaxBody, strings.NewReader(large)), read(-1, strings.NewReader(large))
	if g.bodies.TryAcquire(1) {
		t.Fatal("there is room beside two of the largest bodies")
	}
	first()
	first()
	third := read(-1, strings.NewReader("x")) // one that does not say takes the most until it is read
	if !g.bodies.TryAcquire(MaxBody - 1) {
		t.Fatal("a short body keeps more than it is")
	}
	g.bodies.Release(MaxBody - 1)
	second()
	third()
	r := httptest.NewRequest("POST", "/", io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF)))
	r.ContentLength = MaxBody
	if _, _, err := g.body(httptest.NewRecorder(), r); err == nil {
		t.Fatal("a cut body was taken")
	}
	if !g.bodies.TryAcquire(bodyBytes) {
		t.Fatal("room was lost")
	}
}

// A guest that asks again and again gets a burst, then one by one.
func TestPace(t *testing.T) {
	const burst, every = 100, 10 * time.Millisecond
	p := pace{burst: burst, every: every}
	now := time.Unix(1000, 0)
	for i := range burst {
		if d := p.turn(now); d != 0 {
			t.Fatalf("%d of the burst waits %s", i, d)
		}
	}
	for i := 1; i <= 3; i++ {
		if d := p.turn(now); d != time.Duration(i)*every {
			t.Fatalf("beyond the burst: %s", d)
		}
	}
	if d := p.turn(now.Add(burst * every)); d != 0 {
		t.Fatalf("after a while: %s", d)
	}
}

// A session's requests and its refusals have their paces.
func TestPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines int
		g, err := New(Policy{Session: "s"}, Source{}, nil, func(Decision) { lines++ }, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		const n = refusalsBurst + 50
		for range n {
			g.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/nothing", nil))
		}
		if took := time.Since(began); took < 50*refusalsEvery || lines != n {
			t.Errorf("%d refusals in %s", lines, took)
		}
		for range requestsBurst {
			g.arriving.turn(time.Now())
		}
		if d := g.arriving.turn(time.Now()); d <= 0 {
			t.Error("requests are not paced")
		}
	})
}

// An address does not hide behind another member, wherever each stands.
func TestImageAddress(t *testing.T) {
	const far, near = `"https://x"`, `"data:image/png;base64,AA=="`
	long := `"data:image/png;base64,` + strings.Repeat("A", 1000) + `"`
	for item, want := range map[string]Verdict{
		`{"type":"input_image","image_url":` + near + `}`:                                       Allowed,
		`{"type":"input_image","image_url":` + long + `}`:                                       Allowed,
		`{"image_url":{"url":` + long + `},"type":"image_url"}`:                                 Allowed,
		`{"type":"input_image","image_url":"\u0064ata:,x"}`:                                     Allowed,
		`{"type":"input_image","image_url":` + far + `,"url":` + near + `}`:                     RefusedSource,
		`{"url":` + near + `,"type":"input_image","image_url":` + far + `}`:                     RefusedSource,
		`{"type":"image_url","image_url":{"url":` + far + `,"image_url":{"url":` + near + `}}}`: RefusedSource,
		`{"type":"image_url","image_url":{"x":{"url":` + near + `},"url":` + far + `}}`:         RefusedSource,
		`{"type":"image_url","image_url":{}}`:                                                   RefusedSource,
		`{"type":"input_image"}`:                                                                RefusedSource,
		`{"type":"input_image","image_url":"https://x/` + strings.Repeat("data:", 100) + `"}`:   RefusedSource,
		`{"t\u0079pe":"input_im\u0061ge","image_url":` + far + `}`:                              RefusedSource,
		`{"file_id":"f"}`:     RefusedSource,
		`{"file_url":null}`:   Allowed,
		`{"type":"mcp_call"}`: RefusedServerTool,
	} {
		body := `{"model":"m","store":false,"input":[{"role":"user","content":[` + item + `]}]}`
		if r := Rule("openai", "POST", "/v1/responses", "", []byte(body)); r.Verdict != want {
			t.Errorf("%.120s: %s (%s), want %s", item, r.Verdict, r.What, want)
		}
	}
}

func body(s string) io.ReadCloser { return io.NopCloser(strings.NewReader(s)) }

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.ParseRequestURI(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
