package upstream

import (
	"bytes"
	"context"
	"slices"

	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

// Bounds of a catalog.
const (
	maxTools        = 512
	maxCatalogBytes = 4 << 20
	maxPages        = 64
	maxCursor       = 8 << 10
)

// CatalogTool is one tool as the server describes it.
type CatalogTool struct {
	Name string
	Raw  []byte // the server's bytes
}

// Excluded is a tool that must not be offered.
type Excluded struct {
	Name   string
	Reason string
}

// Catalog is a server's list of tools, sorted by name.
type Catalog struct {
	Tools    []CatalogTool
	Excluded []Excluded // tools with invalid x-mcp-header annotations (2026-07-28 demands it)
	Protocol string
	Pages    int
}

// Bytes is the catalog as it is stored: {"v":1,"tools":[...]}, each tool's bytes as they came.
func (l *Catalog) Bytes() []byte {
	b := []byte(`{"v":1,"tools":[`)
	for i, t := range l.Tools {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, t.Raw...)
	}
	return append(b, `]}`...)
}

// ListTools asks the server for all its tools, within bounds. A list that cannot be read whole is an error, never a shorter list. Errors:
// *[Error].
func (c *Client) ListTools(ctx context.Context, t *Target) (*Catalog, error) {
	r, err := newRoute(t)
	if err != nil {
		return nil, err
	}
	r.limits.Result = max(r.limits.Result, maxCatalogBytes)
	revision, err := c.revision(ctx, r)
	if err != nil {
		return nil, err
	}
	var s *session
	if revision != Modern {
		if s, err = c.initialize(ctx, r, revision, false); err != nil {
			return nil, err
		}
		defer c.leave(r, s)
		revision = s.revision
	}
	return c.listTools(ctx, r, revision, s)
}

// leave ends a session of our own in the background: the catalog does not wait for it.
func (c *Client) leave(r *route, s *session) {
	if s == nil || s.id == "" || c.stopped.Err() != nil {
		return
	}
	c.background.Go(func() { _ = c.endSession(c.stopped, r, s) })
}

func (c *Client) listTools(ctx context.Context, r *route, revision string, s *session) (*Catalog, error) {
	out := &Catalog{Protocol: revision}
	var cursor *string // an empty one is a cursor like any other (2026-07-28, "Pagination")
	cursors, size := map[string]bool{}, 0
	for {
		if out.Pages++; out.Pages > maxPages {
			return nil, tooMuch("the list of tools has more than %d pages", maxPages)
		}
		q := &rpc{version: c.version, id: askID("tools"), method: "tools/list"}
		if cursor != nil {
			q.params = appendText(q.params, "cursor", *cursor)
		}
		id := ""
		if revision == Modern {
			q.modern(false)
		} else {
			id = s.id
		}
		x := c.newExchange(r, q, revision, id, "", nil)
		x.patient = true
		rep, err := c.ask(ctx, r, x)
		if err != nil {
			return nil, err
		}
		if rep.failure != "" || rep.message.fault != nil {
			return nil, asking("tools/list", &rep)
		}
		list, ok := strictjson.Lookup(rep.message.result, "tools")
		if !ok || list[0] != '[' {
			return nil, unusable("the server's list of tools is not a list")
		}
		for raw := range strictjson.Elements(list) {
			name := text(raw, "name")
			if raw[0] != '{' || name == "" {
				return nil, unusable("the server lists a tool without a name")
			}
			if _, echoed := r.credential.scrubJSON(raw); echoed {
				// A catalog is kept, reviewed and served as it came; what was taken out of it would be another one.
				return nil, unusable("the server's list of tools holds the credential that it was sent: tell its operator, and replace the credential")
			}
			if size += len(raw); size > maxCatalogBytes || len(out.Tools)+len(out.Excluded) >= maxTools {
				return nil, tooMuch("the list of tools is over %d bytes or %d tools", maxCatalogBytes, maxTools)
			}
			if revision == Modern {
				if _, err := paramAnnotations(raw); err != nil {
					out.Excluded = append(out.Excluded, Excluded{Name: name, Reason: err.Error()})
					continue
				}
			}
			out.Tools = append(out.Tools, CatalogTool{Name: name, Raw: bytes.Clone(raw)})
		}
		next, ok := strictjson.Lookup(rep.message.result, "nextCursor")
		if !ok || string(next) == "null" {
			break
		}
		token, ok := strictjson.Unquote(next)
		if !ok || len(token) > maxCursor {
			return nil, unusable("the server's list of tools goes on with a cursor that is no text, or too long")
		}
		if cursors[token] {
			return nil, unusable("the server's list of tools goes round in a circle (a cursor came twice)")
		}
		cursors[token] = true
		cursor = &token
	}
	slices.SortFunc(out.Tools, func(a, b CatalogTool) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	for i := 1; i < len(out.Tools); i++ {
		if out.Tools[i].Name == out.Tools[i-1].Name {
			return nil, unusable("the server lists a tool twice")
		}
	}
	return out, nil
}

func tooMuch(format string, args ...any) *Error {
	return &Error{Failure: FailOversize, err: errs.Newf(errs.Oversize, format, args...)}
}

func unusable(message string) *Error {
	return &Error{Failure: FailJSON, err: errs.New(errs.Unreachable, message)}
}
