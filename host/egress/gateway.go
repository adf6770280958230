package egress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"sallyport.dev/errs"
)

// Decision is one line of the record: what a sandbox asked of the outside, and what was said.
type Decision struct {
	Session  string
	At       time.Time
	Kind     string // model | connect
	Target   string
	Verdict  Verdict
	Reason   string
	BytesIn  int64 // towards the sandbox
	BytesOut int64
	Tokens   int64
}

// Policy is what a session may reach.
type Policy struct {
	Session     string
	Provider    string   // anthropic | openai | none
	Allow       []string // features beyond the strict default
	MaxRequests int64    // 0: no bound
	MaxBytes    int64
	MaxTokens   int64
}

// Gateway serves one session. Safe for concurrent use.
type Gateway struct {
	policy Policy
	source Source
	keys   *keys
	target *url.URL
	proxy  *httputil.ReverseProxy
	record func(Decision)
	log    *slog.Logger

	bodies   *semaphore.Weighted // bytes of bodies under way
	arriving *pace
	refusals *pace
	off      atomic.Bool
	requests atomic.Int64
	bytes    atomic.Int64
	tokens   atomic.Int64
}

// Transport bounds of a model provider. A model may think for long before its first byte.
const (
	dialTime   = 10 * time.Second
	headerTime = 10 * time.Minute
	idleTime   = 90 * time.Second
	maxHeader  = 64 << 10
)

// NewTransport is the host's one pool of connections to model providers. No proxy of the environment applies.
func NewTransport() *http.Transport {
	return &http.Transport{
		Proxy:       nil,
		DialContext: (&net.Dialer{Timeout: dialTime}).DialContext, TLSHandshakeTimeout: dialTime,
		ResponseHeaderTimeout: headerTime, IdleConnTimeout: idleTime, MaxIdleConnsPerHost: 64, ForceAttemptHTTP2: true, DisableCompression: true,
		MaxResponseHeaderBytes: maxHeader,
	}
}

var origins = map[string]string{"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com"}

func (s Source) target() (*url.URL, error) {
	address := s.URL
	if address == "" {
		address = origins[s.Provider]
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || (u.Scheme != "https" && u.Scheme != "http") {
		return nil, errs.Newf(errs.Invalid, "the model source's url %q is not an https address", address)
	}
	return u, nil
}

// New makes a session's gateway. source is unused when the policy has no model. record gets every decision and must not block.
func New(p Policy, source Source, transport http.RoundTripper, record func(Decision), log *slog.Logger) (*Gateway, error) {
	g := &Gateway{
		policy: p, source: source, keys: &keys{source: source}, record: record, log: log, bodies: newBodies(),
		arriving: &pace{burst: requestsBurst, every: requestsEvery}, refusals: &pace{burst: refusalsBurst, every: refusalsEvery},
	}
	if p.Provider == "none" || p.Provider == "" {
		return g, nil
	}
	if source.Provider != p.Provider {
		return nil, errs.Newf(errs.Invalid, "the profile wants a model of %s, the host's source is of %s", p.Provider, source.Provider)
	}
	var err error
	if g.target, err = source.target(); err != nil {
		return nil, err
	}
	g.proxy = &httputil.ReverseProxy{
		Transport: transport, Rewrite: g.rewrite, FlushInterval: -1, ModifyResponse: g.answered,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				log.Warn("model provider", "session", p.Session, "err", err)
			}
			answer(w, p.Provider, http.StatusBadGateway, "the model provider does not answer")
		},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return g, nil
}

// Ready says whether the session's model has a key now, so that a person hears of a missing one before the agent does. Nil without a model.
// Errors: [errs.NotConnected].
func (g *Gateway) Ready(ctx context.Context) error {
	if g.target == nil {
		return nil
	}
	_, err := g.keys.get(ctx)
	return err
}

// Revoke withdraws the model at once: what is streaming ends with the next chunk.
func (g *Gateway) Revoke(off bool) { g.off.Store(off) }

// Counts are what the session used so far.
func (g *Gateway) Counts() (requests, bytes, tokens int64) {
	return g.requests.Load(), g.bytes.Load(), g.tokens.Load()
}

type usage struct {
	decision Decision
	key      Key
	path     string
	betas    []string
}

type usageKey struct{}

