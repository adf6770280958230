package main

import (
	"bytes"
	"testing"
)

func TestPlainWriter(t *testing.T) {
	for in, want := range map[string]string{
		"one\ttwo\n":                        "one\ttwo\n",
		"\x1b[31mred\x1b[0m":                "red",
		"a\x1b]0;title\x07b":                "ab",
		"a\x1b]52;c;Zm9v\x1b\\b":            "ab",
		"a\x1bP1$r0m\x1b\\b":                "ab",
		"a\x1b(Bb\x1b7c\x1bMd":              "abcd",
		"over\rwritten\b\x00\x7f":           "overwritten",
		"caf\u00e9 \u20ac \u00a0x\u00b5":    "caf\u00e9 \u20ac \u00a0x\u00b5",
		"a\u009b31mb\u0085c":                "abc",
		"\x1b]an unfinished string\nis cut": "",
	} {
		for size := 1; size <= len(in); size++ { // however it is cut
			var out bytes.Buffer
			w := &plainWriter{to: &out}
			for rest := []byte(in); len(rest) > 0; {
				n := min(size, len(rest))
				if _, err := w.Write(rest[:n]); err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
			if out.String() != want {
				t.Errorf("%q in pieces of %d: %q, want %q", in, size, out.String(), want)
			}
		}
	}
}
