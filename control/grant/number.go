package grant

import (
	"math"
	"strconv"
	"strings"
)

// number turns a JSON number into what CEL can hold, and says whether that is exactly the number that was written. An integer literal is exact
// where it fits 64 bits; any other literal where the nearest double, written in decimal again, is the same number. So 0.1 is exact, while
// 9007199254740993.0, 12345678901234567890 and 1e400 are not: a condition that looks at such a member is an error.
func number(literal string, double bool) (value any, exact bool) {
	integer := !strings.ContainsAny(literal, ".eE")
	if integer && !double {
		n, err := strconv.ParseInt(literal, 10, 64)
		return n, err == nil
	}
	f, err := strconv.ParseFloat(literal, 64)
	if err != nil || math.IsInf(f, 0) {
		return 0.0, false
	}
	return f, sameDecimal(literal, strconv.FormatFloat(f, 'e', -1, 64))
}

// sameDecimal compares two decimal literals by value, in time linear in their length.
func sameDecimal(a, b string) bool {
	na, da, ea, oka := decimal(a)
	nb, db, eb, okb := decimal(b)
	if !oka || !okb || da != db {
		return false
	}
	return da == "" || na == nb && ea == eb
}

// decimal splits a literal into sign, significant digits without leading and trailing zeros, and the exponent of 0.DIGITS. Zero has no digits.
func decimal(s string) (negative bool, digits string, exponent int, ok bool) {
	if rest, found := strings.CutPrefix(s, "-"); found {
		negative, s = true, rest
	}
	mantissa, exp := s, ""
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		mantissa, exp = s[:i], s[i+1:]
	}
	if exp != "" {
		n, err := strconv.Atoi(exp)
		if err != nil || n > 1<<20 || n < -1<<20 {
			return false, "", 0, false
		}
		exponent = n
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits = whole + fraction
	exponent += len(whole)
	trimmed := strings.TrimLeft(digits, "0")
	exponent -= len(digits) - len(trimmed)
	return negative, strings.TrimRight(trimmed, "0"), exponent, true
}
