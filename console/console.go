// Package console is the browser's side of Sallyport: pages for people, drawn on the server, live by server-sent events. It is an API client like any
// other: it holds no authority and no state. Every request carries the browser's own session to the API, which decides; hiding a button is not a check.
package console

import (
	"context"
	"embed"
	"errors"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/errs"
)

//go:embed templates/*.html
var templates embed.FS

//go:embed static/*
var static embed.FS

// Config is what the console needs.
type Config struct {
	// API leads to the people's API. Requests carry the session's secret as "Authorization: Bearer SECRET".
	API connect.Transport
	// Public is where browsers reach the console: scheme, host and port alone. Another Host is refused.
	Public *url.URL
	Log    *slog.Logger
	Now    func() time.Time // nil: time.Now
}

type console struct {
	cfg    Config
	api    sallyportv1connect.OperatorClient
	people sallyportv1connect.PeopleClient
	pages  *template.Template
}

// Handler serves the console. It is safe for concurrent use.
func Handler(cfg Config) (http.Handler, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	client := connect.NewClient(cfg.API, carrySession)
	c := &console{cfg: cfg, api: sallyportv1connect.NewOperatorClient(client), people: sallyportv1connect.NewPeopleClient(client)}
	var err error
	if c.pages, err = template.New("").Funcs(c.functions()).ParseFS(templates, "templates/*.html"); err != nil {
		return nil, errs.Wrap(errs.Internal, "a page of the console is malformed", err)
	}
	files, err := fs.Sub(static, "static")
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "the console's files are missing", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /static/", http.StripPrefix("/static/", http.FileServerFS(files)))
	mux.HandleFunc("GET /enter", c.enterPage)
	mux.HandleFunc("POST /enter", c.enter)
	for pattern, page := range map[string]page{
		"GET /{$}":                  c.overview,
		"GET /inbox":                c.inbox,
		"GET /inbox/{id}":           c.question,
		"POST /inbox/{id}":          c.decide,
		"GET /calls":                c.calls,
		"GET /calls/{id}":           c.call,
		"POST /calls/{id}/resolve":  c.resolve,
		"GET /uncertain":            c.uncertain,
		"GET /sessions":             c.sessions,
		"POST /sessions/{id}/close": c.closeSession,
		"GET /connections":          c.connections,
		"GET /machines":             c.machines,
		"GET /profiles":             c.profiles,
		"GET /grants":               c.grants,
		"GET /people":               c.peoplePage,
		"POST /people/end":          c.endPass,
		"GET /switches":             c.switches,
		"POST /switches":            c.throwSwitch,
		"POST /leave":               c.leave,
		"GET /events":               c.events,
		"/":                         notFound,
	} {
		mux.HandleFunc(pattern, c.signedIn(page))
	}
	return c.guard(mux), nil
}

// page is a handler whose error becomes a page.
type page func(w http.ResponseWriter, r *http.Request) error

func notFound(http.ResponseWriter, *http.Request) error {
	return errs.New(errs.NotFound, "there is no such page")
}

type sessionKey struct{}

// carrySession puts the browser's session on every request to the API.
func carrySession(next connect.ClientFunc) connect.ClientFunc {
	return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
		secret, _ := ctx.Value(sessionKey{}).(string)
		if info, ok := connect.CallInfoForClientContext(ctx); ok && secret != "" {
			info.RequestHeader().Set("Authorization", "Bearer "+secret)
		}
		return next(ctx, spec)
	}
}

// failure is an API error as ours: its code, and a message that people can read.
func failure(err error) (code errs.Code, message string, status int) {
	var ce *connect.Error
	if !errors.As(err, &ce) {
		var ours *errs.Error
		if errors.As(err, &ours) {
			return errs.CodeOf(err), errs.Message(err), statusOf(errs.CodeOf(err))
		}
		return errs.Internal, "something went wrong here; the log has the detail", http.StatusInternalServerError
	}
	code = errs.Internal
	for _, d := range ce.Details() {
		if m, derr := connectproto.UnmarshalErrorDetail(d); derr == nil {
			if f, ok := m.(*sallyportv1.Failure); ok {
				code = errs.Code(f.GetCode())
			}
		}
	}
	if ce.Code() == connect.CodeUnauthenticated {
		return code, ce.Message(), http.StatusUnauthorized
	}
	return code, ce.Message(), statusOf(code)
}

func statusOf(code errs.Code) int {
	switch code {
	case errs.NotFound, errs.UnknownCall, errs.UnknownTool:
		return http.StatusNotFound
	case errs.NotAllowed:
		return http.StatusForbidden
	case errs.Conflict, errs.ApprovalExpired, errs.Fenced:
		return http.StatusConflict
	case errs.Invalid, errs.InvalidArguments:
		return http.StatusBadRequest
	case errs.Oversize:
		return http.StatusRequestEntityTooLarge
	case errs.Busy:
		return http.StatusTooManyRequests
	case errs.Unavailable, errs.Unreachable, errs.StoreFull, errs.NotDurable, errs.Quarantined:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// view is what every page gets.
type view struct {
	Title  string
	Here   string // the entry of the menu
	Person string
	Roles  []string
	Now    time.Time
	Live   string // kinds of events after which the page is drawn again
	Data   any
}

// Is reports whether the person has a role, to leave out what would be refused anyway.
func (v view) Is(roles ...string) bool {
	for _, have := range v.Roles {
		if have == "administrator" {
			return true
		}
		for _, r := range roles {
			if r == have {
				return true
			}
		}
	}
	return false
}

// render draws a page for who is signed in.
func (c *console) render(w http.ResponseWriter, r *http.Request, status int, name string, v view) error {
	if v.Person == "" {
		s, err := c.api.Status(r.Context(), &sallyportv1.StatusRequest{})
		if err != nil {
			return err
		}
		v.Person, v.Roles = s.GetPerson(), s.GetRoles()
	}
	return c.write(w, status, name, v)
}

func (c *console) write(w http.ResponseWriter, status int, name string, v view) error {
	v.Now = c.cfg.Now()
	var out strings.Builder
	if err := c.pages.ExecuteTemplate(&out, name, v); err != nil {
		return errs.Wrap(errs.Internal, "the page cannot be drawn", err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, err := w.Write([]byte(out.String()))
	if err != nil {
		c.cfg.Log.Debug("a page was not taken", "err", err)
	}
	return nil
}
