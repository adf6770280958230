package netguard

import (
	"net/netip"
	"testing"

	"code.dny.dev/ssrf"
)

func TestClassify(t *testing.T) {
	tests := []struct {
		addr string
		want Verdict
	}{
		// public, and the last and first addresses beside special ranges
		{"1.1.1.1", Public},
		{"8.8.8.8", Public},
		{"9.255.255.255", Public},
		{"11.0.0.0", Public},
		{"126.255.255.255", Public},
		{"128.0.0.1", Public},
		{"172.15.255.255", Public},
		{"172.32.0.0", Public},
		{"192.167.255.255", Public},
		{"192.169.0.0", Public},
		{"169.253.255.255", Public},
		{"169.255.0.0", Public},
		{"100.63.255.255", Public},
		{"100.128.0.0", Public},
		{"223.255.255.255", Public},
		{"168.63.129.15", Public},
		{"168.63.129.17", Public},
		{"2606:4700::1111", Public},
		{"2a00:1450:4001::1", Public},
		{"2001:4860:4860::8888", Public},
		{"2003::1", Public},
		// this network, loopback, private, shared
		{"0.0.0.0", Unspecified},
		{"0.1.2.3", Unspecified},
		{"0.255.255.255", Unspecified},
		{"::", Unspecified},
		{"127.0.0.1", Loopback},
		{"127.255.255.255", Loopback},
		{"::1", Loopback},
		{"10.0.0.0", Private},
		{"10.255.255.255", Private},
		{"172.16.0.1", Private},
		{"172.31.255.255", Private},
		{"192.168.1.1", Private},
		{"fc00::1", Private},
		{"fd12:3456::1", Private},
		{"fdff:ffff::", Private},
		{"100.64.0.1", Shared},
		{"100.127.255.255", Shared},
		// link-local and metadata
		{"169.254.0.1", LinkLocal},
		{"169.254.255.255", LinkLocal},
		{"fe80::1", LinkLocal},
		{"febf::1", LinkLocal},
		{"169.254.169.254", Metadata},
		{"169.254.169.253", Metadata},
		{"169.254.170.2", Metadata},
		{"169.254.170.23", Metadata},
		{"168.63.129.16", Metadata},
		{"100.100.100.200", Metadata},
		{"192.0.0.192", Metadata},
		{"fd00:ec2::254", Metadata},
		{"fd00:ec2::253", Metadata},
		{"fd00:ec2::23", Metadata},
		{"fd20:ce::254", Metadata},
		{"fd00:42::42", Metadata},
		// multicast, broadcast
		{"224.0.0.1", Multicast},
		{"239.255.255.255", Multicast},
		{"ff02::1", Multicast},
		{"ff0e::1", Multicast},
		{"255.255.255.255", Broadcast},
		// addresses inside addresses
		{"::ffff:127.0.0.1", Embedded},
		{"::ffff:8.8.8.8", Embedded},
		{"::ffff:169.254.169.254", Embedded},
		{"::127.0.0.1", Embedded},
		{"::8.8.8.8", Embedded},
		{"::ffff:0:127.0.0.1", Embedded},
		{"64:ff9b::127.0.0.1", Embedded},
		{"64:ff9b::169.254.169.254", Embedded},
		{"64:ff9b::10.0.0.1", Embedded},
		{"64:ff9b::168.63.129.16", Embedded},
		{"64:ff9b::8.8.8.8", Translated},
		{"64:ff9b:1::8.8.8.8", Embedded},
		{"64:ff9b:1:ffff::1", Embedded},
		{"2002:7f00:1::", Embedded},
		{"2002:808:808::1", Embedded},
		{"2001::1", Embedded},
		{"2001:0:7f00:1::", Embedded},
		// zones
		{"fe80::1%eth0", Zoned},
		{"2606:4700::1111%eth0", Zoned},
		{"::1%lo", Zoned},
		// the registries' rest
		{"192.0.0.1", Reserved},
		{"192.0.2.1", Reserved},
		{"192.31.196.1", Reserved},
		{"192.52.193.1", Reserved},
		{"192.88.99.1", Reserved},
		{"192.175.48.1", Reserved},
		{"198.18.0.1", Reserved},
		{"198.19.255.255", Reserved},
		{"198.51.100.1", Reserved},
		{"203.0.113.1", Reserved},
		{"240.0.0.1", Reserved},
		{"254.255.255.255", Reserved},
		{"fec0::1", Reserved},
		{"100::1", Reserved},
		{"100:0:0:1::1", Reserved},
		{"5f00::1", Reserved},
		{"2001:db8::1", Reserved},
		{"2001:2::1", Reserved},
		{"2001:10::1", Reserved},
		{"2001:20::1", Reserved},
		{"2620:4f:8000::1", Reserved},
		{"3fff::1", Reserved},
		{"4000::1", Reserved},
		{"1::1", Reserved},
		{"64:ff9b:2::1", Reserved},
	}
	for _, tt := range tests {
		if got := Classify(netip.MustParseAddr(tt.addr)); got != tt.want {
			t.Errorf("Classify(%s) = %s, want %s", tt.addr, got, tt.want)
		}
	}
	if got := Classify(netip.Addr{}); got != Invalid {
		t.Errorf("the zero address is %s", got)
	}
}

