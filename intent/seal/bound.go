package seal

import (
	"encoding/binary"
	"strings"

	"sallyport.dev/errs"
	"sallyport.dev/intent"
)

const boundDomain = "credential v1"

// Bound is the associated data of a connection's credential: everything that decides where the secret may go and who it stands for. It is
// public. Members that do not apply are empty.
type Bound struct {
	Org           string
	Connection    string
	Subject       string // shared, or a person
	Version       int64  // of the credential
	Origin        string
	PathPrefix    string // the intent's path begins with it, at a segment
	Header        string // header name; empty for bearer, oauth and signature
	Issuer        string
	TokenEndpoint string
	ClientID      string
	Account       string
}

// Bytes returns the associated data: Join("credential v1", members in the order of the struct), the version as 8 bytes, big-endian.
func (b Bound) Bytes() []byte {
	return intent.Join(boundDomain, []byte(b.Org), []byte(b.Connection), []byte(b.Subject), binary.BigEndian.AppendUint64(nil, uint64(b.Version)),
		[]byte(b.Origin), []byte(b.PathPrefix), []byte(b.Header), []byte(b.Issuer), []byte(b.TokenEndpoint), []byte(b.ClientID), []byte(b.Account))
}

// ParseBound reads what Bytes wrote, and nothing else. Errors: [errs.Invalid].
func ParseBound(data []byte) (Bound, error) {
	rest, ok := strings.CutPrefix(string(data), "sallyport "+boundDomain+"\n")
	if !ok {
		return Bound{}, errs.New(errs.Invalid, "this is not the associated data of a credential")
	}
	parts := make([]string, 0, 11)
	for len(rest) >= 8 {
		n := binary.BigEndian.Uint64([]byte(rest[:8]))
		if n > uint64(len(rest)-8) {
			break
		}
		parts = append(parts, rest[8:8+n])
		rest = rest[8+n:]
	}
	if rest != "" || len(parts) != 11 || len(parts[3]) != 8 {
		return Bound{}, errs.New(errs.Invalid, "the associated data of the credential is cut or has other members")
	}
	return Bound{
		Org: parts[0], Connection: parts[1], Subject: parts[2], Version: int64(binary.BigEndian.Uint64([]byte(parts[3]))),
		Origin: parts[4], PathPrefix: parts[5], Header: parts[6], Issuer: parts[7], TokenEndpoint: parts[8], ClientID: parts[9], Account: parts[10],
	}, nil
}

// Covers reports whether a credential bound to b may be used for in. Every member that the intent knows must be the same; the path must lie
// under the prefix; an intent that expects an account gets that account only. Errors: [errs.NotAllowed], naming the member.
func (b Bound) Covers(in *intent.Intent) error {
	for _, m := range []struct {
		name       string
		bound, got string
	}{
		{"organization", b.Org, in.Org},
		{"connection", b.Connection, in.Connection},
		{"subject", b.Subject, in.Subject},
		{"origin", b.Origin, in.Origin},
		{"header", b.Header, in.AuthHeader},
	} {
		if m.bound != m.got {
			return errs.Newf(errs.NotAllowed, "the credential is sealed for another %s; set it again for this connection", m.name)
		}
	}
	switch {
	case b.Version != in.Version:
		return errs.New(errs.NotAllowed, "the credential is not the version that the intent names")
	case !under(b.PathPrefix, in.Path):
		return errs.New(errs.NotAllowed, "the credential is sealed for another path; set it again for this connection")
	case in.Account != "" && b.Account != in.Account:
		return errs.New(errs.NotAllowed, "the credential is of another account than expected; connect the expected one")
	}
	return nil
}

// under reports whether path lies under prefix: equal, or going on at a slash, a question mark, or where the prefix itself ends with a slash.
// Dot segments are refused, however they are spelled: a server could resolve them out of the prefix.
func under(prefix, path string) bool {
	rest, ok := strings.CutPrefix(path, prefix)
	if !ok || prefix == "" || hasDots(path) {
		return false
	}
	return rest == "" || strings.HasSuffix(prefix, "/") || rest[0] == '/' || rest[0] == '?'
}

var slashes = strings.NewReplacer("%2e", ".", "%2f", "/", "%5c", "/", `\`, "/")

func hasDots(path string) bool {
	p, _, _ := strings.Cut(strings.ToLower(path), "?")
	for s := range strings.SplitSeq(slashes.Replace(p), "/") {
		if s == "." || s == ".." {
			return true
		}
	}
	return false
}
