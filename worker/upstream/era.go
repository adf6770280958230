package upstream

import (
	"context"
	"slices"
	"sync"

	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

// eras remembers which revision a server speaks, per connection key and path. It is a property of the server, not of a request (2026-07-28,
// "Backward Compatibility with Initialization-Based Versions").
type eras struct {
	mu   sync.Mutex
	seen map[string]string
}

// maxEras bounds the memory; beyond it everything is asked again.
const maxEras = 1024

func (e *eras) get(key string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen[key]
}

func (e *eras) set(key, revision string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.seen == nil || len(e.seen) >= maxEras {
		e.seen = map[string]string{}
	}
	e.seen[key] = revision
}

func (e *eras) forget(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.seen, key)
}

func (r *route) eraKey() string { return r.key + "\n" + r.path }

// revision settles which revision r's server speaks: the target's own word, what was learned before, or the answer to server/discover.
func (c *Client) revision(ctx context.Context, r *route) (string, error) {
	if r.protocol != "" {
		if r.protocol != Modern && !knownOld(r.protocol) {
			return "", badRequest("the connection names a revision of the protocol that is not known here; test it again", nil)
		}
		return r.protocol, nil
	}
	if known := c.eras.get(r.eraKey()); known != "" {
		return known, nil
	}
	found, _, err := c.discover(ctx, r)
	if err != nil {
		return "", err
	}
	c.eras.set(r.eraKey(), found)
	return found, nil
}

// discover asks server/discover and reads the era from what comes (2026-07-28, Streamable HTTP, "Backward Compatibility"): a result or an error
// that only a modern server gives means modern, a refused credential, a redirect or an outage means nothing, anything else an old server.
// The DiscoverResult is returned where there is one.
func (c *Client) discover(ctx context.Context, r *route) (revision string, result []byte, err error) {
	q := &rpc{version: c.version, id: askID("discover"), method: "server/discover"}
	q.modern(false)
	rep, err := c.ask(ctx, r, c.newExchange(r, q, Modern, "", "", nil))
	if err != nil {
		return "", nil, err
	}
	return readDiscovery(&rep)
}

func readDiscovery(rep *reply) (revision string, result []byte, err error) {
	m := &rep.message
	switch {
	case rep.failure == "" && m.result != nil:
		if _, ok := strictjson.Lookup(m.result, "supportedVersions"); !ok {
			// Not a DiscoverResult, which must have them: some old servers answer every method that they do not know with an empty result.
			return latestOld, nil, nil
		}
		revision = mutual(m.result, "supportedVersions")
		result = m.result
		if revision != "" {
			return revision, result, nil
		}
	case m.fault != nil && m.code == codeVersion:
		data, _ := strictjson.Lookup(m.fault, "data")
		if revision = mutual(data, "supported"); revision != "" {
			return revision, nil, nil
		}
	case m.fault != nil && (m.code == codeHeader || m.code == codeCapability):
		return "", nil, asking("server/discover", rep)
	case rep.failure == "" || rep.failure == FailStatus && !undecided(rep.status) || rep.failure == FailNoAnswer,
		rep.failure == FailMedia, rep.failure == FailJSON, rep.failure == FailID, rep.failure == FailStream, rep.failure == FailTimeout, rep.failure == FailSilence:
		return latestOld, nil, nil
	default:
		return "", nil, asking("server/discover", rep)
	}
	return "", nil, &Error{Failure: FailInitialize, Status: rep.status, err: errs.New(errs.Unreachable, "the server speaks no revision of the protocol that is known here")}
}

// undecided are statuses that say nothing about the era.
func undecided(status int) bool {
	switch status {
	case 401, 403, 407, 408, 421, 425, 429, 502, 503, 504:
		return true
	}
	return status >= 300 && status < 400
}

// mutual picks the newest revision of a list that is spoken here.
func mutual(object []byte, name string) string {
	list, ok := strictjson.Lookup(object, name)
	if !ok {
		return ""
	}
	var theirs []string
	for e := range strictjson.Elements(list) {
		if s, ok := strictjson.Unquote(e); ok {
			theirs = append(theirs, s)
		}
	}
	for _, ours := range Revisions() {
		if slices.Contains(theirs, ours) {
			return ours
		}
	}
	return ""
}
