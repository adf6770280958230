package acceptance

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sallyport.dev/api/sallyport/v1"
)

// unspilled: the credentials of the connections and the keys of the models stand nowhere: in no file of the installation (sealed ones cannot be
// recognized), no log, no record that is exported, nothing that a command prints, nothing that a model or a server read beyond what is its own.
func (w *world) unspilled(t *testing.T, connection string) {
	t.Helper()
	planted := w.rig.Path("planted") // what is searched for can be found
	must(t, os.WriteFile(planted, []byte(base64.StdEncoding.EncodeToString([]byte("x"+w.canary[openAIKey]))), 0o600))
	files, found := 0, false
	err := filepath.WalkDir(w.rig.Path(""), func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // files come and go while the parts run
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return nil //nolint:nilerr // it is gone
		}
		files++
		if p == planted {
			found = slices.Equal(w.secretsIn(data), []string{openAIKey})
			return nil
		}
		w.clean(t, p, data)
		return nil
	})
	must(t, err)
	if !found {
		t.Error("the search finds nothing")
	}
	w.clean(t, "the log", []byte(w.rig.Log()))
	for _, command := range []string{
		"--json calls list", "calls list", "approvals list", "sessions list", "connections list", "--json connections list", "profiles list", "catalogs show " + connection,
		"connections test " + connection, "connections show " + connection, "credentials list", "workers list", "hosts list", "revoke list", "diff", "audit export", "doctor",
		"harness config claude",
	} {
		w.cli(t, strings.Fields(command)...)
	}
	api := w.rig.Operator()
	calls, err := api.ListCalls(t.Context(), &sallyportv1.ListCallsRequest{Limit: 1000})
	must(t, err)
	for _, c := range calls.GetCalls() {
		shown, err := api.ShowCall(t.Context(), &sallyportv1.ShowCallRequest{Id: c.GetId(), Bodies: true})
		must(t, err)
		w.clean(t, "the journal", []byte(shown.String()))
		w.clean(t, "the arguments of a call", shown.GetArguments())
		w.clean(t, "the answer of a call", shown.GetResult())
	}
	w.mu.Lock()
	said := w.said.String()
	w.mu.Unlock()
	w.clean(t, "what commands print", []byte(said))
	for _, r := range w.model.Requests() {
		w.clean(t, "what a model is asked", []byte(r.Body))
		for name, values := range r.Header {
			if name != "X-Api-Key" && name != "Authorization" {
				w.clean(t, "the header "+name+" of a request to a model", []byte(strings.Join(values, " ")))
			}
		}
	}
	for name, s := range w.servers {
		for _, r := range s.Recorder().Records(nil) {
			for _, what := range w.secretsIn(slices.Concat(r.Request.Head, r.Request.Body)) {
				if what != credentialOf(name) {
					t.Errorf("%s was sent to %s", what, name)
				}
			}
		}
	}
	t.Logf("%d files, %d calls, %d bytes printed", files, len(calls.GetCalls()), len(said))
}

// clean complains of secrets.
func (w *world) clean(t *testing.T, where string, data []byte) {
	t.Helper()
	for _, what := range w.secretsIn(data) {
		t.Errorf("%s stands in %s", what, where)
	}
}

// secretsIn says which of the installation's secrets data holds, in whatever spelling.
func (w *world) secretsIn(data []byte) []string {
	var out []string
	for what, secret := range w.canary {
		if slices.ContainsFunc(spellings(secret), func(form []byte) bool { return bytes.Contains(data, form) }) {
			out = append(out, what)
		}
	}
	return out
}

// spellings are the forms in which a secret could lie somewhere: as it is, in base64 (from each of the three positions that it can have), in
// hexadecimal.
func spellings(secret string) [][]byte {
	out := [][]byte{[]byte(secret), []byte(hex.EncodeToString([]byte(secret)))}
	for shift := range 3 {
		text := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + secret))
		out = append(out, []byte(text[4:len(text)-4]))
	}
	return out
}
