package relay

import (
	"math"
	"unicode/utf8"

	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

func (c *Call) check() error {
	if err := checkHead(c.Session, c.Epoch); err != nil {
		return err
	}
	if !ValidID(c.ID) || !ValidID(c.Shim) {
		return errs.New(errs.Invalid, "call: id and shim are 26 characters of lower-case base32")
	}
	if err := checkText("tool", c.Tool, 1, MaxToolName); err != nil {
		return err
	}
	if err := checkText("trace", c.Trace, 0, MaxTrace); err != nil {
		return err
	}
	if err := checkText("harness_call", c.HarnessCall, 0, MaxHarnessCall); err != nil {
		return err
	}
	if c.TimeoutMS < 1 || c.TimeoutMS > MaxTimeout.Milliseconds() {
		return errs.Newf(errs.Invalid, "call: timeout_ms is between 1 and %d", MaxTimeout.Milliseconds())
	}
	return nil
}

func (r *Result) check() error {
	if !ValidID(r.ID) {
		return errs.New(errs.Invalid, "result: id is 26 characters of lower-case base32")
	}
	return checkText("state", r.State, 1, 32)
}

func (c *Cancel) check() error {
	if err := checkHead(c.Session, c.Epoch); err != nil {
		return err
	}
	if !ValidID(c.ID) {
		return errs.New(errs.Invalid, "cancel: id is 26 characters of lower-case base32")
	}
	if c.Why != WhyHarness && c.Why != WhyClosed {
		return errs.New(errs.Invalid, "cancel: why is harness or closed")
	}
	return nil
}

func (r *Refused) check() error {
	if err := checkHead(r.Session, r.Epoch); err != nil {
		return err
	}
	if !ValidID(r.ID) {
		return errs.New(errs.Invalid, "refused: id is 26 characters of lower-case base32")
	}
	if r.Code != errs.Oversize && r.Code != errs.Invalid && r.Code != errs.UnknownTool {
		return errs.New(errs.Invalid, "refused: code is oversize, invalid or unknown_tool")
	}
	if r.More < 0 {
		return errs.New(errs.Invalid, "refused: more counts from 0")
	}
	return checkText("tool", r.Tool, 0, MaxToolName)
}

func (g *Gate) check() error {
	if err := checkHead(g.Session, g.Epoch); err != nil {
		return err
	}
	if err := checkText("build", g.Build, 1, 128); err != nil {
		return err
	}
	return checkText("netns", g.NetNS, 1, 64)
}

func (p *Progress) check() error {
	if !ValidID(p.ID) {
		return errs.New(errs.Invalid, "progress: id is 26 characters of lower-case base32")
	}
	if p.N < 1 {
		return errs.New(errs.Invalid, "progress: n counts from 1")
	}
	for _, v := range []float64{p.Progress, p.Total} {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return errs.New(errs.Invalid, "progress: not a number that JSON can write")
		}
	}
	return checkText("message", p.Message, 0, MaxMessage)
}

func checkHead(session string, epoch int64) error {
	if !ValidID(session) {
		return errs.New(errs.Invalid, "session is 26 characters of lower-case base32")
	}
	if epoch < 1 {
		return errs.New(errs.Invalid, "epoch counts from 1")
	}
	return nil
}

// checkText wants UTF-8 between least and most bytes.
func checkText(name, value string, least, most int) error {
	switch {
	case len(value) < least:
		return errs.Newf(errs.Invalid, "%s is missing", name)
	case len(value) > most:
		return errs.Newf(errs.Oversize, "%s has %d bytes, at most %d are allowed", name, len(value), most)
	case !utf8.ValidString(value):
		return errs.Newf(errs.Invalid, "%s is not UTF-8", name)
	}
	return nil
}

// checkObject wants a JSON object with nothing around it, that may stand as a member of a record.
func checkObject(name string, raw []byte) error {
	if len(raw) == 0 || raw[0] != '{' {
		return errs.Newf(errs.Invalid, "%s: a JSON object was expected", name)
	}
	if err := strictjson.CheckWithin(raw, 1); err != nil {
		return errs.Wrap(errs.Invalid, name+": "+errs.Message(err), err)
	}
	return nil
}
