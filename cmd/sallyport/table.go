package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"
)

// visible makes foreign text safe for a terminal: control, format, private-use and bidirectional characters and bad UTF-8 are written out.
func visible(s string) string {
	clean := true
	for _, r := range s {
		if hidden(r) || r == utf8.RuneError {
			clean = false
			break
		}
	}
	if clean && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, "\\x%02x", s[i])
		case hidden(r):
			fmt.Fprintf(&b, "\\u{%04x}", r)
		default:
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	return b.String()
}

func hidden(r rune) bool {
	if r == '\n' || r == '\t' {
		return false
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Cs, unicode.Zl, unicode.Zp) || 0xE0000 <= r && r <= 0xE0FFF ||
		r == 0x115F || r == 0x1160 || r == 0x3164 || r == 0xFFA0
}

// oneLine is visible text without line ends: for a cell.
func oneLine(s string) string {
	return strings.NewReplacer("\n", "\\n", "\t", "\\t").Replace(visible(s))
}

// table prints rows under a header: aligned on a terminal, tab-separated without a header elsewhere.
func (g *Globals) table(header []string, rows [][]string) {
	if !g.isTerminal(g.out) {
		for _, r := range rows {
			for i, c := range r {
				r[i] = oneLine(c)
			}
			fmt.Fprintln(g.out, strings.Join(r, "\t"))
		}
		return
	}
	if len(rows) == 0 {
		return
	}
	width := make([]int, len(header))
	for i, h := range header {
		width[i] = len(h)
	}
	for _, r := range rows {
		for i, c := range r {
			r[i] = oneLine(c)
			width[i] = max(width[i], utf8.RuneCountInString(r[i]))
		}
	}
	line(g.out, width, header, bold())
	for _, r := range rows {
		line(g.out, width, r, "")
	}
}

// members prints what is known of one thing, a line a member; what is not known is left out.
func (g *Globals) members(rows [][2]string) {
	for _, r := range rows {
		if r[1] != "" {
			fmt.Fprintf(g.out, "%-9s %s\n", r[0], oneLine(r[1]))
		}
	}
}

func line(w io.Writer, width []int, cells []string, style string) {
	var b strings.Builder
	for i, c := range cells {
		if i > 0 {
			b.WriteString("  ")
		}
		b.WriteString(c)
		if i < len(cells)-1 {
			b.WriteString(strings.Repeat(" ", max(0, width[i]-utf8.RuneCountInString(c))))
		}
	}
	if style != "" {
		fmt.Fprintf(w, "%s%s\x1b[0m\n", style, b.String())
		return
	}
	fmt.Fprintln(w, b.String())
}

func bold() string { return style("\x1b[1m") }

func style(s string) string {
	if os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return ""
	}
	return s
}

// shortID is enough of an id for a person; every command takes a unique beginning.
func shortID(id string) string {
	if len(id) > 8 {
		return id[:8]
	}
	return id
}
