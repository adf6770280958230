package netguard

import (
	"net/netip"
	"strings"

	"sallyport.dev/errs"
)

// Policy is what one connection may reach: public addresses over TLS, and what an administrator named beyond.
type Policy struct {
	Allow     []netip.Prefix // from [ParsePolicy]
	PlainHTTP bool
}

// maxAllow bounds the prefixes of one connection.
const maxAllow = 64

// nameable are the ranges that an administrator may open, whole or in part.
var nameable = prefixes("127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "100.64.0.0/10", "64:ff9b::/96")

// ParsePolicy reads a connection's network. A prefix must lie within one private range, so that no entry opens more than it says, and must
// not lie within a metadata range. Errors: [errs.Invalid].
func ParsePolicy(allow []string, plainHTTP bool) (Policy, error) {
	if len(allow) > maxAllow {
		return Policy{}, errs.Newf(errs.Invalid, "network.allow has %d entries; at most %d", len(allow), maxAllow)
	}
	p := Policy{PlainHTTP: plainHTTP}
	for _, s := range allow {
		prefix, err := netip.ParsePrefix(s)
		if err != nil {
			return Policy{}, errs.Wrap(errs.Invalid, "network.allow takes prefixes such as 10.20.0.0/16", err)
		}
		if prefix != prefix.Masked() {
			return Policy{}, errs.Newf(errs.Invalid, "network.allow: %s has bits beyond its length; write %s", prefix, prefix.Masked())
		}
		if !within(prefix, nameable) {
			return Policy{}, errs.Newf(errs.Invalid, "network.allow: %s is not inside a private range (link-local and metadata addresses are never allowed, public ones need no entry)", prefix)
		}
		if within(prefix, ranges[0].in) {
			return Policy{}, errs.Newf(errs.Invalid, "network.allow: %s is a metadata address, which is never allowed", prefix)
		}
		p.Allow = append(p.Allow, prefix)
	}
	return p, nil
}

func within(p netip.Prefix, in []netip.Prefix) bool {
	for _, r := range in {
		if r.Bits() <= p.Bits() && r.Contains(p.Addr()) {
			return true
		}
	}
	return false
}

// Permits reports whether a may be dialed, and what kind of destination it is. It is pure.
func (p Policy) Permits(a netip.Addr) (Verdict, bool) {
	v := Classify(a)
	if v == Public {
		return v, true
	}
	if !v.Nameable() {
		return v, false
	}
	for _, r := range p.Allow {
		if r.Contains(a) {
			return v, true
		}
	}
	return v, false
}

// Key is a text that is equal for policies that permit the same: connections opened under one policy are never used under another.
func (p Policy) Key() string {
	var b strings.Builder
	if p.PlainHTTP {
		b.WriteString("http")
	}
	for _, r := range p.Allow {
		b.WriteByte(' ')
		b.WriteString(r.String())
	}
	return b.String()
}
