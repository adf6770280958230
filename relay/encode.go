package relay

import (
	"encoding/hex"
	"math"
	"strconv"

	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

// Records are written by concatenation: json.Marshal would compact and re-escape the raw values that they carry.

// AppendCall appends the record of c. V is always [Version]. Errors: [errs.Invalid] and [errs.Oversize], as [ParseCall] would report them.
func AppendCall(dst []byte, c *Call) ([]byte, error) {
	if len(c.Arguments) > MaxArguments {
		return dst, errs.Newf(errs.Oversize, "the arguments have %d bytes, at most %d are relayed", len(c.Arguments), MaxArguments)
	}
	if err := checkObject("arguments", c.Arguments); err != nil {
		return dst, err
	}
	if err := c.check(); err != nil {
		return dst, err
	}
	dst = appendHead(dst, c.Session, c.Epoch)
	dst = appendText(dst, `,"shim":`, c.Shim)
	dst = appendText(dst, `,"id":`, c.ID)
	dst = appendText(dst, `,"tool":`, c.Tool)
	dst = append(append(dst, `,"arguments":`...), c.Arguments...)
	dst = strconv.AppendInt(append(dst, `,"timeout_ms":`...), c.TimeoutMS, 10)
	if c.Progress {
		dst = append(dst, `,"progress":true`...)
	}
	if c.Trace != "" {
		dst = appendText(dst, `,"trace":`, c.Trace)
	}
	if c.HarnessCall != "" {
		dst = appendText(dst, `,"harness_call":`, c.HarnessCall)
	}
	return append(dst, '}'), nil
}

// AppendResult appends the record of r. Errors: [errs.Invalid], and [errs.Oversize] for a result over [MaxInline].
func AppendResult(dst []byte, r *Result) ([]byte, error) {
	if len(r.Result) > MaxInline {
		return dst, errs.Newf(errs.Oversize, "the result has %d bytes, at most %d are handed over inline", len(r.Result), MaxInline)
	}
	if err := checkObject("result", r.Result); err != nil {
		return dst, err
	}
	if err := r.check(); err != nil {
		return dst, err
	}
	dst = appendText(append(dst, `{"v":1`...), `,"id":`, r.ID)
	dst = append(hex.AppendEncode(append(dst, `,"call":"`...), r.Call[:]), '"')
	dst = appendText(dst, `,"state":`, r.State)
	dst = append(append(dst, `,"result":`...), r.Result...)
	return append(dst, '}'), nil
}

// AppendCancel appends the record of c. Errors: [errs.Invalid].
func AppendCancel(dst []byte, c *Cancel) ([]byte, error) {
	if err := c.check(); err != nil {
		return dst, err
	}
	dst = appendHead(dst, c.Session, c.Epoch)
	dst = appendText(dst, `,"id":`, c.ID)
	dst = appendText(dst, `,"why":`, string(c.Why))
	return append(dst, '}'), nil
}

// AppendRefused appends the record of r. Errors: [errs.Invalid], [errs.Oversize].
func AppendRefused(dst []byte, r *Refused) ([]byte, error) {
	if err := r.check(); err != nil {
		return dst, err
	}
	dst = appendHead(dst, r.Session, r.Epoch)
	dst = appendText(dst, `,"id":`, r.ID)
	dst = appendText(dst, `,"code":`, string(r.Code))
	if r.Tool != "" {
		dst = appendText(dst, `,"tool":`, r.Tool)
	}
	return append(strconv.AppendInt(append(dst, `,"more":`...), r.More, 10), '}'), nil
}

// AppendGate appends the record of g. Errors: [errs.Invalid], [errs.Oversize].
func AppendGate(dst []byte, g *Gate) ([]byte, error) {
	if err := checkObject("probe", g.Probe); err != nil {
		return dst, err
	}
	if err := g.check(); err != nil {
		return dst, err
	}
	n := len(dst)
	dst = appendHead(dst, g.Session, g.Epoch)
	dst = appendText(dst, `,"build":`, g.Build)
	dst = appendText(dst, `,"netns":`, g.NetNS)
	dst = append(append(dst, `,"probe":`...), g.Probe...)
	dst = append(dst, '}')
	if len(dst)-n > MaxGate {
		return dst[:n], errs.Newf(errs.Oversize, "gate.json would have %d bytes, at most %d are allowed", len(dst)-n, MaxGate)
	}
	return dst, nil
}

// AppendProgress appends the record of p. Errors: [errs.Invalid].
func AppendProgress(dst []byte, p *Progress) ([]byte, error) {
	if err := p.check(); err != nil {
		return dst, err
	}
	dst = appendText(append(dst, `{"v":1`...), `,"id":`, p.ID)
	dst = strconv.AppendInt(append(dst, `,"n":`...), p.N, 10)
	dst = appendNumber(dst, `,"progress":`, p.Progress)
	if p.Total != 0 {
		dst = appendNumber(dst, `,"total":`, p.Total)
	}
	if p.Message != "" {
		dst = appendText(dst, `,"message":`, p.Message)
	}
	return append(dst, '}'), nil
}

func appendHead(dst []byte, session string, epoch int64) []byte {
	dst = append(dst, `{"v":1`...)
	dst = appendText(dst, `,"session":`, session)
	return strconv.AppendInt(append(dst, `,"epoch":`...), epoch, 10)
}

func appendText(dst []byte, name, value string) []byte {
	return strictjson.AppendQuote(append(dst, name...), value)
}

// appendNumber writes v in JSON's grammar; check has refused NaN and infinities.
func appendNumber(dst []byte, name string, v float64) []byte {
	format := byte('f')
	if abs := math.Abs(v); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(append(dst, name...), v, format, -1, 64)
}
