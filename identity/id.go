// Package identity says who a process is: SPIFFE ids in X.509 certificates of an embedded CA, valid for a day, and the mTLS configuration that
// lets two processes meet only when each is exactly who the other expects. Position in the network counts for nothing.
//
//	spiffe://DOMAIN/control/NAME   spiffe://DOMAIN/host/NAME   spiffe://DOMAIN/worker/POOL/NAME
package identity

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"sallyport.dev/errs"
)

// DefaultDomain is the trust domain until one is set.
const DefaultDomain = "sallyport.internal"

// Role is what a process is.
type Role string

// Roles.
const (
	Control Role = "control"
	Host    Role = "host"
	Worker  Role = "worker"
)

// Name is a process's identity in words.
type Name struct {
	Domain string
	Role   Role
	Pool   string // workers only
	Name   string
}

// ID returns the SPIFFE id. Errors: [errs.Invalid], naming the part.
func (n Name) ID() (spiffeid.ID, error) {
	td, err := trustDomain(n.Domain)
	if err != nil {
		return spiffeid.ID{}, err
	}
	if err := CheckName(n.Name); err != nil {
		return spiffeid.ID{}, err
	}
	segments := []string{string(n.Role), n.Name}
	switch n.Role {
	case Control, Host:
		if n.Pool != "" {
			return spiffeid.ID{}, errs.Newf(errs.Invalid, "a %s has no pool", n.Role)
		}
	case Worker:
		if err := CheckName(n.Pool); err != nil {
			return spiffeid.ID{}, err
		}
		segments = []string{string(n.Role), n.Pool, n.Name}
	default:
		return spiffeid.ID{}, errs.New(errs.Invalid, "the role is none of control, host, worker")
	}
	id, err := spiffeid.FromSegments(td, segments...)
	if err != nil {
		return spiffeid.ID{}, errs.Wrap(errs.Invalid, "the name makes no SPIFFE id", err)
	}
	return id, nil
}

// trustDomain takes a plain name; an address is none, because no name constraint of a CA matches it (RFC 5280 section 4.2.1.10).
func trustDomain(domain string) (spiffeid.TrustDomain, error) {
	td, err := spiffeid.TrustDomainFromString(domain)
	if err == nil && td.Name() != domain {
		err = errors.New("it is an id, not a name")
	}
	if err == nil {
		if _, e := netip.ParseAddr(domain); e == nil {
			err = errors.New("it is an address")
		}
	}
	if err != nil {
		return td, errs.Wrap(errs.Invalid, "the domain is not a trust domain: use a name of lower-case letters, digits, dots and dashes", err)
	}
	return td, nil
}

// ParseID reads a SPIFFE id of ours. Errors: [errs.Invalid].
func ParseID(id spiffeid.ID) (Name, error) {
	n := Name{Domain: id.TrustDomain().Name()}
	parts := strings.Split(strings.TrimPrefix(id.Path(), "/"), "/")
	switch {
	case len(parts) == 2 && (parts[0] == string(Control) || parts[0] == string(Host)):
		n.Role, n.Name = Role(parts[0]), parts[1]
	case len(parts) == 3 && parts[0] == string(Worker):
		n.Role, n.Pool, n.Name = Worker, parts[1], parts[2]
	default:
		return Name{}, errs.New(errs.Invalid, "the identity is of no control, host or worker")
	}
	if again, err := n.ID(); err != nil || again != id {
		return Name{}, errs.New(errs.Invalid, "the identity has a name that is not allowed")
	}
	return n, nil
}

// CheckName reports whether s may name a machine or a pool: 1 to 63 of a-z, 0-9, dot, dash and underscore, beginning and ending with a letter or
// digit. Errors: [errs.Invalid].
func CheckName(s string) error {
	ok := len(s) >= 1 && len(s) <= 63
	for i, c := range []byte(s) {
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		edge := i == 0 || i == len(s)-1
		ok = ok && (alnum || !edge && (c == '.' || c == '-' || c == '_'))
	}
	if !ok {
		return errs.New(errs.Invalid, "a name has 1 to 63 of a-z, 0-9, dot, dash and underscore, and begins and ends with a letter or digit")
	}
	return nil
}
