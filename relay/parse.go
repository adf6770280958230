package relay

import (
	"encoding/hex"
	"strconv"

	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

// ParseCall reads a call record. Arguments alias data. Errors: [errs.Oversize] over [MaxCall] or a member's bound, [errs.TooOld] for a version
// that is not served, [errs.Invalid] for everything else; a message never quotes the record.
func ParseCall(data []byte) (Call, error) {
	var c Call
	m, err := open("call", data, MaxCall)
	if err != nil {
		return c, err
	}
	c.V = Version
	c.Session = m.text("session")
	c.Epoch = m.integer("epoch")
	c.Shim = m.text("shim")
	c.ID = m.text("id")
	c.Tool = m.text("tool")
	c.Arguments = m.object("arguments")
	c.TimeoutMS = m.integer("timeout_ms")
	c.Progress = m.optionalBool("progress")
	c.Trace = m.optionalText("trace")
	c.HarnessCall = m.optionalText("harness_call")
	if err := m.done(); err != nil {
		return Call{}, err
	}
	if len(c.Arguments) > MaxArguments {
		return Call{}, errs.Newf(errs.Oversize, "the arguments have %d bytes, at most %d are relayed", len(c.Arguments), MaxArguments)
	}
	if err := c.check(); err != nil {
		return Call{}, err
	}
	return c, nil
}

// ParseResult reads a result record. Result aliases data. Errors: as [ParseCall], with [MaxResult].
func ParseResult(data []byte) (Result, error) {
	var r Result
	m, err := open("result", data, MaxResult)
	if err != nil {
		return r, err
	}
	r.V = Version
	r.ID = m.text("id")
	call := m.text("call")
	r.State = m.text("state")
	r.Result = m.object("result")
	if err := m.done(); err != nil {
		return Result{}, err
	}
	if r.Call, err = ParseDigest(call); err != nil {
		return Result{}, err
	}
	if len(r.Result) > MaxInline {
		return Result{}, errs.Newf(errs.Oversize, "the result has %d bytes, at most %d are handed over inline", len(r.Result), MaxInline)
	}
	if err := r.check(); err != nil {
		return Result{}, err
	}
	return r, nil
}

// ParseCancel reads a cancel record. Errors: as [ParseCall], with [MaxNote].
func ParseCancel(data []byte) (Cancel, error) {
	var c Cancel
	m, err := open("cancel", data, MaxNote)
	if err != nil {
		return c, err
	}
	c.V = Version
	c.Session = m.text("session")
	c.Epoch = m.integer("epoch")
	c.ID = m.text("id")
	c.Why = Why(m.text("why"))
	if err := m.done(); err != nil {
		return Cancel{}, err
	}
	if err := c.check(); err != nil {
		return Cancel{}, err
	}
	return c, nil
}

// ParseRefused reads the record of what a guest refused. Errors: as [ParseCall], with [MaxNote].
func ParseRefused(data []byte) (Refused, error) {
	var r Refused
	m, err := open("refused", data, MaxNote)
	if err != nil {
		return r, err
	}
	r.V = Version
	r.Session = m.text("session")
	r.Epoch = m.integer("epoch")
	r.ID = m.text("id")
	r.Code = errs.Code(m.text("code"))
	r.Tool = m.optionalText("tool")
	r.More = m.integer("more")
	if err := m.done(); err != nil {
		return Refused{}, err
	}
	if err := r.check(); err != nil {
		return Refused{}, err
	}
	return r, nil
}

// ParseGate reads gate.json. Probe aliases data. Errors: as [ParseCall], with [MaxGate].
func ParseGate(data []byte) (Gate, error) {
	var g Gate
	m, err := open("gate", data, MaxGate)
	if err != nil {
		return g, err
	}
	g.V = Version
	g.Session = m.text("session")
	g.Epoch = m.integer("epoch")
	g.Build = m.text("build")
	g.NetNS = m.text("netns")
	g.Probe = m.object("probe")
	if err := m.done(); err != nil {
		return Gate{}, err
	}
	if err := g.check(); err != nil {
		return Gate{}, err
	}
	return g, nil
}

// ParseProgress reads a progress record. Errors: as [ParseCall], with [MaxProgress].
func ParseProgress(data []byte) (Progress, error) {
	var p Progress
	m, err := open("progress", data, MaxProgress)
	if err != nil {
		return p, err
	}
	p.V = Version
	p.ID = m.text("id")
	p.N = m.integer("n")
	p.Progress = m.number("progress", true)
	p.Total = m.number("total", false)
	p.Message = m.optionalText("message")
	if err := m.done(); err != nil {
		return Progress{}, err
	}
	if err := p.check(); err != nil {
		return Progress{}, err
	}
	return p, nil
}

// ParseDigest reads 64 lower-case hex characters. Errors: [errs.Invalid].
func ParseDigest(s string) (Digest, error) {
	var d Digest
	if len(s) == 2*len(d) {
		for i := range s {
			if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return Digest{}, errs.New(errs.Invalid, "a digest is 64 characters of lower-case hex")
			}
		}
		if _, err := hex.Decode(d[:], []byte(s)); err == nil {
			return d, nil
		}
	}
	return Digest{}, errs.New(errs.Invalid, "a digest is 64 characters of lower-case hex")
}

