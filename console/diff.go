package console

import (
	"bytes"
	"encoding/json"
	"strings"
)

// line is one line of a comparison.
type line struct {
	Mark string // "+", "-" or " "
	Text string
}

// most bounds what is compared: the whole text stands beside it in any case.
const most = 400

// indented lays JSON out without changing a literal; "" for what is not JSON.
func indented(raw []byte) string {
	var b bytes.Buffer
	if json.Indent(&b, raw, "", "  ") != nil {
		return ""
	}
	return b.String()
}

// diff compares two texts by lines (longest common subsequence). It is nil where nothing differs or there is too much to compare.
func diff(before, after string) []line {
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	if before == after || before == "" || after == "" || len(a) > most || len(b) > most {
		return nil
	}
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var out []line
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out = append(out, line{" ", a[i]})
			i, j = i+1, j+1
		case i < len(a) && (j == len(b) || common[i+1][j] >= common[i][j+1]):
			out = append(out, line{"-", a[i]})
			i++
		default:
			out = append(out, line{"+", b[j]})
			j++
		}
	}
	return out
}
