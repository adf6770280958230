package main

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"":                        "",
		"plain äö √ 日本 😀":         "plain äö √ 日本 😀",
		"two\nlines\tand a tab":   "two\nlines\tand a tab",
		"\x1b[31mred\x1b[0m":      `\u{001b}[31mred\u{001b}[0m`,
		"bell\a null\x00 del\x7f": `bell\u{0007} null\u{0000} del\u{007f}`,
		"cr\rover":                `cr\u{000d}over`,
		"\u202egnp.exe":           `\u{202e}gnp.exe`,
		"zero\u200bwidth\ufeff":   `zero\u{200b}width\u{feff}`,
		"soft\u00adhyphen":        `soft\u{00ad}hyphen`,
		"c1\u009b31m":             `c1\u{009b}31m`,
		"line\u2028para\u2029":    `line\u{2028}para\u{2029}`,
		"tag\U000E0041":           `tag\u{e0041}`,
		"private\ue000":           `private\u{e000}`,
		"hangul filler\u3164":     `hangul filler\u{3164}`,
		"bad\xff\xfe utf8":        `bad\xff\xfe utf8`,
		"cut\xe2\x82":             `cut\xe2\x82`,
		"real \ufffd":             "real \ufffd",
		"flag 🏳\u200d🌈":           `flag 🏳\u{200d}🌈`,
	} {
		if got := visible(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// Whatever a server sends: what is printed is text, with nothing in it that a terminal acts on or that cannot be seen.
func TestVisibleIsSafe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) + rapid.String().Draw(t, "text")
		out := visible(in)
		if !utf8.ValidString(out) {
			t.Fatalf("%q is not text", out)
		}
		for _, r := range out {
			if hidden(r) {
				t.Fatalf("%q has %U", out, r)
			}
		}
		if visible(out) != out {
			t.Fatalf("%q is made visible twice", out)
		}
		if one := oneLine(in); strings.ContainsAny(one, "\n\t") {
			t.Fatalf("%q is more than a line", one)
		}
	})
}

func TestTableAndMembers(t *testing.T) {
	var out bytes.Buffer
	g := &Globals{out: &out}
	g.table([]string{"NAME", "WHAT"}, [][]string{{"a", "one\ttwo\nthree"}, {"\x1b[2J", ""}})
	g.members([][2]string{{"name", "x"}, {"none", ""}, {"text", "a\nb"}})
	if got, want := out.String(), "a\tone\\ttwo\\nthree\n\\u{001b}[2J\t\nname      x\ntext      a\\nb\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	out.Reset()
	line(&out, []int{4, 4, 2}, []string{"ä", "b", "c"}, "")
	line(&out, []int{4, 4, 2}, []string{"a", "b", "c"}, "\x1b[1m")
	if got, want := out.String(), "ä     b     c\n\x1b[1ma     b     c\x1b[0m\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestStyle(t *testing.T) {
	for _, c := range []struct{ noColor, term, want string }{
		{"", "xterm", "x"}, {"1", "xterm", ""}, {"", "dumb", ""}, {"", "", "x"},
	} {
		t.Setenv("NO_COLOR", c.noColor)
		t.Setenv("TERM", c.term)
		if got := style("x"); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		for want, at := range map[string]time.Time{
			"now": now, "1s ago": now.Add(-time.Second), "59s ago": now.Add(-59*time.Second - 999*time.Millisecond), "1m ago": now.Add(-time.Minute),
			"59m ago": now.Add(-time.Hour + time.Second), "1h ago": now.Add(-time.Hour), "47h ago": now.Add(-48*time.Hour + time.Second),
			"2d ago": now.Add(-48 * time.Hour), "400d ago": now.Add(-400 * 24 * time.Hour), "in 59m": now.Add(time.Hour - time.Second), "in 30d": now.Add(720 * time.Hour),
		} {
			if got := ago(at.UnixMilli()); got != want {
				t.Errorf("%s: %q, want %q", at, got, want)
			}
		}
		if got := ago(0); got != "-" {
			t.Errorf("never: %q", got)
		}
	})
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 calls", 1: "1 call", 2: "2 calls"} {
		if got := count(n, "call", "calls"); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
}

func TestShortID(t *testing.T) {
	for in, want := range map[string]string{"": "", "abc": "abc", "abcdefgh": "abcdefgh", "abcdefghijkl": "abcdefgh"} {
		if got := shortID(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

func TestDiffLines(t *testing.T) {
	got := diffLines("{\n  \"a\": 1,\n  \"b\": \"\x1b\"\n}", "{\n  \"a\": 2,\n  \"b\": \"\x1b\"\n}")
	if want := "    {\n  +   \"a\": 2,\n  -   \"a\": 1,\n      \"b\": \"\\u{001b}\"\n    }\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := diffLines(strings.Repeat("x\n", 401), "y"); got != "  (too long to compare here)\n" {
		t.Errorf("%.40q", got)
	}
}

// A diff holds both sides: its lines without the added ones are what was, without the removed ones what is.
func TestDiffLinesHoldBothSides(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SliceOfN(rapid.StringMatching(`[abc]{0,2}`), 1, 12)
		before, after := text.Draw(t, "before"), text.Draw(t, "after")
		diff := diffLines(strings.Join(before, "\n"), strings.Join(after, "\n"))
		var was, is []string
		changed := 0
		for l := range strings.Lines(diff) {
			mark, content := l[2], strings.TrimSuffix(l[4:], "\n")
			if mark != '+' {
				was = append(was, content)
			}
			if mark != '-' {
				is = append(is, content)
			}
			if mark != ' ' {
				changed++
			}
		}
		if strings.Join(was, "\n") != strings.Join(before, "\n") || strings.Join(is, "\n") != strings.Join(after, "\n") {
			t.Fatalf("of %q and %q:\n%s", before, after, diff)
		}
		if strings.Join(before, "\n") == strings.Join(after, "\n") && changed > 0 {
			t.Fatalf("equal sides differ:\n%s", diff)
		}
	})
}

func TestIndented(t *testing.T) {
	for in, want := range map[string]string{
		`{"b":1.10,"a":9007199254740993,"e":1e400}`: "{\n  \"b\": 1.10,\n  \"a\": 9007199254740993,\n  \"e\": 1e400\n}",
		`not json`: "", `{"a":1} x`: "",
	} {
		if got := indented([]byte(in)); got != want {
			t.Errorf("%s: %q", in, got)
		}
	}
}
