package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sallyport.dev/test/rig"
)

// peer is what a proxy adds, with nothing on; Sallyport stands beside them with everything on.
type peer struct {
	Name      string  `json:"name"`
	P50       float64 `json:"added_p50_ms"`
	P99       float64 `json:"added_p99_ms"`
	PerSecond float64 `json:"calls_s"` // 64 in flight, one process
	Ratio     float64 `json:"ratio"`   // of them, to direct
	CPU       float64 `json:"cpu_us_per_call"`
}

// peerPackages are proxies from npm that a harness starts as a stdio server, for a server over HTTP.
var peerPackages = []struct {
	name, version string
	args          func(url string) []string
}{
	{"mcp-remote", "0.15.1", func(url string) []string {
		return []string{url, "--allow-http", "--transport", "http-only", "--header", "Authorization:Bearer " + secret}
	}},
	{"supergateway", "4.0.0", func(url string) []string {
		return []string{"--streamableHttp", url, "--oauth2Bearer", secret, "--logLevel", "none"}
	}},
}

// candidate is one of them, running.
type candidate struct {
	name string
	shim *rig.Shim
	tool string
	cpu  func() (time.Duration, error)

	times     sample
	perSecond []float64
	ratios    []float64
	used      []float64
}

func (c *candidate) call(ctx context.Context) error {
	return through(ctx, c.shim, callParams(c.tool, readArgs))
}

// peersRows measure other proxies and this one in turns, in front of one server made with the official Go SDK.
func (b *bench) peersRows(ctx context.Context) error {
	dir, err := installPeers(ctx)
	if err != nil {
		b.report.missing("peers", err.Error())
		return nil
	}
	w, err := openPath(ctx, b.programs, 1, options{sdk: true})
	if err != nil {
		return err
	}
	defer func() { b.note(w.close()) }()
	all := []*candidate{{name: "sallyport, everything on", shim: w.sessions[0].Shim, tool: "tracker_big", cpu: w.used}}
	home, err := os.MkdirTemp("", "sallyport-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(home)
	for _, p := range peerPackages {
		cmd := exec.CommandContext(ctx, filepath.Join(dir, "node_modules", ".bin", p.name), p.args(w.sdk.url)...)
		cmd.Env = append(os.Environ(), "HOME="+home, "MCP_REMOTE_CONFIG_DIR="+home)
		shim, err := rig.StartShim(cmd)
		if err != nil {
			return err
		}
		defer shim.Kill() //nolint:errcheck // it has nothing to lose
		c := &candidate{name: p.name + " " + p.version, shim: shim, tool: readTool, cpu: func() (time.Duration, error) { return cpuTime(shim.PID()) }}
		start, cancel := context.WithTimeout(ctx, rig.Patience)
		err = shim.Initialize(start)
		cancel()
		if err != nil {
			b.report.missing("peers: "+p.name, err.Error())
			continue
		}
		all = append(all, c)
	}
	return b.compare(ctx, w, all)
}

func (b *bench) compare(ctx context.Context, w *path, all []*candidate) error {
	rounds, n, span := b.n(5, 2), b.n(300, 100), b.span(1500*time.Millisecond, 500*time.Millisecond)
	var direct sample
	for _, c := range all {
		if _, err := sequential(ctx, 200, c.call); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	for range rounds {
		t, err := sequential(ctx, n, w.directRead)
		if err != nil {
			return err
		}
		direct = append(direct, t...)
		bare, _, err := flood(ctx, span, same(inFlight, w.directRead))
		if err != nil {
			return err
		}
		for _, c := range all {
			before, err := c.cpu()
			if err != nil {
				return err
			}
			if t, err = sequential(ctx, n, c.call); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			after, err := c.cpu()
			if err != nil {
				return err
			}
			c.times, c.used = append(c.times, t...), append(c.used, micros(after-before)/float64(n))
			got, _, err := flood(ctx, span, same(inFlight, c.call))
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			c.perSecond, c.ratios = append(c.perSecond, got), append(c.ratios, got/bare)
		}
	}
	for _, c := range all {
		b.report.Peers = append(b.report.Peers, peer{
			Name: c.name, P50: round(ms(c.times.p50() - direct.p50())), P99: round(ms(c.times.p99() - direct.p99())),
			PerSecond: round(median(c.perSecond)), Ratio: round(median(c.ratios)), CPU: round(median(c.used)),
		})
	}
	return nil
}

// installPeers installs the packages with npm, once, into the checkout's cache.
func installPeers(ctx context.Context) (string, error) {
	if _, err := exec.LookPath("npm"); err != nil {
		return "", errors.New("other proxies are not measured: install Node and npm")
	}
	root, err := rig.Root(ctx)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, ".cache", "bench-peers")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	args := []string{"install", "--prefix", dir, "--no-audit", "--no-fund", "--prefer-offline", "--silent"}
	for _, p := range peerPackages {
		args = append(args, p.name+"@"+p.version)
	}
	if out, err := exec.CommandContext(ctx, "npm", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("other proxies are not measured: npm could not install them: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return dir, nil
}
