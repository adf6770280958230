// Command probe looks around in a sandbox as a curious agent would, and writes what it found as JSON. It searches for planted secrets by their form
// alone, so nothing that it is started with is one.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"
)

// report is what the probe found.
type report struct {
	UID        int               `json:"uid"`
	CapEff     string            `json:"cap_eff"`
	NoNewPrivs string            `json:"no_new_privs"`
	Interfaces []string          `json:"interfaces"`
	Secrets    map[string]string `json:"secrets"` // by where
	Sockets    []string          `json:"sockets"`
	Exist      []string          `json:"exist"`   // of the paths that were named
	Wrote      []string          `json:"wrote"`   // of the paths that were named
	Reached    []string          `json:"reached"` // of the addresses that were named
	Answers    []string          `json:"answers"` // of the gateway, to requests that it must refuse
	Run        []string          `json:"run"`     // everything below /run
	Processes  []string          `json:"processes"`
	Searched   int               `json:"searched"` // files
}

func main() {
	out := flag.String("out", "", "where the report goes")
	exist := flag.String("exist", "", "paths that may exist, separated by spaces")
	write := flag.String("write", "", "paths to write to, separated by spaces")
	dial := flag.String("dial", "", "NETWORK=ADDRESS to reach, separated by spaces")
	mark := flag.String("mark", "", "stands in every request through the gateway")
	through := flag.String("through", "", "HOST:PORT to reach through the gateway, separated by spaces")
	flag.Parse()
	r := look(strings.Fields(*exist), strings.Fields(*write), strings.Fields(*dial))
	for _, host := range strings.Fields(*through) {
		r.trick(host, *mark)
	}
	data, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(*out, data, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
	fmt.Println("probed")
}

func look(exist, write, dial []string) *report {
	r := &report{UID: os.Getuid(), CapEff: status("CapEff"), NoNewPrivs: status("NoNewPrivs"), Secrets: map[string]string{}}
	if links, err := net.Interfaces(); err == nil {
		for _, l := range links {
			r.Interfaces = append(r.Interfaces, l.Name)
		}
	}
	r.search()
	for _, p := range exist {
		if _, err := os.Lstat(p); err == nil {
			r.Exist = append(r.Exist, p)
		}
	}
	for _, p := range write {
		f, err := os.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err == nil {
			_, err = f.WriteString("probe\n")
			f.Close()
		}
		if err == nil {
			r.Wrote = append(r.Wrote, p)
		}
	}
	for _, p := range r.Sockets {
		dial = append(dial, "unix="+p)
	}
	for _, target := range dial {
		network, address, _ := strings.Cut(target, "=")
		if reaches(network, address) {
			r.Reached = append(r.Reached, target)
		}
	}
	slices.Sort(r.Reached)
	return r
}

// reaches reports whether anybody answers there. Over UDP only an answer counts: where there is a route, a packet can always be sent.
func reaches(network, address string) bool {
	if network == "dns" {
		_, err := net.LookupHost(address)
		return err == nil
	}
	c, err := net.DialTimeout(network, address, 2*time.Second)
	if err != nil {
		return false
	}
	defer c.Close()
	if network != "udp" {
		return true
	}
	if c.SetDeadline(time.Now().Add(time.Second)) != nil {
		return false
	}
	if _, err := c.Write([]byte("?")); err != nil {
		return false
	}
	n, err := c.Read(make([]byte, 16))
	return err == nil && n > 0
}

// gateway is where the sandbox's only way out begins.
const gateway = "127.0.0.1:4180"

// trick asks the gateway for a host that it must not reach: as a proxy, by its name, by a path, by a tunnel.
func (r *report) trick(host, mark string) {
	const body = "{}"
	for _, request := range []string{
		"GET http://" + host + "/" + mark + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n",
		"GET /" + mark + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n",
		"CONNECT " + host + " HTTP/1.1\r\nHost: " + host + "\r\n\r\nGET /" + mark + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n",
		"POST /anthropic/../" + mark + " HTTP/1.1\r\nHost: " + gateway + "\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n" + body,
		"POST /anthropic/v1/" + mark + " HTTP/1.1\r\nHost: " + gateway + "\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n" + body,
		"POST /anthropic@" + host + "/" + mark + " HTTP/1.1\r\nHost: " + gateway + "\r\nContent-Length: 2\r\n\r\n" + body,
		"POST //" + host + "/" + mark + " HTTP/1.1\r\nHost: " + gateway + "\r\nContent-Length: 2\r\n\r\n" + body,
	} {
		first, _, _ := strings.Cut(request, "\r\n")
		r.Answers = append(r.Answers, first+": "+answer(request))
	}
}

// answer is the status line that the gateway gives to a request.
func answer(request string) string {
	c, err := net.DialTimeout("tcp", gateway, 2*time.Second)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err.Error()
	}
	if _, err := c.Write([]byte(request)); err != nil {
		return err.Error()
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(line)
}

func status(name string) string {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err.Error()
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}
