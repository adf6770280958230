package netguard

import (
	"net/netip"
	"strconv"
	"strings"

	"sallyport.dev/errs"
)

// Origin is where a connection goes: scheme, host and port, nothing else.
type Origin struct {
	TLS  bool
	Host string // lower-case name without a trailing dot, or an address
	Port uint16
	addr netip.Addr // valid when Host is an address
}

// ParseOrigin reads scheme://host[:port], strictly: http or https, no user, path, query or fragment, and a host that every resolver reads
// alike. Shortened, hexadecimal or octal IPv4 forms are refused, because some resolvers take them for addresses. Errors: [errs.Invalid].
func ParseOrigin(s string) (Origin, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	var o Origin
	switch {
	case !ok:
		return o, errs.New(errs.Invalid, "an origin is written as https://host or https://host:port")
	case scheme == "https":
		o.TLS, o.Port = true, 443
	case scheme == "http":
		o.Port = 80
	default:
		return o, errs.New(errs.Invalid, "an origin begins with https:// or http://")
	}
	host, port := rest, ""
	if strings.HasPrefix(rest, "[") {
		end := strings.IndexByte(rest, ']')
		if end < 0 {
			return o, errs.New(errs.Invalid, "an IPv6 host ends with ]")
		}
		host, port = rest[1:end], rest[end+1:]
		a, err := netip.ParseAddr(host)
		if err != nil || !a.Is6() {
			return o, errs.New(errs.Invalid, "the host in brackets is not an IPv6 address")
		}
		if a.Zone() != "" {
			return o, errs.New(errs.Invalid, "an address with a zone is not allowed")
		}
		o.addr, host = a, a.String()
	} else if i := strings.IndexByte(rest, ':'); i >= 0 {
		host, port = rest[:i], rest[i:]
	}
	if port != "" {
		n, err := strconv.ParseUint(strings.TrimPrefix(port, ":"), 10, 16)
		if err != nil || n == 0 || port[0] != ':' || port[1] == '+' {
			return o, errs.New(errs.Invalid, "the port of an origin is a number from 1 to 65535")
		}
		o.Port = uint16(n)
	}
	if !o.addr.IsValid() {
		if a, err := netip.ParseAddr(host); err == nil && a.Is4() {
			o.addr = a
		} else if err := checkName(host); err != nil {
			return o, err
		}
	}
	o.Host = strings.TrimSuffix(strings.ToLower(host), ".")
	return o, nil
}

// checkName accepts DNS names. A last label that begins with a digit is how the URL standard tells a (mis)written IPv4 address from a name;
// no top-level domain begins with one.
func checkName(host string) error {
	name := strings.TrimSuffix(host, ".")
	if name == "" || len(name) > 253 {
		return errs.New(errs.Invalid, "the host of an origin has 1 to 253 characters")
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return errs.New(errs.Invalid, "the host of an origin is not a domain name")
		}
		for i := range len(label) {
			c := label[i]
			if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
				return errs.New(errs.Invalid, "the host of an origin has a character that no domain name has (write international names in their xn-- form)")
			}
		}
		last = label
	}
	if '0' <= last[0] && last[0] <= '9' {
		return errs.New(errs.Invalid, "the host of an origin looks like an address in an unusual form; write a.b.c.d")
	}
	return nil
}

// HostPort is the host as an HTTP Host header has it: the port only where it is not the scheme's own.
func (o Origin) HostPort() string {
	host := o.Host
	if o.addr.Is6() {
		host = "[" + host + "]"
	}
	if o.TLS && o.Port == 443 || !o.TLS && o.Port == 80 {
		return host
	}
	return host + ":" + strconv.Itoa(int(o.Port))
}

// String is the origin in its one written form.
func (o Origin) String() string {
	if o.TLS {
		return "https://" + o.HostPort()
	}
	return "http://" + o.HostPort()
}