// Every prefix of the registries must come out as something other than Public, at its first and its last address.
func TestClassifyCoversRegistries(t *testing.T) {
	for _, p := range append(ssrf.IPv4DeniedPrefixes[:len(ssrf.IPv4DeniedPrefixes):len(ssrf.IPv4DeniedPrefixes)], ssrf.IPv6DeniedPrefixes...) {
		for _, a := range []netip.Addr{p.Addr(), last(p)} {
			if v := Classify(a); v == Public {
				t.Errorf("%s of %s is public", a, p)
			}
		}
	}
}

func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func TestPolicyPermits(t *testing.T) {
	p, err := ParsePolicy([]string{"10.20.0.0/16", "127.0.0.0/8", "fd00::/8", "100.64.0.0/10", "64:ff9b::/96"}, false)
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]bool{
		"10.20.3.4": true, "10.21.0.1": false, "127.0.0.1": true, "::1": false, "8.8.8.8": true,
		"fd00:1::1": true, "fd00:ec2::254": false, "fd20:ce::254": false, "fd00:42::42": false,
		"100.64.1.1": true, "100.100.100.200": false, "169.254.169.254": false, "168.63.129.16": false,
		"64:ff9b::8.8.8.8": true, "64:ff9b::10.20.0.1": false, "64:ff9b::a9fe:a9fe": false,
		"::ffff:10.20.3.4": false, "fe80::1": false, "224.0.0.1": false, "0.0.0.0": false,
	} {
		if _, got := p.Permits(netip.MustParseAddr(addr)); got != want {
			t.Errorf("Permits(%s) = %v, want %v", addr, got, want)
		}
	}
	if _, ok := (Policy{Allow: prefixes("0.0.0.0/0", "::/0")}).Permits(netip.MustParseAddr("169.254.169.254")); ok {
		t.Error("metadata passed a policy that names everything")
	}
}

func TestParsePolicyRefuses(t *testing.T) {
	for _, s := range []string{
		"", "10.0.0.1", "10.0.0.1/8", "0.0.0.0/0", "::/0", "8.0.0.0/6", "9.0.0.0/7", "8.8.8.0/24", "169.254.0.0/16", "169.254.169.254/32", "fe80::/10",
		"fd00:ec2::/32", "fd00:ec2::254/128", "168.63.129.16/32", "100.100.100.200/32", "fc00::/6", "224.0.0.0/4", "::ffff:10.0.0.0/104",
		"64:ff9b:1::/48", "2002::/16", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/08", "fe80::1%eth0/64",
	} {
		if p, err := ParsePolicy([]string{s}, false); err == nil {
			t.Errorf("ParsePolicy(%q) = %v", s, p.Allow)
		}
	}
	if _, err := ParsePolicy(make([]string, maxAllow+1), false); err == nil {
		t.Error("too many entries passed")
	}
}

func TestParseOrigin(t *testing.T) {
	for s, want := range map[string]string{
		"https://mcp.example.org":          "https://mcp.example.org",
		"https://MCP.Example.org.":         "https://mcp.example.org",
		"https://mcp.example.org:443":      "https://mcp.example.org",
		"https://mcp.example.org:8443":     "https://mcp.example.org:8443",
		"http://10.0.0.1:80":               "http://10.0.0.1",
		"https://[2606:4700::1111]:8443":   "https://[2606:4700::1111]:8443",
		"https://[2606:4700:0:0::1111]":    "https://[2606:4700::1111]",
		"https://xn--bcher-kva.example":    "https://xn--bcher-kva.example",
		"http://tracker":                   "http://tracker",
		"https://my_service.internal:9000": "https://my_service.internal:9000",
	} {
		o, err := ParseOrigin(s)
		if err != nil || o.String() != want {
			t.Errorf("ParseOrigin(%q) = %q, %v, want %q", s, o, err, want)
		}
	}
	for _, s := range []string{
		"", "mcp.example.org", "ftp://a.example", "https://", "https://:443", "https://a.example/", "https://a.example?x", "https://a.example#x",
		"https://user@a.example", "https://a.example:", "https://a.example:0", "https://a.example:65536", "https://a.example:+1", "https://a.example:1:2",
		"https://a..example", "https://-a.example", "https://a b.example", "https://a.example\r\nX: y", "https://ex\u00e4mple.org",
		"https://127.1", "https://2130706433", "https://0x7f.0.0.1", "https://0177.0.0.1", "https://127.0.0.1.1", "https://1.2.3.0x4", "https://256.1.1.1",
		"https://127.0.0.01", "https://[::1", "https://[::1%25lo]", "https://[::1%lo]", "https://[127.0.0.1]", "https://::1", "https://[::1]x", "HTTPS://a.example",
		"https://a%2eexample.org", "https://" + string(make([]byte, 300)),
	} {
		if o, err := ParseOrigin(s); err == nil {
			t.Errorf("ParseOrigin(%q) = %+v", s, o)
		}
	}
}

func FuzzParseOrigin(f *testing.F) {
	for _, s := range []string{"https://mcp.example.org:8443", "http://[::1]:1", "https://127.0.0.1", "https://a.b.c.d.e:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		o, err := ParseOrigin(s)
		if err != nil {
			return
		}
		again, err := ParseOrigin(o.String())
		if err != nil || again != o {
			t.Fatalf("%q reads as %+v, whose form %q reads as %+v, %v", s, o, o.String(), again, err)
		}
	})
}
