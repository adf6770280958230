package hostile_test

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"sallyport.dev/test/fixture/mcpserver"
	"sallyport.dev/test/rig"
)

// A name that turns to an address which is not public costs its own calls: nothing connects there, nothing is sent, and the journal names the address.
func TestAddresses(t *testing.T) {
	const (
		public = "93.184.216.34"
		name   = "server.test"
		secret = "s3cret-of-names"
	)
	zone := startNames(t)
	at := func(list ...string) (out []netip.Addr) {
		for _, a := range list {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	zone.set(name, at(public))
	up := mcpserver.Start(t, mcpserver.Options{Address: public + ":0", Hosts: []string{name}, Auth: mcpserver.Auth{Kind: mcpserver.Bearer, Secret: secret}})
	port := strconv.Itoa(up.Port())
	nameable := "; an administrator can name its prefix in the connection's network.allow"
	never := ", which no connection may reach"
	cases := []struct{ what, address, says string }{
		{"private", "10.0.0.1", "10.0.0.1 is private" + nameable},
		{"loopback", "::1", "::1 is loopback" + nameable},
		{"metadata", "169.254.169.254", "169.254.169.254 is metadata" + never},
		{"metadata of another cloud", "fd00:ec2::254", "fd00:ec2::254 is metadata" + never},
		{"link-local", "fe80::1", "fe80::1 is link-local" + never},
		{"shared", "100.64.0.1", "100.64.0.1 is shared" + nameable},
		{"NAT64 of a private one", "64:ff9b::a00:1", "64:ff9b::a00:1 is embedded" + never},
		{"NAT64 of a public one", "64:ff9b::5db8:d822", "64:ff9b::5db8:d822 is translated" + nameable},
		{"6to4", "2002:a00:1::1", "2002:a00:1::1 is embedded" + never},
		{"mapped", "::ffff:10.0.0.2", "10.0.0.2 is private" + nameable},
		{"unspecified", "0.0.0.0", "0.0.0.0 is unspecified" + never},
	}
	var places []string
	for _, c := range cases {
		if a := netip.MustParseAddr(c.address).Unmap(); !a.IsUnspecified() && !a.IsLinkLocalUnicast() || a.Is4() && !a.IsUnspecified() {
			places = append(places, net.JoinHostPort(a.String(), port))
		}
	}
	elsewhere := watch(t, places...)
	r := installation(t, rig.Options{})
	connections := []rig.Connection{{
		Name: "names", URL: "http://" + name + ":" + port + "/mcp", Auth: "{type: bearer}", Secret: secret, Reads: []string{"echo"}, Writes: []string{"create_issue"},
	}}
	if err := r.Configure(t.Context(), connections, profiles(connections)); err != nil {
		t.Fatal(err)
	}
	s, err := r.Open(t.Context(), rig.SessionOptions{Profile: "work"})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	call := func(tool string) (string, entry) {
		t.Helper()
		up.BreakConnections() // each call asks for the name anew
		n++
		arguments := fmt.Sprintf(`{"text":"%d"}`, n)
		if tool == "create_issue" {
			arguments = fmt.Sprintf(`{"project":"web","title":"%d"}`, n)
		}
		got, err := s.Call(t.Context(), "names_"+tool, arguments)
		if err != nil {
			t.Fatal(err)
		}
		return got.Text, journal(t, r, "names", tool)
	}
	for _, c := range cases {
		for _, answer := range [][]netip.Addr{at(c.address), at(public, c.address)} {
			for _, tool := range []string{"create_issue", "echo"} {
				zone.set(name, answer)
				said, e := call(tool)
				t.Logf("%-26s %d answers %-12s %-7s 0 sent  %s", c.what, len(answer), tool, e.GetCall().GetState(), e.line())
				if want := "address: the address may not be reached: the address " + c.says; e.GetCall().GetState() != fails || e.line() != want {
					t.Errorf("%s, %s: the journal says %s, %q; want %q", c.what, tool, e.GetCall().GetState(), e.line(), want)
				}
				if strings.Contains(said, c.address) {
					t.Errorf("%s, %s: the model reads the address: %s", c.what, tool, said)
				}
			}
		}
	}
	for _, tool := range []string{"create_issue", "echo"} {
		if got := up.Calls(tool); len(got) != 0 {
			t.Errorf("%d requests of %s", len(got), tool)
		}
		// The answer of the first question is what is connected to, whatever the name turns to meanwhile.
		zone.set(name, at(public), at("10.0.0.1"))
		_, e := call(tool)
		if got := len(up.Calls(tool)); e.GetCall().GetState() != "answered" || got != 1 {
			t.Errorf("public, then private: %s is %s, %q, %d requests", tool, e.GetCall().GetState(), e.line(), got)
		}
		t.Logf("%-26s 2 answers %-12s %-7s 1 sent", "public, then private", tool, e.GetCall().GetState())
	}
	if n := elsewhere.connections(); n != 0 {
		t.Errorf("%d connections came to an address that is not public", n)
	}
}
