package grant

import (
	"context"
	"fmt"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/errs"
)

// Verdict is what one version of a profile says to a call. They are ordered from the loosest to the strictest.
type Verdict int

// Verdicts.
const (
	Allowed   Verdict = iota // a read
	Asks                     // a person decides
	Unmatched                // rules name the tool, and no condition holds
	Invisible                // no rule names it: it does not exist for this session, unless a given grant covers it
	Denied                   // a rule says no, or a condition cannot be decided
)

var verdictWords = [...]string{"allow", "ask", "no rule matches", "not granted", "deny"}

// String returns the verdict's word.
func (v Verdict) String() string {
	if v < 0 || int(v) >= len(verdictWords) {
		return "unknown"
	}
	return verdictWords[v]
}

// Call is one call as the rules see it.
type Call struct {
	Facts
	Effect      control.Effect
	Session     string
	InputSchema []byte
}

// Counter is a counter that a rule or a given grant takes from when the call runs.
type Counter struct {
	Key   string
	Limit control.Limit
	// Looked says that a condition looked at Used, so that the commit must find the counter as it was.
	Looked bool
	Used   int64
}

// Usage tells how often a counter was taken from in its current window.
type Usage func(key string, per time.Duration) (calls, bytes int64, err error)

// Finding is what came of looking at rules.
type Finding struct {
	Verdict  Verdict
	Reason   string // safe text: why, for a denial
	Hint     string // safe text: what to do instead, or ""
	Counters []Counter
	Steps    []string // each rule that was looked at, and what it said
}

// Rules evaluates the grants of one version of a profile: deny; then ask; then allow (reads only; for a write it asks). An error of a condition
// denies. A given grant, which comes between deny and ask, is looked for with [Evaluator.Given].
func (e *Evaluator) Rules(ctx context.Context, p *control.Profile, c Call) Finding {
	f := Finding{Verdict: Invisible}
	named := false
	for _, rule := range []control.Rule{control.Deny, control.Ask, control.Allow} {
		for i := range p.Grants {
			g := &p.Grants[i]
			if g.Rule != rule || !Names(g.Tools, c.Connection, c.Tool) {
				continue
			}
			named = named || rule != control.Deny
			label := fmt.Sprintf("%s version %d, grant %d (%s)", p.Name, p.Version, i+1, g.Rule)
			counter := Counter{Key: CounterOfRule(p.Name, c.Owner, g)}
			holds, miss, err := e.holds(ctx, g.When, c, &counter, limitOf(g))
			switch {
			case err != nil:
				f.Steps = append(f.Steps, label+": "+errs.Message(err))
				f.Verdict, f.Reason, f.Hint = Denied, errs.Message(err), ""
				return f
			case !holds:
				f.Steps = append(f.Steps, label+": "+miss.Reason)
				if rule != control.Deny && f.Reason == "" {
					f.Reason, f.Hint = miss.Reason, miss.Hint
				}
				continue
			}
			f.Steps = append(f.Steps, label+": matches")
			switch rule {
			case control.Deny:
				f.Verdict, f.Reason, f.Hint = Denied, "a rule denies it", ""
				return f
			case control.Ask:
				f.Verdict = Asks
			case control.Allow:
				f.Verdict = Allowed
				if c.Effect != control.Read {
					f.Verdict = Asks
					f.Steps = append(f.Steps, label+": a write is never just allowed, so it asks")
				}
			}
			f.Reason, f.Hint = "", ""
			if g.Limit != nil || counter.Looked {
				counter.Limit = limitOf(g)
				f.Counters = append(f.Counters, counter)
			}
			return f
		}
	}
	if named {
		f.Verdict = Unmatched
	} else {
		f.Steps = append(f.Steps, fmt.Sprintf("%s version %d: nothing grants it", p.Name, p.Version))
	}
	return f
}

func limitOf(g *control.Grant) control.Limit {
	if g.Limit == nil {
		return control.Limit{}
	}
	return *g.Limit
}

// Given looks for the standing or session grant that covers the call: the first whose tool, profile, session, condition and limit fit. A
// condition that errs does not cover. It returns nil when there is none.
func (e *Evaluator) Given(ctx context.Context, given []*control.GivenGrant, c Call) (*control.GivenGrant, Finding) {
	var f Finding
	for _, g := range given {
		if !Names(g.Tools, c.Connection, c.Tool) || g.Profile != c.Profile || g.Kind == "session" && g.Session != c.Session {
			continue
		}
		label := g.Kind + " grant " + g.ID
		counter := Counter{Key: CounterOfGiven(g.ID), Limit: g.Limit}
		holds, miss, err := e.holds(ctx, g.When, c, &counter, g.Limit)
		why := miss.Reason
		switch {
		case g.Revoked, !c.Now.Before(g.Until):
			why = "it is over"
		case g.Suspended != "":
			why = "it is suspended: " + g.Suspended
		case g.Kind == "session" && !c.Attended:
			why = "session grants are for attended sessions"
		case err != nil:
			why = errs.Message(err)
		case holds:
			why = ""
			if e.Usage != nil && (g.Limit.Calls > 0 || g.Limit.Bytes > 0) {
				calls, bytes, err := e.Usage(counter.Key, g.Limit.Per)
				switch {
				case err != nil:
					why = "its counter cannot be read"
				case g.Limit.Calls > 0 && calls >= g.Limit.Calls:
					why = fmt.Sprintf("its %d calls are used up", g.Limit.Calls)
				case g.Limit.Bytes > 0 && bytes+int64(len(c.Args)) > g.Limit.Bytes:
					why = fmt.Sprintf("its %d bytes are used up", g.Limit.Bytes)
				}
			}
		}
		if why != "" {
			f.Steps = append(f.Steps, label+": "+why)
			f.Reason = label + ": " + why
			continue
		}
		f.Steps = append(f.Steps, label+": covers it")
		f.Reason = ""
		f.Counters = []Counter{counter}
		return g, f
	}
	return nil, f
}

// Evaluator evaluates conditions. Its zero value works, without counters. Safe for concurrent use if Usage is.
type Evaluator struct {
	Cache *Cache
	Usage Usage
}

// holds evaluates a condition; without one it holds.
func (e *Evaluator) holds(ctx context.Context, when string, c Call, counter *Counter, limit control.Limit) (holds bool, miss Miss, err error) {
	if when == "" {
		return true, miss, nil
	}
	compiled, err := e.compile(when, c.InputSchema)
	if err != nil {
		return false, miss, errs.Wrap(errs.RuleDenied, "the condition of a rule does not fit this tool", err)
	}
	if compiled.Used() {
		counter.Looked = true
		if e.Usage != nil {
			if counter.Used, _, err = e.Usage(counter.Key, limit.Per); err != nil {
				return false, miss, errs.Wrap(errs.RuleDenied, "the counter that a rule looks at cannot be read", err)
			}
		}
	}
	facts := c.Facts
	facts.Used = counter.Used
	if holds, err = compiled.Eval(ctx, facts); err != nil || holds {
		return holds, miss, err
	}
	return false, compiled.Why(facts.Args), nil
}

func (e *Evaluator) compile(when string, schema []byte) (*Condition, error) {
	if e.Cache == nil {
		return Compile(when, schema)
	}
	return e.Cache.Get(when, schema)
}
