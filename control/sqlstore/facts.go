package sqlstore

import (
	"strings"

	"sallyport.dev/control"
)

// facts are what every guard looks at, kept in the writer's memory between changes: sessions and the newest versions of credentials. Any
// statement of the writer that names one of their tables drops them, and while such a change is not committed they are read from the rows. The
// one who writes alone uses them.
type facts struct {
	sessions    map[string]sessionFact
	credentials map[credentialKey]credentialFact
	touches     map[string]bool // by SQL text: whether a statement changes what facts hold
	dirty       bool            // in this transaction
}

type sessionFact struct {
	state control.SessionState
	epoch int64
}

type credentialKey struct{ connection, subject string }

type credentialFact struct {
	version int64
	state   control.CredentialState
}

// maxFacts bounds each map; past it, it begins anew.
const maxFacts = 1 << 14

// changing is told every changing statement before it runs.
func (f *facts) changing(sql string) {
	touches, known := f.touches[sql]
	if !known {
		touches = strings.Contains(sql, "sessions") || strings.Contains(sql, "credentials")
		if f.touches == nil {
			f.touches = map[string]bool{}
		}
		f.touches[sql] = touches
	}
	if touches {
		f.dirty = true
		f.drop()
	}
}

// end is told that a transaction ended, either way.
func (f *facts) end() {
	if f.dirty {
		f.dirty = false
		f.drop()
	}
}

func (f *facts) drop() {
	clear(f.sessions)
	clear(f.credentials)
}

const (
	sqlSessionFact    = "SELECT state, epoch FROM sessions WHERE id = ?"
	sqlCredentialFact = "SELECT version, state FROM credentials WHERE connection = ? AND subject = ? ORDER BY version DESC LIMIT 1"
)

func (t *tx) sessionFact(id string) (sessionFact, error) {
	f := &t.s.facts
	if in, ok := f.sessions[id]; ok {
		return in, nil
	}
	var in sessionFact
	if _, err := t.row(sqlSessionFact, []any{id}, &in.state, &in.epoch); err != nil {
		return in, err
	}
	if !f.dirty {
		if f.sessions == nil || len(f.sessions) >= maxFacts {
			f.sessions = map[string]sessionFact{}
		}
		f.sessions[id] = in
	}
	return in, nil
}

func (t *tx) credentialFact(connection, subject string) (credentialFact, error) {
	f := &t.s.facts
	key := credentialKey{connection, subject}
	if c, ok := f.credentials[key]; ok {
		return c, nil
	}
	var c credentialFact
	if _, err := t.row(sqlCredentialFact, []any{connection, subject}, &c.version, &c.state); err != nil {
		return c, err
	}
	if !f.dirty {
		if f.credentials == nil || len(f.credentials) >= maxFacts {
			f.credentials = map[credentialKey]credentialFact{}
		}
		f.credentials[key] = c
	}
	return c, nil
}