// String returns the hex form.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// members reads an object's members by name, each once. It keeps the first error, so that a parser reads straight down; done reports it, and
// any member that nobody asked for.
type members struct {
	kind string
	all  []strictjson.Member
	used uint64 // bit per member of all
	err  error
	room [16]strictjson.Member
}

// open checks data and its version. A record has at most 64 members; more are unknown in any version.
func open(kind string, data []byte, most int) (*members, error) {
	if len(data) > most {
		return nil, errs.Newf(errs.Oversize, "%s: %d bytes, at most %d are allowed", kind, len(data), most)
	}
	m := &members{kind: kind}
	var err error
	if m.all, err = strictjson.Object(data, m.room[:0]); err != nil {
		return nil, errs.Wrap(errs.Invalid, kind+": "+errs.Message(err), err)
	}
	if len(m.all) > 64 {
		return nil, errs.Newf(errs.Invalid, "%s: unknown members", kind)
	}
	v := m.integer("v")
	switch {
	case m.err != nil:
		return nil, m.err
	case v < Version-1 || v < 1:
		return nil, errs.Newf(errs.TooOld, "%s: format %d is no longer served, %d is; restart the session with the guest of this host", kind, v, Version)
	case v > Version:
		return nil, errs.Newf(errs.TooOld, "%s: format %d is newer than %d, which this side speaks", kind, v, Version)
	}
	return m, nil
}

func (m *members) fail(name, what string) {
	if m.err == nil {
		m.err = errs.Newf(errs.Invalid, "%s: %s %s", m.kind, name, what)
	}
}

// raw returns the member's raw value, nil where it is absent.
func (m *members) raw(name string) []byte {
	for i := range m.all {
		if string(m.all[i].Name) == name {
			m.used |= 1 << i
			return m.all[i].Value
		}
	}
	return nil
}

func (m *members) text(name string) string {
	raw := m.raw(name)
	s, ok := strictjson.Unquote(raw)
	if !ok {
		m.fail(name, "is missing or not a string")
	}
	return s
}

func (m *members) optionalText(name string) string {
	if m.raw(name) == nil {
		return ""
	}
	return m.text(name)
}

func (m *members) integer(name string) int64 {
	n, ok := strictjson.Int(m.raw(name))
	if !ok {
		m.fail(name, "is missing or not an integer")
	}
	return n
}

func (m *members) number(name string, required bool) float64 {
	raw := m.raw(name)
	if raw == nil && !required {
		return 0
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		m.fail(name, "is missing or not a number that a double holds")
	}
	return f
}

func (m *members) optionalBool(name string) bool {
	raw := m.raw(name)
	if raw == nil {
		return false
	}
	b, ok := strictjson.Bool(raw)
	if !ok {
		m.fail(name, "is neither true nor false")
	}
	return b
}

// object returns a raw object; the whole record was checked, so its first byte tells.
func (m *members) object(name string) []byte {
	raw := m.raw(name)
	if len(raw) == 0 || raw[0] != '{' {
		m.fail(name, "is missing or not an object")
		return nil
	}
	return raw
}

func (m *members) array(name string) []byte {
	raw := m.raw(name)
	if len(raw) == 0 || raw[0] != '[' {
		m.fail(name, "is missing or not an array")
		return nil
	}
	return raw
}

func (m *members) done() error {
	if m.err == nil && m.used != 1<<len(m.all)-1 {
		m.err = errs.Newf(errs.Invalid, "%s: unknown members", m.kind)
	}
	return m.err
}
