package audit

import (
	"bufio"
	"bytes"
	"crypto"
	"crypto/ed25519"
	"errors"
	"io"
	"strconv"

	"github.com/go-json-experiment/json"

	"sallyport.dev/control"
	"sallyport.dev/errs"
)

// maxLine bounds one line of an export: a record's detail is digests and names.
const maxLine = 1 << 20

// Options say what an export is checked against.
type Options struct {
	Keys       []ed25519.PublicKey         // audit keys; without one, checkpoints are counted and not checked
	AtLeast    *Signed                     // the export must contain exactly the history that this checkpoint states
	Identities map[string]crypto.PublicKey // of witnesses, by SPIFFE id; others are counted and not checked
}

// Report is what a verified export holds.
type Report struct {
	Records     int64
	Batches     int64
	Runs        []string // in order
	First, Last int64    // rows
	Link        string   // of the last batch
	Checkpoints int      // signatures and places checked
	Unchecked   int      // checkpoints and witnesses for which no key was given
	Witnesses   int      // countersignatures checked
	Covered     int64    // last row that a checked checkpoint covers; rows after it are linked, not signed
	AtLeast     bool     // the asked checkpoint is contained
}

// Verify reads an export and checks every link, every checkpoint for which a key is given, and that the history contains opts.AtLeast.
// It returns what was verified so far together with the first thing that is wrong. Errors: [errs.Invalid] with the line's number.
func Verify(r io.Reader, opts Options) (Report, error) {
	v := verifier{opts: opts}
	if opts.AtLeast != nil {
		var err error
		if len(opts.Keys) > 0 {
			v.atLeast, err = opts.AtLeast.Verify(opts.Keys...)
		} else {
			v.atLeast, err = opts.AtLeast.Checkpoint()
		}
		if err != nil {
			return v.report, err
		}
	}
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 64<<10), maxLine)
	n := 0
	for sc.Scan() {
		n++
		if len(bytes.TrimSpace(sc.Bytes())) == 0 {
			continue
		}
		var l Line
		if err := json.Unmarshal(sc.Bytes(), &l, json.RejectUnknownMembers(true)); err != nil {
			return v.report, errs.Wrap(errs.Invalid, lineMessage(n, "it is no line of an audit export"), err)
		}
		if err := v.line(n, l); err != nil {
			return v.report, errs.New(errs.Invalid, lineMessage(n, err.Error()))
		}
	}
	if err := sc.Err(); err != nil {
		return v.report, errs.Wrap(errs.Invalid, lineMessage(n+1, "it cannot be read"), err)
	}
	if err := v.end(); err != nil {
		return v.report, errs.New(errs.Invalid, err.Error())
	}
	return v.report, nil
}

type verifier struct {
	opts    Options
	report  Report
	atLeast Checkpoint
	head    bool
	run     string
	seq     int64          // last row seen
	link    control.Digest // of the last batch
	open    []Record       // rows of a batch whose link has not come
	signed  []byte         // the checkpoint that witnesses may follow
	digest  control.Digest // of it
}

func (v *verifier) line(n int, l Line) error {
	set := 0
	for _, is := range []bool{l.Head != nil, l.Record != nil, l.Link != nil, l.Checkpoint != nil, l.Witness != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		return errors.New("a line holds exactly one thing")
	}
	if !v.head {
		if l.Head == nil {
			return errors.New("an export begins with its head")
		}
		return v.begin(*l.Head)
	}
	switch {
	case l.Head != nil:
		return errors.New("a second head")
	case l.Record != nil:
		return v.record(*l.Record)
	case l.Link != nil:
		return v.close(*l.Link)
	case l.Checkpoint != nil:
		return v.checkpoint(*l.Checkpoint)
	default:
		return v.witness(*l.Witness)
	}
}

func (v *verifier) begin(h Head) error {
	v.head = true
	if h.V != 1 {
		return errors.New("this version of the export is not known here; use a newer build")
	}
	if h.Seq == 0 {
		return nil
	}
	link, err := control.ParseDigest(h.Link)
	if err != nil || h.Run == "" || h.Seq < 0 {
		return errors.New("the head names a row without its run and link")
	}
	v.run, v.link, v.seq = h.Run, link, h.Seq
	return v.passed()
}

