// Package person is who may use the people's API, and for what: roles, limits, and the secrets that stand for a person elsewhere than on control's
// own socket. Whether a request is let in is one pure function, [Judge]; the table of requests is the server's.
package person

import (
	"context"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"sallyport.dev/control"
	"sallyport.dev/errs"
)

// Role is what a person may do, beside what is their own.
type Role string

// Roles. Everybody with any role may look. An approver decides questions and uncertain outcomes; an operator keeps things running and throws
// switches; an administrator does everything, and is never limited.
const (
	Administrator Role = "administrator"
	Approver      Role = "approver"
	Operator      Role = "operator"
	Viewer        Role = "viewer"
)

// Roles in the order in which they are shown.
var Roles = []Role{Administrator, Approver, Operator, Viewer}

// Limits narrow what a person sees and decides. An empty list is no limit.
type Limits struct {
	Profiles    []string
	Connections []string
	Owners      []string
}

// Empty reports whether nothing is limited.
func (l Limits) Empty() bool { return len(l.Profiles)+len(l.Connections)+len(l.Owners) == 0 }

// Cover reports whether an object lies within the limits. A limit covers no object that lacks the member it names.
func (l Limits) Cover(o Object) bool {
	in := func(list []string, v string) bool { return len(list) == 0 || slices.Contains(list, v) }
	return in(l.Profiles, o.Profile) && in(l.Connections, o.Connection) && in(l.Owners, string(o.Owner))
}

// Person is one row: who somebody is, and what they may do.
type Person struct {
	Org    string
	Name   control.Person
	Roles  []Role
	Limits Limits
	By     control.Person
	Since  time.Time
}

// MaxName bounds names of people and of passes, in bytes.
const MaxName = 200

// Check refuses what is no person's row. Errors: [errs.Invalid].
func (p *Person) Check() error {
	if err := CheckName(string(p.Name)); err != nil {
		return err
	}
	if strings.HasPrefix(string(p.Name), "local:") {
		return errs.New(errs.Invalid, "local: is for accounts of control's machine, which need no row")
	}
	for _, r := range p.Roles {
		if !slices.Contains(Roles, r) {
			return errs.Newf(errs.Invalid, "no role is named %q; there are administrator, approver, operator, viewer", r)
		}
	}
	if slices.Contains(p.Roles, Administrator) && !p.Limits.Empty() {
		return errs.New(errs.Invalid, "an administrator cannot be limited: an administrator could lift the limit")
	}
	for _, list := range [][]string{p.Limits.Profiles, p.Limits.Connections, p.Limits.Owners} {
		for _, name := range list {
			if err := CheckName(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// CheckName refuses names that are empty, long, or hold what cannot be seen. Errors: [errs.Invalid].
func CheckName(name string) error {
	if name == "" || len(name) > MaxName || !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }) {
		return errs.Newf(errs.Invalid, "a name is visible text without spaces, of at most %d bytes", MaxName)
	}
	return nil
}

// Kind says how a pass is used.
type Kind string

// Kinds of passes.
const (
	Link    Kind = "link"    // once, for a session
	Session Kind = "session" // a browser
	Token   Kind = "token"   // a program
)

// Lives of passes.
const (
	LinkLife    = 5 * time.Minute
	SessionLife = 12 * time.Hour
	TokenLife   = 90 * 24 * time.Hour
	MaxToken    = 366 * 24 * time.Hour
)

// Pass is a secret that stands for a person. The store knows its digest alone.
type Pass struct {
	Org      string
	Digest   control.Digest
	ID       string
	Kind     Kind
	Person   control.Person
	Name     string // what a token is for
	ReadOnly bool
	// Local says that the chain of passes began on control's own socket: whoever can use that socket, an agent without a sandbox too, could have made
	// it. It counts as the socket does, in who may decide.
	Local bool
	By    control.Person
	Since time.Time // set by the store
	Until time.Time // by the store's time
}

// Store is what people need of the database. Each change is one durable transaction, and a record.
type Store interface {
	// Now is the store's time, in UTC.
	Now() time.Time
	// PutPerson adds or replaces a row. Since is set by the store, once.
	PutPerson(ctx context.Context, p Person) error
	// RemovePerson forgets a person and every pass of theirs. Errors: [errs.NotFound].
	RemovePerson(ctx context.Context, name, by control.Person) error
	// Person returns one row. Errors: [errs.NotFound].
	Person(ctx context.Context, name control.Person) (Person, error)
	// People returns all, by name.
	People(ctx context.Context) ([]Person, error)
	// PutPass stores a pass by its digest. Passes that are over are forgotten.
	PutPass(ctx context.Context, p Pass) error
	// TakeLink uses a link, once, and stores the session that it opens, whose person, locality and giver are the link's. Errors: [errs.NotAllowed] when
	// it is unknown, used or over.
	TakeLink(ctx context.Context, link control.Digest, session Pass) (Pass, error)
	// Pass returns a session or token that is not over. Errors: [errs.NotFound].
	Pass(ctx context.Context, digest control.Digest) (Pass, error)
	// Passes returns the sessions and tokens that are not over, of one person or ("") of all, newest first.
	Passes(ctx context.Context, of control.Person) ([]Pass, error)
	// EndPass ends one by its id. Errors: [errs.NotFound].
	EndPass(ctx context.Context, id string, by control.Person) error
}
