package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// line is one series of a plot.
type line struct {
	name   string
	dash   string // of the stroke; "" is solid
	points []point
}

type point struct{ x, y float64 }

// plot is a chart with a logarithmic x axis.
type plot struct {
	title, x, y string
	lines       []line
}

// svg draws p. It uses the reader's own text colour, so that it is read on a dark page as on a light one.
func (p plot) svg() string {
	const w, h, left, right, top, bottom = 640.0, 300.0, 60.0, 150.0, 40.0, 50.0
	lowest, highest, most := math.Inf(1), math.Inf(-1), 0.0
	for _, l := range p.lines {
		for _, pt := range l.points {
			lowest, highest, most = min(lowest, pt.x), max(highest, pt.x), max(most, pt.y)
		}
	}
	first, last := math.Floor(math.Log10(lowest)), math.Ceil(math.Log10(highest))
	if last == first {
		last++
	}
	step := math.Pow(10, math.Floor(math.Log10(most)))
	for most/step < 3 {
		step /= 2
	}
	roof := step * math.Ceil(most*1.05/step)
	px := func(v float64) float64 { return left + (math.Log10(v)-first)/(last-first)*(w-left-right) }
	py := func(v float64) float64 { return h - bottom - v/roof*(h-top-bottom) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="sans-serif" font-size="12" fill="#777">`+"\n", w, h)
	fmt.Fprintf(&b, `<title>%s</title>`+"\n"+`<text x="%g" y="20" font-size="14">%[1]s</text>`+"\n", p.title, left)
	for v := 0.0; v <= roof*1.001; v += step {
		fmt.Fprintf(&b, `<path d="M%g %.1fH%g" stroke="#777" stroke-opacity=".25"/><text x="%g" y="%.1f" text-anchor="end">%.3g</text>`+"\n", left, py(v), w-right, left-6, py(v)+4, v)
	}
	for d := first; d <= last; d++ {
		v := math.Pow(10, d)
		fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="middle">%.0f</text>`+"\n", px(v), h-bottom+18, v)
	}
	fmt.Fprintf(&b, `<text x="%g" y="%g" text-anchor="middle">%s</text><text x="14" y="%g" transform="rotate(-90 14 %[4]g)" text-anchor="middle">%[5]s</text>`+"\n",
		left+(w-left-right)/2, h-12, p.x, top+(h-top-bottom)/2, p.y)
	colours := []string{"#2a78c2", "#d1602a", "#2f9e63", "#8a5cc2"}
	for i, l := range p.lines {
		c := colours[i%len(colours)]
		var path []string
		for _, pt := range l.points {
			path = append(path, fmt.Sprintf("%.1f,%.1f", px(pt.x), py(pt.y)))
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", px(pt.x), py(pt.y), c)
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2" stroke-dasharray="%s"/>`+"\n", strings.Join(path, " "), c, l.dash)
		end := l.points[len(l.points)-1]
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" fill="%s">%s</text>`+"\n", w-right+8, py(end.y)+4, c, l.name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// draw writes a plot beside the pages that show it.
func (b *bench) draw(name string, p plot) error {
	if b.plots == "" {
		return nil
	}
	if err := os.MkdirAll(b.plots, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.plots, name), []byte(p.svg()), 0o644)
}
