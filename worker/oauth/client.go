package oauth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"sallyport.dev/errs"
	"sallyport.dev/intent"
	wire "sallyport.dev/intent/oauth"
	"sallyport.dev/worker/netguard"
)

// Bounds of every exchange.
const (
	maxBody     = 256 << 10
	requestTime = 20 * time.Second
)

// Error is a sign-in that stopped. Failure is the word for machines; the message is safe to show.
type Error struct {
	Failure wire.Failure
	err     *errs.Error
}

// Error returns failure, code, message and detail, for logs.
func (e *Error) Error() string { return string(e.Failure) + ": " + e.err.Error() }

// Unwrap gives the [errs.Error].
func (e *Error) Unwrap() error { return e.err }

// FailureOf returns the word of an error of this package, [wire.FailRequest] for any other.
func FailureOf(err error) wire.Failure {
	var e *Error
	if errors.As(err, &e) {
		return e.Failure
	}
	return wire.FailRequest
}

func failf(f wire.Failure, code errs.Code, format string, args ...any) *Error {
	return &Error{Failure: f, err: errs.Newf(code, format, args...)}
}

// Client signs in for connections. Safe for concurrent use.
type Client struct {
	guard *netguard.Guard
	now   func() time.Time
	trust netguard.Trust
}

// New makes a client that dials through guard.
func New(guard *netguard.Guard) *Client { return &Client{guard: guard, now: time.Now} }

// Trusting is the client for a connection whose TLS rests on more than the guard's authorities.
func (c *Client) Trusting(t netguard.Trust) *Client {
	with := *c
	with.trust = t
	return &with
}

// session is one connection's view: what it may reach, and which resource it is.
type session struct {
	*Client
	http     *http.Client
	policy   netguard.Policy
	endpoint string // origin and path, without query: the resource's own address
	origin   string
}

func (c *Client) session(in *intent.Intent) (*session, error) {
	policy, err := netguard.ParsePolicy(in.Allow, in.PlainHTTP)
	if err != nil {
		return nil, &Error{wire.FailRequest, errs.Wrap(errs.Invalid, errs.Message(err), err)}
	}
	own, err := netguard.ParseOrigin(in.Origin)
	if err != nil {
		return nil, &Error{wire.FailRequest, errs.Wrap(errs.Invalid, errs.Message(err), err)}
	}
	path, _, _ := strings.Cut(in.Path, "?")
	return &session{Client: c, http: c.guard.HTTPClient(policy, own, c.trust), policy: policy, endpoint: in.Origin + path, origin: in.Origin}, nil
}

// address checks an address that a server named: https (or http where the connection may), a host that the guard reads, no user, no fragment.
func (s *session) address(what, text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Opaque != "" || u.User != nil || u.Fragment != "" || strings.Contains(text, "#") || !printable(text) {
		return nil, failf(wire.FailDiscovery, errs.Unreachable, "the server's %s is not an address", what)
	}
	o, err := netguard.ParseOrigin(u.Scheme + "://" + u.Host)
	if err != nil {
		return nil, failf(wire.FailDiscovery, errs.Unreachable, "the server's %s is not an address that can be used: %s", what, errs.Message(err))
	}
	if !o.TLS && !s.policy.PlainHTTP {
		return nil, failf(wire.FailAddress, errs.NotAllowed, "the server's %s is not https", what)
	}
	return u, nil
}

func printable(text string) bool {
	for _, c := range []byte(text) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return len(text) <= 4<<10
}

// do makes one request and reads its whole, bounded body.
func (s *session) do(ctx context.Context, req *http.Request) (*http.Response, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	req.Header.Set("User-Agent", "sallyport")
	if req.Header.Get("Accept") == "" {
		req.Header.Set("Accept", "application/json")
	}
	req.GetBody = nil // nothing here may be sent again
	resp, err := s.http.Do(req.WithContext(ctx))
	if err != nil {
		var g *netguard.Error
		if errors.As(err, &g) && g.Step == netguard.StepAddress {
			return nil, nil, &Error{wire.FailAddress, errs.Wrap(errs.NotAllowed, hostOf(req)+": "+errs.Message(g), g)}
		}
		message := "does not answer"
		if errors.As(err, &g) {
			message = errs.Message(g)
		}
		return nil, nil, &Error{wire.FailConnect, errs.Wrap(errs.Unreachable, hostOf(req)+": "+message, strip(err))}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, nil, &Error{wire.FailConnect, errs.Wrap(errs.Unreachable, hostOf(req)+": the answer was cut", strip(err))}
	case len(body) > maxBody:
		return nil, nil, failf(wire.FailDiscovery, errs.Oversize, "%s: the answer is over %d bytes", hostOf(req), maxBody)
	}
	return resp, body, nil
}

// strip takes the address out of an error: it may hold what is nobody's business.
func strip(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

func hostOf(req *http.Request) string { return req.URL.Host }

// get fetches a metadata document. missing: the server has none at this address.
func (s *session) get(ctx context.Context, what string, at string, into any) (missing bool, err error) {
	u, err := s.address(what, at)
	if err != nil {
		return false, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return false, failf(wire.FailDiscovery, errs.Unreachable, "the server's %s is not an address", what)
	}
	resp, body, err := s.do(ctx, req) //nolint:bodyclose // do read and closed it
	if err != nil {
		return false, err
	}
	switch {
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return false, failf(wire.FailDiscovery, errs.Unreachable, "%s redirects where its %s should be (HTTP %d), and no redirect is followed", u.Host, what, resp.StatusCode)
	case resp.StatusCode >= 400 && resp.StatusCode < 500:
		return true, nil
	case resp.StatusCode != http.StatusOK:
		return false, failf(wire.FailDiscovery, errs.Unreachable, "%s has no %s now (HTTP %d)", u.Host, what, resp.StatusCode)
	}
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")) // what cannot be read is no JSON
	if media != "application/json" {
		return true, nil // a page for people: many servers answer every path
	}
	// Members that are not known are allowed (RFC 8414, section 3.2), a name twice is not.
	if err := json.Unmarshal(body, into); err != nil {
		return false, failf(wire.FailDiscovery, errs.Unreachable, "the %s of %s is not strict JSON of the right form", what, u.Host)
	}
	return false, nil
}

// post sends a form or JSON to an endpoint and returns the status and the body.
func (s *session) post(ctx context.Context, what, to, media string, body []byte, header http.Header) (status int, answer []byte, err error) {
	u, err := s.address(what, to)
	if err != nil {
		return 0, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return 0, nil, failf(wire.FailDiscovery, errs.Unreachable, "the server's %s is not an address", what)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set("Content-Type", media)
	resp, answer, err := s.do(ctx, req) //nolint:bodyclose // do read and closed it
	if err != nil {
		return 0, nil, err
	}
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		return 0, nil, failf(wire.FailDiscovery, errs.Unreachable, "the %s of %s redirects (HTTP %d), and no redirect is followed", what, u.Host, resp.StatusCode)
	}
	return resp.StatusCode, answer, nil
}

// quoted shows a value that a server sent: bounded, and with everything that is not plain made visible.
func quoted(s string) string {
	if len(s) > 200 {
		s = s[:200] + "…"
	}
	return fmt.Sprintf("%q", s)
}
