package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

// row is one measured number. Baseline is the other side, measured in the same run on the same machine, where there is one; ratio is what the
// number is beside it.
type row struct {
	ID       string   `json:"id"`
	Value    float64  `json:"value"`
	Unit     string   `json:"unit"`
	Baseline *float64 `json:"baseline"`
	Ratio    *float64 `json:"ratio"`
	N        int      `json:"n"`

	goal string // to reach, for people
	note string // for people
}

func (r row) beside(baseline, ratio float64) row {
	b, q := round(baseline), round(ratio)
	r.Baseline, r.Ratio = &b, &q
	return r
}

// round keeps four digits that mean something.
func round(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	scale := math.Pow(10, 4-math.Ceil(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

// part is one line of a budget.
type part struct {
	Name   string  `json:"part"`
	Micros float64 `json:"us"` // median
	Mean   float64 `json:"mean_us"`
}

// budget says where the time of one kind of call went.
type budget struct {
	Of    string  `json:"of"`
	Total float64 `json:"total_us"`
	N     int     `json:"n"`
	Parts []part  `json:"parts"`
}

// flooded is what stood behind a ratio at 64 calls in flight.
type flooded struct {
	ID        string  `json:"id"`
	PerSecond float64 `json:"calls_s"`
	CPU       float64 `json:"cpu_us_per_call"` // of all our processes
}

// machine is what the numbers were measured on, and how quiet it was.
type machine struct {
	At         time.Time `json:"at"`
	Processors int       `json:"processors"`
	Kernel     string    `json:"kernel"`
	Go         string    `json:"go"`
	Load       float64   `json:"load_1min_before"`
	Busy       float64   `json:"busy_pct_before"` // of all processors, in a second before anything was started
	LoadAfter  float64   `json:"load_1min_after"`
	Wake       float64   `json:"thread_wake_us"` // one thread wakes another through a pipe
	Quick      bool      `json:"quick"`
}

// report is all of a run.
type report struct {
	Machine  machine   `json:"machine"`
	Rows     []row     `json:"rows"`
	Budgets  []budget  `json:"budgets"`
	Flood    []flooded `json:"in_flight_64"`
	Growth   []grown   `json:"growth,omitempty"`
	Peers    []peer    `json:"peers,omitempty"`
	Missing  []string  `json:"not_measured"`
	SDK      *report   `json:"with_the_go_sdk_as_upstream,omitempty"`
	progress io.Writer
}

func (r *report) add(rows ...row) {
	for _, one := range rows {
		one.Value = round(one.Value)
		r.Rows = append(r.Rows, one)
		fmt.Fprintf(r.progress, "  %-22s %10.5g %s\n", one.ID, one.Value, one.Unit)
	}
}

func (r *report) missing(id, why string) {
	r.Missing = append(r.Missing, id+": "+why)
}

// write keeps the rows in latest.json, and everything in detail.json beside it.
func (r *report) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, v := range map[string]any{"latest.json": r.Rows, "detail.json": r} {
		b, err := json.MarshalIndent(v, "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), append(b, '\n'), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case math.Abs(v) >= 1000:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

func optional(v *float64) string {
	if v == nil {
		return "-"
	}
	return number(*v)
}

// print writes the tables for people.
func (r *report) print(w io.Writer) {
	m := r.Machine
	fmt.Fprintf(w, "\nMachine: %d processors, Linux %s, %s; busy before: %.0f %%, load %.1f (after: %.1f); a thread wakes another in %.1f us\n",
		m.Processors, m.Kernel, m.Go, m.Busy, m.Load, m.LoadAfter, m.Wake)
	r.tables(w)
	if r.SDK != nil {
		fmt.Fprintln(w, "\nThe same with a server made with the official Go SDK as upstream, in a shorter run:")
		r.SDK.tables(w)
	}
	if len(r.Peers) > 0 {
		fmt.Fprintln(w, "\nOther proxies with nothing on, and this one with everything on; the official Go SDK's server as upstream, in turns:")
		t := tabwriter.NewWriter(w, 2, 8, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "\tadded p50 ms\tadded p99 ms\tcalls/s, 64 in flight\tratio to direct\tcpu us a call\t")
		for _, p := range r.Peers {
			fmt.Fprintf(t, "%s\t%.3g\t%.3g\t%.0f\t%.2f\t%.0f\t\n", p.Name, p.P50, p.P99, p.PerSecond, p.Ratio, p.CPU)
		}
		t.Flush() //nolint:errcheck // a terminal
	}
	if len(r.Growth) > 0 {
		fmt.Fprintln(w, "\nGrowth, a governed read:")
		for _, g := range r.Growth {
			fmt.Fprintf(w, "  %8d %-20s p50 %.3g ms, p99 %.3g ms\n", g.Size, g.Of, g.P50, g.P99)
		}
	}
	if len(r.Missing) > 0 {
		fmt.Fprintf(w, "\nNot measured:\n  %s\n", strings.Join(r.Missing, "\n  "))
	}
}

func (r *report) tables(w io.Writer) {
	t := tabwriter.NewWriter(w, 2, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "id\tvalue\tunit\tto reach\tbaseline\tratio\tn\t\t")
	for _, one := range r.Rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t\n", one.ID, number(one.Value), one.Unit, one.goal, optional(one.Baseline), optional(one.Ratio), one.N, one.note)
	}
	t.Flush() //nolint:errcheck // a terminal
	for _, b := range r.Budgets {
		fmt.Fprintf(w, "\n%s: %.0f us (median of %d), in microseconds by part\n", b.Of, b.Total, b.N)
		t = tabwriter.NewWriter(w, 2, 8, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "part\tmedian\tmean\t")
		sum := 0.0
		for _, p := range b.Parts {
			fmt.Fprintf(t, "%s\t%.0f\t%.0f\t\n", p.Name, p.Micros, p.Mean)
			sum += p.Micros
		}
		fmt.Fprintf(t, "sum\t%.0f\t\t\n", sum)
		t.Flush() //nolint:errcheck // a terminal
	}
	for _, f := range r.Flood {
		fmt.Fprintf(w, "\n%s: %.0f calls/s governed, %.0f us of processor time each over all our processes", f.ID, f.PerSecond, f.CPU)
	}
	fmt.Fprintln(w)
}
