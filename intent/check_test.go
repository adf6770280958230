package intent

import (
	"testing"
	"time"

	"sallyport.dev/errs"
)

func TestCheck(t *testing.T) {
	args := []byte(`{"title":"hello","n":12345678901234567890}`)
	self := Self{Run: "runaaaaaaaaaaaaaaaaaaaaaaa", Pool: "default"}
	type input struct {
		in     Intent
		how    Authenticity
		beside Beside
		self   Self
		now    time.Time
	}
	good := func() input {
		return input{sample(), BySignature, Beside{Arguments: args, Tool: []byte("tool")}, self, epoch.Add(time.Second)}
	}
	for _, c := range []struct {
		name   string
		change func(*input)
		want   Verdict
	}{
		{"as signed", func(*input) {}, Accepted},
		{"last millisecond", func(i *input) { i.now = epoch.Add(30 * time.Second) }, Accepted},
		{"MAC of a read's call", func(i *input) { i.in.Effect, i.how = Read, ByMAC }, Accepted},
		{"clock behind, within the leeway", func(i *input) { i.now = epoch.Add(-Leeway) }, Accepted},
		{"other version", func(i *input) { i.in.V = 2 }, OtherVersion},
		{"other version beats no signature", func(i *input) { i.in.V, i.how = 2, NotAuthentic }, OtherVersion},
		{"no signature", func(i *input) { i.how = NotAuthentic }, Unsigned},
		{"MAC of a write", func(i *input) { i.how = ByMAC }, Unsigned},
		{"MAC of a probe", func(i *input) { i.in.Kind, i.in.Effect, i.how = Probe, Read, ByMAC }, Unsigned},
		{"other run", func(i *input) { i.self.Run = "another" }, Foreign},
		{"other pool", func(i *input) { i.self.Pool = "another" }, Foreign},
		{"other arguments", func(i *input) { i.beside.Arguments = []byte("{}") }, Mismatch},
		{"no arguments", func(i *input) { i.beside.Arguments = nil }, Mismatch},
		{"other tool", func(i *input) { i.beside.Tool = []byte("other") }, Mismatch},
		{"meta that nothing binds", func(i *input) { i.beside.Meta = []byte("x") }, Mismatch},
		{"upstream session that nothing binds", func(i *input) { i.beside.Upstream = []byte("x") }, Mismatch},
		{"trust that nothing binds", func(i *input) { i.beside.TLS = []byte("x") }, Mismatch},
		{"early", func(i *input) { i.now = epoch.Add(-Leeway - time.Millisecond) }, Early},
		{"expired", func(i *input) { i.now = epoch.Add(30*time.Second + time.Millisecond) }, Expired},
		{"mismatch beats expired", func(i *input) { i.now, i.beside.Arguments = epoch.Add(time.Hour), nil }, Mismatch},
	} {
		i := good()
		c.change(&i)
		got := Check(&i.in, i.how, i.beside, i.self, i.now)
		if got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		if (got.Err() == nil) != (got == Accepted) {
			t.Errorf("%s: error %v for %v", c.name, got.Err(), got)
		}
	}
}

func TestVerdictWords(t *testing.T) {
	seen := map[string]bool{}
	for v := Accepted; v <= OtherVersion; v++ {
		if seen[v.String()] || v.String() == "unknown" {
			t.Errorf("%d has no word of its own: %q", v, v)
		}
		seen[v.String()] = true
	}
	if Verdict(99).String() != "unknown" || Verdict(99).Err() == nil {
		t.Error("a verdict out of range must not read as accepted")
	}
	if errs.CodeOf(OtherVersion.Err()) != errs.ProtectedNumber {
		t.Error("another version has its own code")
	}
}
