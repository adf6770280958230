package shim

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"sallyport.dev/guest/fakehost"
)

// TestTranscripts replays dialogues as real harnesses lead them. In a transcript's comment, after the prose (lines with #):
//
//	> LINE               the harness sends a line
//	< LINE               the server's next line is exactly this one
//	call TOOL ARGUMENTS  the host gets a call of this tool, with exactly these argument bytes; then `with NAME=VALUE …` for its other members
//	progress N P [TOTAL [MESSAGE]]
//	answer FILE          the host answers the oldest open call with a file of the archive
//	ack                  the host's next note is that the last answer arrived whole
//	cancel WHY           the host's next note is that nobody waits any more
//	eof                  the harness closes its pipe
//
// The file tools.json holds a tool on each line; words holds NAME=TEXT lines, for which $NAME stands. Nothing may be left unread at the end.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			tr := newTranscript(t, archive)
			tr.play(tr.words.Replace(string(archive.Comment)))
		})
	}
}

type transcript struct {
	*testing.T
	files    map[string]string
	words    *strings.Replacer
	host     *fakehost.Host
	pipe     *pipe
	calls    map[string]bool // taken by `call`
	open     []fakehost.Call
	answered string
	acks     int
	cancels  int
}

func newTranscript(t *testing.T, archive *txtar.Archive) *transcript {
	tr := &transcript{T: t, files: make(map[string]string), calls: make(map[string]bool)}
	for _, f := range archive.Files {
		tr.files[f.Name] = strings.TrimSuffix(string(f.Data), "\n")
	}
	var tools []string
	if list := tr.files["tools.json"]; list != "" {
		tools = strings.Split(list, "\n")
	}
	words := []string{"$instructions", instructions}
	for _, line := range strings.Split(tr.files["words"], "\n") {
		if name, text, ok := strings.Cut(line, "="); ok {
			words = append(words, "$"+name, text)
		}
	}
	tr.words = strings.NewReplacer(words...)
	tr.host = host(t, nil, tools...)
	tr.pipe = open(t, tr.host.In(), tr.host.Out())
	return tr
}

func (tr *transcript) play(script string) {
	for n, line := range strings.Split(script, "\n") {
		verb, rest, _ := strings.Cut(line, " ")
		at := "line " + strconv.Itoa(n+1) + ": "
		switch verb {
		case "", "#":
		case ">":
			tr.pipe.send(rest)
		case "<":
			if got := tr.pipe.line(); got != rest {
				tr.Fatalf("%sthe server wrote\n  %s\nnot\n  %s", at, got, rest)
			}
		case "call":
			tr.call(at, rest)
		case "progress":
			tr.progress(at, rest)
		case "answer":
			tr.answer(at, rest)
		case "ack":
			s := seen(tr.T, tr.host, func(s fakehost.Seen) bool { return len(s.Acks) > tr.acks })
			if s.Acks[tr.acks] != tr.answered {
				tr.Fatalf("%sanother call was acknowledged", at)
			}
			tr.acks++
		case "cancel":
			s := seen(tr.T, tr.host, func(s fakehost.Seen) bool { return len(s.Cancels) > tr.cancels })
			if got := string(s.Cancels[tr.cancels].Why); got != rest {
				tr.Fatalf("%scancelled by %s, not %s", at, got, rest)
			}
			tr.cancels++
		case "eof":
			tr.pipe.in.Close()
		default:
			tr.Fatalf("%sunknown verb %q", at, verb)
		}
	}
	if rest := tr.pipe.end(); rest != "" {
		tr.Fatalf("left unread:\n%s", rest)
	}
	s := tr.host.Seen()
	if len(s.Calls) != len(tr.calls) || len(s.Acks) != tr.acks || len(s.Cancels) != tr.cancels {
		tr.Fatalf("the host saw %d calls, %d acks, %d cancels; the transcript has %d, %d, %d", len(s.Calls), len(s.Acks), len(s.Cancels), len(tr.calls), tr.acks, tr.cancels)
	}
}

func (tr *transcript) call(at, want string) {
	want, with, _ := strings.Cut(want, " with ")
	tool, arguments, _ := strings.Cut(want, " ")
	// A host lists in no order: two calls of one moment are taken as they are named.
	var c fakehost.Call
	seen(tr.T, tr.host, func(s fakehost.Seen) bool {
		for _, have := range s.Calls {
			if !tr.calls[have.ID] && have.Tool == tool && string(have.Arguments) == arguments {
				c = have
				return true
			}
		}
		return false
	})
	tr.calls[c.ID] = true
	tr.open = append(tr.open, c)
	have := map[string]string{
		"harness_call": c.HarnessCall, "trace": c.Trace,
		"progress": strconv.FormatBool(c.Progress), "timeout_ms": strconv.FormatInt(c.TimeoutMS, 10),
	}
	for _, pair := range strings.Fields(with) {
		name, value, _ := strings.Cut(pair, "=")
		if got, known := have[name]; !known || got != value {
			tr.Fatalf("%s%s is %q, not %q", at, name, got, value)
		}
	}
}

func (tr *transcript) progress(at, rest string) {
	f := strings.SplitN(rest, " ", 4)
	if len(f) < 2 || len(tr.open) == 0 {
		tr.Fatalf("%sprogress N P [TOTAL [MESSAGE]], with an open call", at)
	}
	n, _ := strconv.ParseInt(f[0], 10, 64)
	p, _ := strconv.ParseFloat(f[1], 64)
	total, message := 0.0, ""
	if len(f) > 2 {
		total, _ = strconv.ParseFloat(f[2], 64)
	}
	if len(f) > 3 {
		message = f[3]
	}
	if err := tr.host.Progress(tr.open[0], n, p, total, message); err != nil {
		tr.Fatal(at, err)
	}
}

func (tr *transcript) answer(at, file string) {
	result, ok := tr.files[file]
	if !ok || len(tr.open) == 0 {
		tr.Fatalf("%sno file %q, or no open call", at, file)
	}
	c := tr.open[0]
	tr.open = tr.open[1:]
	tr.answered = c.ID
	if err := tr.host.Answer(c, result); err != nil {
		tr.Fatal(at, err)
	}
}
