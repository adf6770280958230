package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// histogram is one series of a process's metrics: how many of its values are at most so many seconds.
type histogram struct {
	bounds []float64
	counts []float64 // cumulative
	sum    float64
	count  float64
}

// since is what came after an earlier reading.
func (h histogram) since(before histogram) histogram {
	d := histogram{bounds: h.bounds, sum: h.sum - before.sum, count: h.count - before.count}
	for i, c := range h.counts {
		if i < len(before.counts) {
			c -= before.counts[i]
		}
		d.counts = append(d.counts, c)
	}
	return d
}

// p50 is the median in seconds: within its bucket, values are taken to lie evenly.
func (h histogram) p50() float64 {
	half, low, below := h.count/2, 0.0, 0.0
	for i, c := range h.counts {
		if c >= half && c > below {
			return low + (h.bounds[i]-low)*(half-below)/(c-below)
		}
		low, below = h.bounds[i], c
	}
	return low
}

func (h histogram) mean() float64 {
	if h.count == 0 {
		return 0
	}
	return h.sum / h.count
}

// scrape reads the histograms of a process's metrics page, by series name and labels.
func scrape(ctx context.Context, address string) (map[string]histogram, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	all := map[string]histogram{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		series, value, ok := strings.Cut(lines.Text(), " ")
		if !ok || strings.HasPrefix(series, "#") || !strings.HasPrefix(series, "sallyport_") {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("metrics of %s: %w", address, err)
		}
		name, labels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
		switch {
		case strings.HasSuffix(name, "_bucket"):
			i := strings.LastIndex(labels, `le="`)
			bound, err := strconv.ParseFloat(strings.TrimSuffix(labels[i+4:], `"`), 64)
			if err != nil {
				return nil, fmt.Errorf("metrics of %s: %w", address, err)
			}
			key := strings.TrimSuffix(name, "_bucket") + "{" + strings.TrimSuffix(labels[:i], ",") + "}"
			h := all[key]
			h.bounds, h.counts = append(h.bounds, bound), append(h.counts, v)
			all[key] = h
		case strings.HasSuffix(name, "_sum"):
			key := strings.TrimSuffix(name, "_sum") + "{" + labels + "}"
			h := all[key]
			h.sum = v
			all[key] = h
		case strings.HasSuffix(name, "_count"):
			key := strings.TrimSuffix(name, "_count") + "{" + labels + "}"
			h := all[key]
			h.count = v
			all[key] = h
		}
	}
	return all, lines.Err()
}

// freeAddress is a loopback address that nobody listened on a moment ago.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed at once
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// parts are the medians and means of what a kind of call went through.
type readings struct{ control, host map[string]histogram }

func (w *path) readings(ctx context.Context) (r readings, err error) {
	if r.control, err = scrape(ctx, w.controlMetrics); err != nil {
		return r, err
	}
	r.host, err = scrape(ctx, w.hostMetrics)
	return r, err
}

// measured makes n calls, one after another, and says where their time went.
func (w *path) measured(ctx context.Context, of string, n int, f call) (sample, budget, error) {
	before, err := w.readings(ctx)
	if err != nil {
		return nil, budget{}, err
	}
	times, err := sequential(ctx, n, f)
	if err != nil {
		return nil, budget{}, err
	}
	after, err := w.readings(ctx)
	if err != nil {
		return nil, budget{}, err
	}
	host := after.host["sallyport_host_call_seconds{}"].since(before.host["sallyport_host_call_seconds{}"])
	worker := func(part string) histogram {
		key := `sallyport_worker_seconds{part="` + part + `"}`
		return after.control[key].since(before.control[key])
	}
	step := func(part string) histogram {
		key := `sallyport_call_part_seconds{part="` + part + `"}`
		return after.control[key].since(before.control[key])
	}
	b := budget{Of: of, Total: micros(times.p50()), N: n}
	us := func(h histogram) (float64, float64) { return h.p50() * 1e6, h.mean() * 1e6 }
	add := func(name string, p50, mean float64) {
		b.Parts = append(b.Parts, part{name, round(max(p50, 0)), round(max(mean, 0))})
	}

	hostP50, hostMean := us(host)
	allP50, allMean := us(worker("all"))
	admitP50, admitMean := us(step("admit"))
	settleP50, settleMean := us(step("settle"))
	add("guest and relay, there and back", b.Total-hostP50, micros(times.mean())-hostMean)
	add("host, and link to control and back", hostP50-allP50-admitP50-settleP50, hostMean-allMean-admitMean-settleMean)
	add("control: admit and store", admitP50, admitMean)
	insideP50, insideMean := 0.0, 0.0
	var inside []part
	for _, p := range []struct{ name, part string }{
		{"worker: verify, open the credential", "open"},
		{"worker: connection", "connect"},
		{"worker: write", "write"},
		{"upstream: wait for the first byte", "wait"},
		{"worker: read", "read"},
		{"control: barrier, durable", "barrier"},
	} {
		h := worker(p.part)
		if h.count == 0 {
			continue
		}
		p50, mean := us(h)
		insideP50, insideMean = insideP50+p50, insideMean+mean
		inside = append(inside, part{p.name, round(p50), round(mean)})
	}
	links := "link to the worker and back"
	if slices.ContainsFunc(inside, func(p part) bool { return strings.Contains(p.Name, "barrier") }) {
		links += ", twice"
	}
	add(links, allP50-insideP50, allMean-insideMean)
	b.Parts = append(b.Parts, inside...)
	add("control: settle and store", settleP50, settleMean)
	return times, b, nil
}
