package person

import (
	"slices"

	"sallyport.dev/control"
)

// Who asks, as the server authenticated them. The zero value is nobody.
type Who struct {
	Person   control.Person
	Roles    []Role
	Limits   Limits
	ReadOnly bool
}

// Is reports whether the person has a role. An administrator has every one.
func (w Who) Is(r Role) bool {
	return slices.Contains(w.Roles, r) || slices.Contains(w.Roles, Administrator)
}

// Object is what a request is about, as far as limits know it.
type Object struct {
	Profile    string
	Connection string
	Owner      control.Person
}

// Access is a row of the table of requests. An administrator may everything; the row says who else.
type Access struct {
	Roles     []Role
	Own       bool // whose object it is
	Everybody bool // whoever is known
	Nobody    bool // also who is not
	Changes   bool // it changes something: not with a token for reading
}

// Verdict is what [Judge] says.
type Verdict string

// Verdicts.
const (
	Let     Verdict = "let"
	Unknown Verdict = "unknown" // nobody is signed in
	Refused Verdict = "refused" // seen, and not this person's to do
	Hidden  Verdict = "hidden"  // it answers as what does not exist does
)

// Judge says whether w may make a request: pure. o is what it is about; nil before that is known, or when it is about everything that its answer is
// then narrowed to.
func Judge(a Access, w Who, o *Object) Verdict {
	if a.Nobody {
		return Let
	}
	if w.Person == "" {
		return Unknown
	}
	if a.Changes && w.ReadOnly {
		return Refused
	}
	if a.Everybody || w.Is(Administrator) {
		return Let
	}
	role := slices.ContainsFunc(a.Roles, w.Is)
	if o == nil {
		if role || a.Own {
			return Let
		}
		return Refused
	}
	mine := o.Owner == w.Person
	switch {
	case !Sees(w, *o):
		return Hidden
	case role && w.Limits.Cover(*o), a.Own && mine:
		return Let
	}
	return Refused
}

// Sees reports whether w may know that o exists: their own, or with any role what lies within their limits.
func Sees(w Who, o Object) bool {
	switch {
	case w.Person == "":
		return false
	case w.Is(Administrator), o.Owner == w.Person:
		return true
	}
	return len(w.Roles) > 0 && w.Limits.Cover(o)
}
