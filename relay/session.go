package relay

import (
	"strconv"

	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

// Session is session.json: what a guest knows about itself. Control writes it, the host publishes it as it is. It names no person, no
// connection and no address.
type Session struct {
	V         int
	Session   string
	Epoch     int64
	Build     string // of the host; the guest's binaries beside it are of the same build
	Server    string // the MCP server's name in the harness
	Await     string // name of the tool that waits for an earlier call
	HoldMS    int64  // how long a call may be held while a person thinks
	TimeoutMS int64  // timeout_ms of a call where the harness sets none
	Limits    Limits
}

// Limits are the bounds that the guest keeps by itself, so that its error comes at once. The host keeps them too.
type Limits struct {
	Line           int64 // bytes of a JSON-RPC line
	Arguments      int64 // bytes of a call's arguments
	InFlight       int64 // calls without a result, over all shims of the session
	Unacknowledged int64 // results that nobody has read
}

// DefaultLimits are the bounds of this version.
func DefaultLimits() Limits {
	return Limits{Line: MaxLine, Arguments: MaxArguments, InFlight: MaxInFlight, Unacknowledged: MaxUnacknowledged}
}

// AppendSession appends session.json. Errors: [errs.Invalid], [errs.Oversize].
func AppendSession(dst []byte, s *Session) ([]byte, error) {
	if err := s.check(); err != nil {
		return dst, err
	}
	dst = appendHead(dst, s.Session, s.Epoch)
	dst = appendText(dst, `,"build":`, s.Build)
	dst = appendText(dst, `,"server":`, s.Server)
	dst = appendText(dst, `,"await":`, s.Await)
	for _, f := range []struct {
		name  string
		value int64
	}{
		{`,"hold_ms":`, s.HoldMS},
		{`,"timeout_ms":`, s.TimeoutMS},
		{`,"limits":{"line":`, s.Limits.Line},
		{`,"arguments":`, s.Limits.Arguments},
		{`,"in_flight":`, s.Limits.InFlight},
		{`,"unacknowledged":`, s.Limits.Unacknowledged},
	} {
		dst = strconv.AppendInt(append(dst, f.name...), f.value, 10)
	}
	return append(dst, `}}`...), nil
}

// ParseSession reads session.json. Errors: as [ParseCall], with [MaxSession].
func ParseSession(data []byte) (Session, error) {
	var s Session
	m, err := open("session.json", data, MaxSession)
	if err != nil {
		return s, err
	}
	s.V = Version
	s.Session = m.text("session")
	s.Epoch = m.integer("epoch")
	s.Build = m.text("build")
	s.Server = m.text("server")
	s.Await = m.text("await")
	s.HoldMS = m.integer("hold_ms")
	s.TimeoutMS = m.integer("timeout_ms")
	limits := m.object("limits")
	if err := m.done(); err != nil {
		return Session{}, err
	}
	l := &members{kind: "session.json limits"}
	for name, value := range strictjson.Each(limits) {
		l.all = append(l.all, strictjson.Member{Name: name, Value: value})
	}
	s.Limits = Limits{Line: l.integer("line"), Arguments: l.integer("arguments"), InFlight: l.integer("in_flight"), Unacknowledged: l.integer("unacknowledged")}
	if err := l.done(); err != nil {
		return Session{}, err
	}
	if err := s.check(); err != nil {
		return Session{}, err
	}
	return s, nil
}

func (s *Session) check() error {
	if err := checkHead(s.Session, s.Epoch); err != nil {
		return err
	}
	for _, f := range []struct{ name, value string }{{"build", s.Build}, {"server", s.Server}, {"await", s.Await}} {
		if err := checkText(f.name, f.value, 1, 128); err != nil {
			return err
		}
	}
	if s.HoldMS < 0 || s.HoldMS > MaxTimeout.Milliseconds() {
		return errs.Newf(errs.Invalid, "session.json: hold_ms is between 0 and %d", MaxTimeout.Milliseconds())
	}
	if s.TimeoutMS < 1 || s.TimeoutMS > MaxTimeout.Milliseconds() {
		return errs.Newf(errs.Invalid, "session.json: timeout_ms is between 1 and %d", MaxTimeout.Milliseconds())
	}
	for _, f := range []struct {
		name        string
		value, most int64
	}{
		{"line", s.Limits.Line, MaxLine},
		{"arguments", s.Limits.Arguments, MaxArguments},
		{"in_flight", s.Limits.InFlight, MaxInFlight},
		{"unacknowledged", s.Limits.Unacknowledged, MaxUnacknowledged},
	} {
		if f.value < 1 || f.value > f.most {
			return errs.Newf(errs.Invalid, "session.json: limits.%s is between 1 and %d", f.name, f.most)
		}
	}
	return nil
}

// Tool is one entry of tools.json: its bytes as reviewed, with only name and annotations.readOnlyHint replaced.
type Tool struct {
	Name string
	Raw  []byte
}

// AppendTools appends tools.json: the raw tools in the order given. Errors: [errs.Invalid], [errs.Oversize].
func AppendTools(dst []byte, tools [][]byte) ([]byte, error) {
	n := len(dst)
	dst = append(dst, `{"v":1,"tools":[`...)
	for i, raw := range tools {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, raw...)
	}
	dst = append(dst, `]}`...)
	if _, err := ParseTools(dst[n:]); err != nil {
		return dst[:n], err
	}
	return dst, nil
}

// ParseTools reads tools.json: each tool is an object with a name of its own. Raw aliases data. Errors: as [ParseCall], with [MaxTools] and
// [MaxToolCount].
func ParseTools(data []byte) ([]Tool, error) {
	m, err := open("tools.json", data, MaxTools)
	if err != nil {
		return nil, err
	}
	list := m.array("tools")
	if err := m.done(); err != nil {
		return nil, err
	}
	var tools []Tool
	seen := make(map[string]bool)
	for raw := range strictjson.Elements(list) {
		if len(tools) == MaxToolCount {
			return nil, errs.Newf(errs.Oversize, "tools.json: more than %d tools", MaxToolCount)
		}
		value, _ := strictjson.Lookup(raw, "name")
		name, ok := strictjson.Unquote(value)
		if !ok || name == "" || len(name) > MaxToolName {
			return nil, errs.Newf(errs.Invalid, "tools.json: tool %d has no name of 1 to %d bytes", len(tools), MaxToolName)
		}
		if seen[name] {
			return nil, errs.Newf(errs.Invalid, "tools.json: tool %d has the name of another", len(tools))
		}
		seen[name] = true
		tools = append(tools, Tool{Name: name, Raw: raw})
	}
	return tools, nil
}
