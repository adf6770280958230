package intent

import (
	"net/netip"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"sallyport.dev/errs"
)

// Bounds of an intent's limits.
const (
	MaxResultBytes = 64 << 20
	MaxConnect     = 30 * time.Second
	MaxAnswer      = 30 * time.Minute
	MaxStart       = 5 * time.Minute // from not_before to start_before: how long a worker must remember what it refused
	maxText        = 8 << 10
	maxList        = 64
	idLength       = 26 // 128 bits in lower-case base32
)

// Effects, transports and authentication types that an intent may name.
const (
	Read  = "read"
	Write = "write"

	TransportMCP      = "mcp"
	TransportCallback = "callback"

	AuthNone      = "none"
	AuthHeader    = "header"
	AuthBearer    = "bearer"
	AuthOAuth     = "oauth"
	AuthSignature = "signature"
)

var kinds = map[Kind]bool{Call: true, Probe: true, Catalog: true, Authorize: true, Exchange: true, Refresh: true, Revoke: true, Poll: true, Notify: true}

// Validate reports the first member that has no meaning. It knows nothing of time, keys or what travels beside the intent: see [Check].
// Errors: [errs.Invalid], [errs.ProtectedNumber].
func (in *Intent) Validate() error {
	if in.V != Protected {
		return errs.Newf(errs.ProtectedNumber, "the intent has protected version %d, this build has %d: upgrade the older side", in.V, Protected)
	}
	for _, t := range in.texts() {
		if !plain(t.value) {
			return invalid(t.name, "has a control character, bad UTF-8, or more than 8 KiB")
		}
	}
	switch {
	case !IsID(in.ID):
		return invalid("id", "is not an id")
	case in.Org == "":
		return invalid("org", "is missing")
	case !kinds[in.Kind]:
		return invalid("kind", "is unknown")
	case in.Connection == "":
		return invalid("connection", "is missing")
	case in.Pool == "":
		return invalid("pool", "is missing")
	case in.Audience == "":
		return invalid("audience", "is missing")
	case in.Attempt < 0, in.Epoch < 0, in.Revision < 0, in.Version < 0:
		return invalid("attempt, epoch, revision or version", "is negative")
	case in.Transport != TransportMCP && in.Transport != TransportCallback:
		return invalid("transport", "is unknown")
	case in.Effect != Read && in.Effect != Write:
		return invalid("effect", "is neither read nor write")
	}
	switch in.Kind {
	case Call:
		switch {
		case !IsID(in.Call):
			return invalid("call", "is not an id")
		case !IsID(in.Session):
			return invalid("session", "is not an id")
		case in.Attempt < 1:
			return invalid("attempt", "starts at 1")
		case in.Tool == "":
			return invalid("tool", "is missing")
		case in.Arguments == "":
			return invalid("arguments", "is missing: a call binds its argument bytes")
		case in.Binding == "":
			return invalid("binding", "is missing")
		case in.Authority == "":
			return invalid("authority", "is missing")
		}
	case Poll:
		switch {
		case !IsID(in.Call):
			return invalid("call", "is not an id")
		case !IsID(in.Session):
			return invalid("session", "is not an id")
		case in.Meta == "":
			return invalid("meta", "is missing: a poll binds its task")
		case in.Effect != Read:
			return invalid("effect", "is not read: a poll asks, it never does")
		case in.Transport != TransportMCP:
			return invalid("transport", "is not mcp: nothing else has tasks")
		}
	default:
	}
	if in.Kind != Call && in.Arguments != "" {
		return invalid("arguments", "is for calls only")
	}
	if err := in.validateTarget(); err != nil {
		return err
	}
	return in.validateBounds()
}