// passed notes that the history up to v.seq is read: the place where the asked checkpoint, if it states this row, must agree.
func (v *verifier) passed() error {
	if v.opts.AtLeast == nil || v.atLeast.Seq != v.seq {
		return nil
	}
	if !v.stands(v.atLeast) {
		return errors.New("the given checkpoint states another history up to this row")
	}
	v.report.AtLeast = true
	v.report.Covered = max(v.report.Covered, v.seq)
	return nil
}

func (v *verifier) record(r Record) error {
	if r.Seq != v.seq+1 {
		return errors.New("a row is missing, twice, or out of order")
	}
	if r.Run != v.run {
		if len(v.open) > 0 {
			return errors.New("a run ends within a batch")
		}
		if r.Kind != KindRun || r.Detail != After(v.run, v.link) {
			return errors.New("a run does not begin where the one before it ended")
		}
		v.run, v.link = r.Run, RunStart(r.Run)
		v.report.Runs = append(v.report.Runs, r.Run)
	} else if len(v.report.Runs) == 0 {
		v.report.Runs = append(v.report.Runs, r.Run)
	}
	v.seq = r.Seq
	v.open = append(v.open, r)
	if v.report.First == 0 {
		v.report.First = r.Seq
	}
	return nil
}

func (v *verifier) close(l Linked) error {
	if len(v.open) == 0 || l.Seq != v.seq || l.Run != v.run {
		return errors.New("a link that closes no batch")
	}
	want := Link(v.link, v.open)
	if got, err := control.ParseDigest(l.Link); err != nil || got != want {
		return errors.New("the link does not fit: a row of this batch, or an earlier link, was changed")
	}
	v.link = want
	v.report.Records += int64(len(v.open))
	v.report.Batches++
	v.report.Last, v.report.Link = l.Seq, want.String()
	v.open = v.open[:0]
	return v.passed()
}

func (v *verifier) checkpoint(s Signed) error {
	if len(v.open) > 0 {
		return errors.New("a checkpoint within a batch")
	}
	enc, err := s.Encode()
	if err != nil {
		return err
	}
	if v.digest, err = s.Digest(); err != nil {
		return err
	}
	v.signed = enc
	if len(v.opts.Keys) == 0 {
		v.report.Unchecked++
		return nil
	}
	c, err := s.Verify(v.opts.Keys...)
	if err != nil {
		return errors.New(errs.Message(err))
	}
	if !v.stands(c) {
		return errors.New("a signed checkpoint states another history than this export: rows were changed, left out or put in")
	}
	v.report.Checkpoints++
	v.report.Covered = max(v.report.Covered, c.Seq)
	return nil
}

func (v *verifier) witness(w Witness) error {
	if v.signed == nil || w.Checkpoint != v.digest.String() {
		return errors.New("a countersignature stands after its checkpoint")
	}
	key, ok := v.opts.Identities[w.By]
	if !ok {
		v.report.Unchecked++
		return nil
	}
	if err := VerifyWitness(key, v.signed, w.Signature); err != nil {
		return errors.New(errs.Message(err))
	}
	v.report.Witnesses++
	return nil
}

// stands reports whether the history read so far is what c states.
func (v *verifier) stands(c Checkpoint) bool {
	return c.Seq == v.seq && c.Run == v.run && c.Link == v.link.String()
}

func (v *verifier) end() error {
	if !v.head {
		return errors.New("the export is empty")
	}
	if len(v.open) > 0 {
		return errors.New("the export ends within a batch: it was cut")
	}
	if v.opts.AtLeast != nil && !v.report.AtLeast {
		return errors.New("the export does not contain the history of the given checkpoint: it was cut, or begins after it")
	}
	return nil
}

func lineMessage(n int, what string) string {
	return "line " + strconv.Itoa(n) + ": " + what
}
