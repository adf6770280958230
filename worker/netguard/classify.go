// Package netguard decides which addresses a worker may reach, and is the one place where it dials.
//
// [Classify] is a pure function from an address to a [Verdict]; [Policy.Permits] adds what an administrator named for one connection;
// [Guard.Dial] enforces it: a name is resolved once, every answer must pass, and exactly a checked address is dialed. There is no second
// resolution, so a name that changes its answer between check and use (DNS rebinding) gains nothing, and there is no proxy and no
// redirect, so nothing else can choose the address.
//
// The base of the special ranges is code.dny.dev/ssrf (the IANA registries); this package names them, and adds what the registries do
// not hold: metadata services at ordinary addresses, and addresses that carry another one inside.
package netguard

import (
	"net/netip"

	"code.dny.dev/ssrf"
)

// Verdict is what kind of destination an address is.
type Verdict int

// Verdicts. Only Public is reachable by default; an administrator may name prefixes of the four that [Verdict.Nameable] lists.
const (
	Invalid     Verdict = iota // not an address; the zero value never passes
	Public                     // global unicast, no special range
	Loopback                   // 127.0.0.0/8, ::1
	Private                    // RFC 1918, RFC 4193
	Shared                     // 100.64.0.0/10, carrier-grade NAT and overlay networks, RFC 6598
	Translated                 // 64:ff9b::/96 with a public IPv4 address inside, RFC 6052: an IPv6-only site's way to the internet
	LinkLocal                  // 169.254.0.0/16, fe80::/10
	Metadata                   // a cloud's metadata or control service
	Multicast                  // 224.0.0.0/4, ff00::/8
	Broadcast                  // 255.255.255.255
	Unspecified                // 0.0.0.0/8, ::
	Embedded                   // IPv6 that carries an IPv4 address: mapped, compatible, NAT64, 6to4, Teredo
	Zoned                      // an IPv6 address with a zone
	Reserved                   // every other special range
)

var verdictNames = [...]string{
	Invalid: "invalid", Public: "public", Loopback: "loopback", Private: "private", Shared: "shared", Translated: "translated",
	LinkLocal: "link-local", Metadata: "metadata", Multicast: "multicast", Broadcast: "broadcast", Unspecified: "unspecified",
	Embedded: "embedded", Zoned: "zoned", Reserved: "reserved",
}

// String names the verdict in one word.
func (v Verdict) String() string {
	if v < 0 || int(v) >= len(verdictNames) {
		return "unknown"
	}
	return verdictNames[v]
}

// Nameable reports whether a connection's network.allow may open addresses of this kind. Link-local and metadata never: what answers there
// hands out the machine's own identity.
func (v Verdict) Nameable() bool {
	switch v {
	case Loopback, Private, Shared, Translated:
		return true
	}
	return false
}

func prefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, s := range list {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

// ranges is searched in order; the first that contains the address gives its verdict. What no range contains is asked of the registries.
var ranges = []struct {
	verdict Verdict
	in      []netip.Prefix
}{
	{Metadata, prefixes(
		"169.254.169.254/32", // most clouds
		"169.254.169.253/32", // AWS resolver
		"169.254.170.0/24",   // AWS container credentials
		"169.254.0.23/32",    // Tencent
		"168.63.129.16/32",   // Azure: an address of the public space that only ever means the host
		"100.100.100.200/32", // Alibaba: inside the shared range
		"192.0.0.192/32",     // Oracle
		"fd00:ec2::/32",      // AWS, all local services
		"fd20:ce::254/128",   // Google
		"fd00:42::42/128",    // Scaleway
	)},
	{Broadcast, prefixes("255.255.255.255/32")},
	{Unspecified, prefixes("0.0.0.0/8", "::/128")},
	{Loopback, prefixes("127.0.0.0/8", "::1/128")},
	{LinkLocal, prefixes("169.254.0.0/16", "fe80::/10")},
	{Private, prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")},
	{Shared, prefixes("100.64.0.0/10")},
	{Multicast, prefixes("224.0.0.0/4", "ff00::/8")},
	{Embedded, prefixes(
		"::ffff:0:0/96",   // mapped, RFC 4291
		"::/96",           // compatible, RFC 4291
		"::ffff:0:0:0/96", // translated, RFC 2765
		"64:ff9b:1::/48",  // local NAT64, RFC 8215: where the IPv4 address stands depends on the site, so it cannot be checked
		"2002::/16",       // 6to4, RFC 3056
		"2001::/32",       // Teredo, RFC 4380
	)},
}

// nat64 is the well-known prefix of RFC 6052; the IPv4 address is its last four bytes.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// registries holds the IANA special-purpose registries and, for IPv6, everything outside 2000::/3.
var registries = ssrf.New(ssrf.WithAnyPort())

// Classify says what kind of destination a is. It is pure and total: what it does not know is not Public.
func Classify(a netip.Addr) Verdict {
	if !a.IsValid() {
		return Invalid
	}
	if a.Zone() != "" {
		return Zoned
	}
	if nat64.Contains(a) {
		b := a.As16()
		if Classify(netip.AddrFrom4([4]byte(b[12:]))) == Public {
			return Translated
		}
		return Embedded
	}
	for _, r := range ranges {
		for _, p := range r.in {
			if p.Contains(a) {
				return r.verdict
			}
		}
	}
	if registries.SafeAddr(a) != nil {
		return Reserved
	}
	return Public
}