func (in *Intent) validateTarget() error {
	u, err := url.Parse(in.Origin)
	switch {
	case err != nil, u.Host == "", u.User != nil, u.Path != "", u.RawQuery != "", u.Fragment != "", u.Scheme+"://"+u.Host != in.Origin:
		return invalid("origin", "is not scheme://host[:port]")
	case strings.ToLower(in.Origin) != in.Origin:
		return invalid("origin", "is not in lower case")
	case u.Scheme != "https" && (u.Scheme != "http" || !in.PlainHTTP):
		return invalid("origin", "is not https, and plain_http is not set")
	case !strings.HasPrefix(in.Path, "/") || strings.Contains(in.Path, "#") || strings.Contains(in.Path, " "):
		return invalid("path", "is not a path with an optional query")
	}
	if len(in.Allow) > maxList || len(in.Scopes) > maxList {
		return invalid("allow or scopes", "has more than 64 entries")
	}
	for _, a := range in.Allow {
		if p, err := netip.ParsePrefix(a); err != nil || p.Masked().String() != a {
			return invalid("allow", "has an entry that is not a CIDR")
		}
	}
	switch in.AuthType {
	case AuthNone:
		if in.Subject != "" || in.Version != 0 {
			return invalid("subject", "is set without authentication")
		}
	case AuthHeader:
		if !isToken(in.AuthHeader) {
			return invalid("auth_header", "is not a header name")
		}
	case AuthBearer, AuthOAuth, AuthSignature:
	default:
		return invalid("auth_type", "is unknown")
	}
	if in.AuthType != AuthHeader && in.AuthHeader != "" {
		return invalid("auth_header", "is for auth_type header only")
	}
	return nil
}

func (in *Intent) validateBounds() error {
	for _, d := range []struct{ name, value string }{
		{"binding", in.Binding}, {"upstream", in.Upstream}, {"schema", in.Schema}, {"arguments", in.Arguments}, {"meta", in.Meta}, {"tls", in.TLS},
	} {
		if d.value != "" && !isDigest(d.value) {
			return invalid(d.name, "is not a digest")
		}
	}
	switch {
	case in.ResultBytes < 1 || in.ResultBytes > MaxResultBytes:
		return invalid("result_bytes", "is out of its bounds")
	case in.ConnectMS < 1 || in.ConnectMS > MaxConnect.Milliseconds():
		return invalid("connect_ms", "is out of its bounds")
	case in.AnswerMS < 1 || in.AnswerMS > MaxAnswer.Milliseconds():
		return invalid("answer_ms", "is out of its bounds")
	case in.SilenceMS < 1 || in.SilenceMS > MaxAnswer.Milliseconds():
		return invalid("silence_ms", "is out of its bounds")
	case in.NotBefore < 1 || in.StartBefore < in.NotBefore || in.FinishBefore < in.StartBefore:
		return invalid("not_before, start_before, finish_before", "are not in order")
	case in.StartBefore-in.NotBefore > MaxStart.Milliseconds():
		return invalid("start_before", "lies more than 5 minutes after not_before")
	}
	return nil
}

type text struct{ name, value string }

func (in *Intent) texts() []text {
	ts := []text{
		{"org", in.Org},
		{"connection", in.Connection},
		{"pool", in.Pool},
		{"origin", in.Origin},
		{"path", in.Path},
		{"auth_header", in.AuthHeader},
		{"subject", in.Subject},
		{"account", in.Account},
		{"protocol", in.Protocol},
		{"tool", in.Tool},
		{"authority", in.Authority},
		{"owner", in.Owner},
		{"trace", in.Trace},
		{"audience", in.Audience},
		{"call", in.Call},
		{"session", in.Session},
	}
	for _, s := range in.Scopes {
		ts = append(ts, text{"scopes", s})
	}
	return ts
}

// IsID reports whether s has the form of an id: 26 characters of lower-case base32 (RFC 4648 section 6).
func IsID(s string) bool {
	if len(s) != idLength {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return true
}

func isDigest(s string) bool {
	if len(s) != 64 {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// isToken is the token of RFC 9110 section 5.6.2.
func isToken(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

func plain(s string) bool {
	if len(s) > maxText || !utf8.ValidString(s) {
		return false
	}
	for _, c := range []byte(s) {
		if c < 0x20 || c == 0x7f {
			return false
		}
	}
	return true
}

func invalid(member, what string) error {
	return errs.Newf(errs.Invalid, "the intent's %s %s", member, what)
}
