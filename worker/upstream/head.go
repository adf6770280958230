package upstream

import (
	"encoding/base64"
	"strconv"
	"strings"

	"sallyport.dev/errs"
	"sallyport.dev/worker/netguard"
)

// userAgent is fixed: a server learns what calls it, and nothing of whom it calls for.
const userAgent = "sallyport"

func appendHeader(head []byte, name, value string) []byte {
	head = append(head, name...)
	head = append(head, ": "...)
	head = append(head, value...)
	return append(head, "\r\n"...)
}

// appendHead begins a request. Accept-Encoding is stated, because its absence allows any coding (RFC 9110, section 12.5.3). The caller adds
// headers of its own and ends the head with [endHead].
func appendHead(head []byte, method string, r *route, accept string) []byte {
	head = append(head, method...)
	head = append(head, ' ')
	head = append(head, r.path...)
	head = append(head, " HTTP/1.1\r\n"...)
	head = appendHeader(head, "Host", r.origin.HostPort())
	head = appendHeader(head, "User-Agent", userAgent)
	head = appendHeader(head, "Accept", accept)
	head = appendHeader(head, "Accept-Encoding", "identity")
	return r.credential.write(head)
}

// endHead ends a head and appends the body.
func endHead(head, body []byte) []byte {
	head = appendHeader(head, "Content-Type", "application/json")
	head = appendHeader(head, "Content-Length", strconv.Itoa(len(body)))
	head = append(head, "\r\n"...)
	return append(head, body...)
}

// headerText encodes a value for Mcp-Name and Mcp-Param-* (2026-07-28, "Value Encoding"): as it is where it is plain, else base64 between
// markers; also where it only looks like that.
func headerText(s string) string {
	if plainValue(s) && !(strings.HasPrefix(s, "=?base64?") && strings.HasSuffix(s, "?=")) {
		return s
	}
	return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(s)) + "?="
}

// route is a target, read and checked.
type route struct {
	origin     netguard.Origin
	policy     netguard.Policy
	trust      netguard.Trust
	path       string
	key        string // of connections: what may share one
	owner      string // of old-era sessions; "" keeps none
	credential Credential
	protocol   string
	limits     Limits
}

// newRoute checks a target. Errors: *[Error] of FailRequest.
func newRoute(t *Target) (*route, error) {
	origin, err := netguard.ParseOrigin(t.Origin)
	if err != nil {
		return nil, badRequest(errs.Message(err), err)
	}
	policy, err := netguard.ParsePolicy(t.Allow, t.PlainHTTP)
	if err != nil {
		return nil, badRequest(errs.Message(err), err)
	}
	if !validPath(t.Path) {
		return nil, badRequest("the path begins with / and is printable ASCII without spaces or #", nil)
	}
	r := &route{origin: origin, policy: policy, trust: t.Trust, path: t.Path, credential: t.Credential, protocol: t.Protocol, limits: t.Limits.withDefaults()}
	r.key = origin.String() + "\n" + policy.Key() + "\n" + t.Trust.Key() + "\n" + t.Credential.identity()
	if t.Owner != "" {
		r.owner = r.key + "\n" + t.Path + "\n" + t.Owner
	}
	return r, nil
}

func validPath(p string) bool {
	if p == "" || p[0] != '/' || len(p) > 8<<10 {
		return false
	}
	for i := range len(p) {
		if p[i] <= ' ' || p[i] > '~' || p[i] == '#' {
			return false
		}
	}
	return true
}
