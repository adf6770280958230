package session

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"sallyport.dev/control"
	"sallyport.dev/errs"
)

// TicketLife is how long an owner ticket may be used, once.
const TicketLife = 60 * time.Second

const (
	ticketPrefix = "spo1." // a word that a secret scanner can find
	maxTicket    = 4 << 10
)

// TicketRequest asks for the right to open one session. It stands in the ticket, in the open: the store knows the whole text by its digest, so that
// nothing of it can be changed.
type TicketRequest struct {
	Owner    control.Person `json:"owner"`
	Profile  string         `json:"profile"`
	Attended bool           `json:"attended"`
	Local    bool           `json:"local"`
}

// IssueTicket makes an owner ticket: the only thing that a host needs of a person, and all that it gets. Only its digest is stored.
func IssueTicket(ctx context.Context, store Store, r TicketRequest) (text string, until time.Time, err error) {
	p, err := store.Policy(ctx, nil)
	if err != nil {
		return "", time.Time{}, err
	}
	if p.Profiles[r.Profile] == nil {
		return "", time.Time{}, errs.Newf(errs.NotFound, "no profile is named %q; sallyport profiles list shows them", r.Profile)
	}
	body, err := json.Marshal(r)
	if err != nil {
		return "", time.Time{}, errs.Wrap(errs.Internal, "the ticket cannot be written", err)
	}
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return "", time.Time{}, errs.Wrap(errs.Internal, "no randomness for a ticket", err)
	}
	text = ticketPrefix + base64.RawURLEncoding.EncodeToString(body) + "." + base64.RawURLEncoding.EncodeToString(secret)
	until = store.Now().Add(TicketLife)
	return text, until, store.PutTicket(ctx, Ticket{
		Org: control.Org, Digest: TicketDigest(text), Owner: r.Owner, Profile: r.Profile, Attended: r.Attended, Local: r.Local, Until: until,
	})
}

// TicketDigest is what a ticket is stored and looked up by: of its whole text.
func TicketDigest(text string) control.Digest {
	return control.SumParts("owner ticket v1", []byte(text))
}

// ParseTicket reads what a ticket says. Whether it is true is the store's to say, by the digest. Errors: [errs.Invalid].
func ParseTicket(text string) (TicketRequest, error) {
	var r TicketRequest
	rest, ok := strings.CutPrefix(text, ticketPrefix)
	body, _, found := strings.Cut(rest, ".")
	if !ok || !found || len(text) > maxTicket {
		return r, errs.New(errs.Invalid, "this is not an owner ticket")
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err == nil {
		err = json.Unmarshal(raw, &r, json.RejectUnknownMembers(true))
	}
	if err != nil {
		return r, errs.Wrap(errs.Invalid, "this is not an owner ticket", err)
	}
	return r, nil
}