// ServeHTTP rules on one request and forwards exactly the bytes that were ruled on.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d := Decision{Session: g.policy.Session, At: time.Now(), Kind: "model", Target: safe(r.Method + " " + r.URL.Path)}
	done := func(ruling Ruling, status int) {
		d.Verdict, d.Reason = ruling.Verdict, safe(ruling.What)
		message := "the model gateway refuses " + d.Reason
		if ruling.Feature != "" {
			message += "; the profile can let it in by name: model.allow: [" + safe(ruling.Feature) + "]"
		}
		g.refusals.wait(r.Context())
		g.record(d)
		answer(w, g.policy.Provider, status, message)
	}
	g.arriving.wait(r.Context())
	prefix, path, ok := splitPath(r)
	switch {
	case !ok:
		done(refuse(RefusedPath, "this path", ""), http.StatusNotFound)
		return
	case prefix != g.policy.Provider || g.proxy == nil:
		done(refuse(RefusedOff, "models of "+prefix+": this profile has none", ""), http.StatusForbidden)
		return
	case g.off.Load():
		done(refuse(RefusedOff, "the model: access was withdrawn", ""), http.StatusForbidden)
		return
	case g.spent():
		done(refuse(RefusedSize, "more: this session's model budget is used up", ""), http.StatusTooManyRequests)
		return
	case r.Header.Get("Upgrade") != "":
		done(refuse(RefusedPath, "upgraded connections", ""), http.StatusForbidden)
		return
	case r.Header.Get("Content-Encoding") != "":
		done(refuse(RefusedBody, "encoded bodies", ""), http.StatusUnsupportedMediaType)
		return
	}
	body, free, err := g.body(w, r)
	if err != nil {
		done(refuse(RefusedSize, fmt.Sprintf("bodies that are cut, or over %d bytes", MaxBody), ""), http.StatusRequestEntityTooLarge)
		return
	}
	defer free()
	ruling, err := g.rule(r.Context(), prefix, r.Method, path, r.URL.RawQuery, body)
	if err != nil {
		return // nobody waits for the answer
	}
	betas, betaRuling := anthropicBeta(r.Header.Values("Anthropic-Beta"), g.policy.Allow)
	if ruling.Verdict == Allowed {
		ruling = betaRuling
	}
	if ruling.Verdict != Allowed {
		free()
		done(ruling, http.StatusForbidden)
		return
	}
	key, err := g.keys.get(r.Context())
	if err != nil {
		done(refuse(RefusedOff, errs.Message(err), ""), http.StatusServiceUnavailable)
		return
	}
	g.requests.Add(1)
	d.BytesOut = int64(len(body))
	u := &usage{decision: d, key: key, path: path, betas: betas}
	u.decision.Verdict = Allowed
	r.Body, r.ContentLength = &sending{bytes.NewReader(body), free}, int64(len(body))
	r.TransferEncoding = nil
	counted := &counter{ResponseWriter: w, gateway: g, usage: u}
	g.proxy.ServeHTTP(counted, r.WithContext(context.WithValue(r.Context(), usageKey{}, u)))
	counted.end()
	g.record(u.decision)
}

// Rule says whether a request may be forwarded to a provider's API. Pure.
func Rule(provider, method, path, query string, body []byte, allow ...string) Ruling {
	switch provider {
	case "anthropic":
		return anthropicRequest(method, path, query, body, allow)
	case "openai":
		return openaiRequest(method, path, query, body, allow)
	}
	return refuse(RefusedOff, "models of "+provider, "")
}

func (g *Gateway) spent() bool {
	over := func(used, bound int64) bool { return bound > 0 && used >= bound }
	return over(g.requests.Load(), g.policy.MaxRequests) || over(g.bytes.Load(), g.policy.MaxBytes) || over(g.tokens.Load(), g.policy.MaxTokens)
}

// splitPath takes /anthropic or /openai off. A path that is not clean is refused, not cleaned: what is ruled on is what is sent.
func splitPath(r *http.Request) (prefix, path string, ok bool) {
	p := r.URL.Path
	if r.URL.RawPath != "" || r.Method == http.MethodConnect || r.URL.Host != "" || strings.Contains(p, "//") || strings.Contains(p, "/.") || strings.ContainsAny(p, "\\;%") {
		return "", "", false
	}
	for _, prefix := range []string{"anthropic", "openai"} {
		if rest, found := strings.CutPrefix(p, "/"+prefix); found && (rest == "" || rest[0] == '/') {
			return prefix, rest, true
		}
	}
	return "", "", false
}

// guestHeaders are the guest's headers that pass. Authorization, cookies, forwarding and everything else are dropped.
var guestHeaders = []string{"Content-Type", "Accept", "Anthropic-Version", "User-Agent", "X-App", "Openai-Beta", "Session_id", "Conversation_id", "Originator"}

func (g *Gateway) rewrite(p *httputil.ProxyRequest) {
	u := p.In.Context().Value(usageKey{}).(*usage)
	h := http.Header{}
	for _, name := range guestHeaders {
		if v := p.In.Header.Get(name); v != "" {
			h.Set(name, v)
		}
	}
	for name, v := range p.In.Header {
		if strings.HasPrefix(name, "X-Stainless-") && len(v) == 1 {
			h.Set(name, v[0])
		}
	}
	if len(u.betas) > 0 {
		h.Set("Anthropic-Beta", strings.Join(u.betas, ","))
	}
	h.Set("Accept-Encoding", "identity")
	g.source.authorize(h, u.key)
	p.Out.Header = h
	out := *g.target
	out.Path = strings.TrimSuffix(g.target.Path, "/") + u.path
	if g.policy.Provider == "openai" && g.target.Path != "" {
		out.Path = strings.TrimSuffix(g.target.Path, "/") + strings.TrimPrefix(u.path, "/v1")
	}
	out.RawQuery = p.In.URL.RawQuery
	p.Out.URL, p.Out.Host = &out, g.target.Host
}

// answered looks at the provider's answer. A redirect is never handed on: the guest could only follow it nowhere, and a key might have gone with it.
func (g *Gateway) answered(r *http.Response) error {
	if r.StatusCode >= 300 && r.StatusCode < 400 {
		return errors.New("the provider redirects")
	}
	if r.StatusCode == http.StatusUnauthorized {
		g.keys.forget()
	}
	for name := range r.Header {
		if name == "Set-Cookie" || name == "Alt-Svc" || strings.HasPrefix(name, "Cf-") {
			r.Header.Del(name)
		}
	}
	return nil
}

// answer writes an error in the provider's own form, so that harnesses show it.
func answer(w http.ResponseWriter, provider string, status int, message string) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Should-Retry", "false")
	w.WriteHeader(status)
	if provider == "openai" {
		fmt.Fprintf(w, `{"error":{"message":%s,"type":"invalid_request_error","code":"sallyport"}}`, strconv.Quote(message))
		return
	}
	fmt.Fprintf(w, `{"type":"error","error":{"type":"permission_error","message":%s}}`, strconv.Quote(message))
}

// Features lists what a profile may name in model.allow, for its documentation.
func Features() []string {
	out := slices.Concat(anthropicOutside, []string{"web_search", "web_fetch", "store", "previous_response_id"})
	slices.Sort(out)
	return out
}
