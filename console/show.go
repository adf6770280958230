package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// hidden reports characters that cannot be seen, or that change how others are seen: control, format, private-use and bidirectional ones, odd spaces,
// and letters that draw nothing.
func hidden(r rune) bool {
	if r == '\n' || r == '\t' {
		return false
	}
	return r < ' ' || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Cs, unicode.Zl, unicode.Zp) || r != ' ' && unicode.Is(unicode.Zs, r) ||
		0xE0000 <= r && r <= 0xE0FFF || 0xFE00 <= r && r <= 0xFE0F || r == 0x115F || r == 0x1160 || r == 0x3164 || r == 0xFFA0 || r == 0x034F || r == 0x2800
}

// visible is foreign text for a page: escaped, its own island for direction, and what is hidden in it written out.
func visible(s string) template.HTML {
	var b strings.Builder
	b.WriteString("<bdi>")
	writeVisible(&b, s)
	b.WriteString("</bdi>")
	return template.HTML(b.String()) //nolint:gosec // every part of it is escaped or ours
}

func writeVisible(b *strings.Builder, s string) {
	clean := 0
	flush := func(to int) { template.HTMLEscape(stringWriter{b}, []byte(s[clean:to])) }
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			flush(i)
			fmt.Fprintf(b, `<span class="hid" title="not UTF-8">\x%02x</span><wbr>`, s[i])
			clean = i + n
		case hidden(r):
			flush(i)
			fmt.Fprintf(b, `<span class="hid" title="hidden character">U+%04X</span><wbr>`, r)
			clean = i + n
		}
		i += n
	}
	flush(len(s))
}

// plain is foreign text where no markup can be: a title, a field.
func plain(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, hidden) {
		return s
	}
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		if hidden(r) {
			fmt.Fprintf(&b, "U+%04X", r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

type stringWriter struct{ b *strings.Builder }

// Write implements io.Writer.
func (w stringWriter) Write(p []byte) (int, error) { return w.b.Write(p) }

// Bounds of the tree. The text beside it has every byte whatever they are.
const (
	maxNodes = 20_000
	longText = 400 // bytes of a string from which on it is folded
)

// tree is JSON as nested lists: members in their order, literals as they are written. It is "" for what is not JSON, or has too many values to lay
// out.
func tree(raw []byte) template.HTML {
	if !json.Valid(raw) {
		return ""
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	t := &treeWriter{d: d}
	if !t.value() {
		return ""
	}
	return template.HTML(t.b.String()) //nolint:gosec // every part of it is escaped or ours
}

type treeWriter struct {
	d     *json.Decoder
	b     strings.Builder
	nodes int
}

// value writes the next value; false gives up.
func (t *treeWriter) value() bool {
	if t.nodes++; t.nodes > maxNodes {
		return false
	}
	tok, err := t.d.Token()
	if err != nil {
		return false
	}
	switch v := tok.(type) {
	case json.Delim:
		return t.compound(v)
	case string:
		if len(v) > longText {
			fmt.Fprintf(&t.b, `<details class="long"><summary>text, %s</summary><span class="s">`, size(len(v)))
			writeVisible(&t.b, v)
			t.b.WriteString(`</span></details>`)
			return true
		}
		t.b.WriteString(`<span class="s"><bdi>`)
		writeVisible(&t.b, v)
		t.b.WriteString(`</bdi></span>`)
	case json.Number:
		t.b.WriteString(`<span class="n">` + template.HTMLEscapeString(v.String()) + `</span>`)
	default:
		fmt.Fprintf(&t.b, `<span class="n">%s</span>`, map[any]string{true: "true", false: "false", nil: "null"}[v])
	}
	return true
}

func (t *treeWriter) compound(open json.Delim) bool {
	if !t.d.More() {
		_, err := t.d.Token()
		fmt.Fprintf(&t.b, `<span class="n">%s</span>`, map[json.Delim]string{'{': "{ }", '[': "[ ]"}[open])
		return err == nil
	}
	t.b.WriteString(`<ul>`)
	for i := 0; t.d.More(); i++ {
		t.b.WriteString(`<li>`)
		if open == '{' {
			name, err := t.d.Token()
			if err != nil {
				return false
			}
			s, _ := name.(string)
			t.b.WriteString(`<span class="k"><bdi>`)
			writeVisible(&t.b, s)
			t.b.WriteString(`</bdi></span> `)
		} else {
			fmt.Fprintf(&t.b, `<span class="i">%d</span> `, i)
		}
		if !t.value() {
			return false
		}
		t.b.WriteString(`</li>`)
	}
	t.b.WriteString(`</ul>`)
	_, err := t.d.Token()
	return err == nil
}

// size is a number of bytes for people.
func size(n int) string {
	switch {
	case n == 1:
		return "1 byte"
	case n < 10_000:
		return fmt.Sprintf("%d bytes", n)
	case n < 1<<20:
		return fmt.Sprintf("%.0f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

func span(d time.Duration) string {
	switch {
	case d < 0:
		return "0 s"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 90*time.Second:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 90*time.Minute:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// functions are what pages call.
func (c *console) functions() template.FuncMap {
	at := func(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
	return template.FuncMap{
		"vis":   visible,
		"plain": plain,
		"tree":  tree,
		"size":  size,
		"text":  func(b []byte) string { return string(b) },
		"ago": func(ms int64) string {
			if ms == 0 {
				return "never"
			}
			return span(c.cfg.Now().Sub(at(ms))) + " ago"
		},
		"left": func(ms int64) string {
			if ms == 0 {
				return "no end"
			}
			if d := at(ms).Sub(c.cfg.Now()); d > 0 {
				return span(d)
			}
			return "over"
		},
		"clock": func(ms int64) string {
			if ms == 0 {
				return "-"
			}
			return at(ms).Format("2006-01-02 15:04:05.000 UTC")
		},
		"iso": func(ms int64) string { return at(ms).Format(time.RFC3339Nano) },
		"short": func(id string) string {
			const enough = 8
			if len(id) > enough {
				return id[:enough]
			}
			return id
		},
		"said":    said,
		"network": network,
		"ms":      func(us int64) string { return fmt.Sprintf("%.1f", float64(us)/1000) },
		"join":    strings.Join,
		"kind":    kindOf,
		"took":    span,
		"list":    func(v ...string) []string { return v },
	}
}

// said is a state in words that people read.
func said(state string) string {
	if w, ok := map[string]string{
		"input_wanted": "server asks for more", "resolved_done": "resolved: done", "resolved_not_done": "resolved: not done", "dispatching": "sent, running",
		"retrying": "running again", "working": "running at the server", "asking": "waits for a person", "superseded": "run again as another call",
		"answered": "answered", "uncertain": "uncertain", "open": "open", "used": "approved, and ran", "is_error": "tool says error", "not_sent": "nothing sent",
		"read": "reads", "write": "writes",
	}[state]; ok {
		return w
	}
	return strings.ReplaceAll(state, "_", " ")
}

// network is what is known of a sandbox's network.
func network(closed string) string {
	switch closed {
	case "proven":
		return "off, proven from inside"
	case "asserted":
		return "off, the provider says so"
	case "":
		return "not known"
	}
	return "not verified"
}
