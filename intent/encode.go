package intent

import (
	"bytes"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"sallyport.dev/errs"
)

// MaxBytes bounds an encoded intent. What is long (arguments, tools, credentials) travels beside it.
const MaxBytes = 64 << 10

// Encode returns the one form of in: its members in the order of the struct, no white space, empty lists as [], no escape that JSON does not
// demand. The intent is validated first, so that control cannot sign what no worker takes. Errors: [errs.Invalid], [errs.Oversize],
// [errs.ProtectedNumber].
func Encode(in Intent) ([]byte, error) {
	if err := in.Validate(); err != nil {
		return nil, err
	}
	b, err := marshal(&in)
	if err != nil {
		return nil, err
	}
	if len(b) > MaxBytes {
		return nil, errs.Newf(errs.Oversize, "an intent has at most %d bytes, this has %d", MaxBytes, len(b))
	}
	return b, nil
}

func marshal(in *Intent) ([]byte, error) {
	b, err := json.Marshal(in, json.FormatNilSliceAsNull(false), jsontext.EscapeForHTML(false), jsontext.EscapeForJS(false))
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, "the intent has text that is not valid UTF-8", err)
	}
	return b, nil
}

// Parse reads an encoded intent. It takes nothing but the one form that [Encode] writes: unknown, repeated, missing and reordered members,
// another spelling of a string or number, white space and bad UTF-8 are refused, so that what was signed, what was read and what is logged
// cannot differ. Errors: [errs.Invalid], [errs.Oversize], [errs.ProtectedNumber].
func Parse(b []byte) (Intent, error) {
	var in Intent
	if len(b) > MaxBytes {
		return in, errs.Newf(errs.Oversize, "an intent has at most %d bytes, this has %d", MaxBytes, len(b))
	}
	if err := json.Unmarshal(b, &in, json.RejectUnknownMembers(true)); err != nil {
		return Intent{}, errs.Wrap(errs.Invalid, "the intent is not strict JSON with the members of docs/intent.md", err)
	}
	again, err := marshal(&in)
	if err != nil {
		return Intent{}, err
	}
	if !bytes.Equal(b, again) {
		return Intent{}, errs.New(errs.Invalid, "the intent is not in the one form of docs/intent.md: a member is missing, out of order or spelled otherwise")
	}
	if err := in.Validate(); err != nil {
		return Intent{}, err
	}
	return in, nil
}
