package config

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/catalog"
	"sallyport.dev/errs"
)

// Desired is a whole file in domain types. Revisions and versions are the store's to give.
type Desired struct {
	Connections map[string]control.Connection
	Catalogs    map[string]control.Catalog // by connection; approved by the digest that the file names
	Profiles    map[string]control.Profile
	Standing    map[string]control.GivenGrant
}

// CheckCondition compiles a grant's condition against the tools that it covers, with their reviewed schemas. It returns what is wrong, in words.
type CheckCondition func(when string, tools []control.Tool) error

// Read decodes and resolves a file. files holds the catalogs that it names, by their name there. now bounds the dates. All problems come back at
// once, in the file's order; Desired is whole only when there are none.
func Read(data []byte, files map[string][]byte, check CheckCondition, now time.Time) (Desired, []Problem) {
	var f File
	d := decode(data, &f)
	if len(d.problems) > 0 && len(d.places) == 0 {
		return Desired{}, d.problems
	}
	r := &resolver{decoder: d, files: files, check: check, now: now, out: Desired{
		Connections: map[string]control.Connection{}, Catalogs: map[string]control.Catalog{},
		Profiles: map[string]control.Profile{}, Standing: map[string]control.GivenGrant{},
	}}
	if f.Version != 1 {
		r.problem("version", "must be 1")
	}
	for _, name := range slices.Sorted(maps.Keys(f.Connections)) {
		r.connection(name, f.Connections[name])
	}
	for _, name := range slices.Sorted(maps.Keys(f.Profiles)) {
		r.profile(name, f.Profiles[name])
	}
	for _, name := range slices.Sorted(maps.Keys(f.Standing)) {
		r.standing(name, f.Standing[name])
	}
	r.secrets(data)
	slices.SortStableFunc(r.problems, func(a, b Problem) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return r.out, r.problems
}

// CatalogFiles lists the catalog files that a YAML names, so that a caller can read them beside it. Unreadable YAML lists none.
func CatalogFiles(data []byte) []string {
	var f File
	decode(data, &f)
	var out []string
	for _, name := range slices.Sorted(maps.Keys(f.Connections)) {
		if c := f.Connections[name].Catalog; c != nil && c.File != "" {
			out = append(out, c.File)
		}
	}
	return out
}

type resolver struct {
	*decoder
	files map[string][]byte
	check CheckCondition
	now   time.Time
	out   Desired
}

var namePattern = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

const nameWords = "must be a name: a lower-case letter, then up to 31 of a-z, 0-9 and -"

func (r *resolver) oneOf(p, value, def string, allowed ...string) string {
	if value == "" {
		return def
	}
	if !slices.Contains(allowed, value) {
		r.problem(p, "must be one of %s", strings.Join(allowed, ", "))
		return def
	}
	return value
}

func (r *resolver) connection(name string, c Connection) {
	p := "connections." + name
	if !namePattern.MatchString(name) {
		r.problem(p, nameWords)
		return
	}
	out := control.Connection{
		Org: control.Org, Name: name, Pool: c.Pool, Trusted: c.Trusted, State: control.ConnectionUntested,
		Kind:    control.ConnectionKind(r.oneOf(p+".kind", c.Kind, "mcp", "mcp", "callback")),
		Network: control.Network{Allow: c.Network.Allow, HTTP: c.Network.HTTP},
		Auth: control.Auth{
			Type: r.oneOf(p+".auth.type", c.Auth.Type, "none", "none", "header", "bearer", "oauth", "signature"),
			Name: c.Auth.Name, Per: r.oneOf(p+".auth.per", c.Auth.Per, "shared", "shared", "person"),
		},
	}
	if out.Pool == "" {
		out.Pool = "default"
	}
	if c.Disabled {
		out.State = control.ConnectionDisabled
	}
	out.Origin, out.Path = r.url(p+".url", c.URL, c.Network.HTTP)
	for i, cidr := range c.Network.Allow {
		if err := checkCIDR(cidr); err != nil {
			r.problem(fmt.Sprintf("%s.network.allow[%d]", p, i), "%s", errs.Message(err))
		}
	}
	if (out.Auth.Type == "header") != (c.Auth.Name != "") {
		r.problem(p+".auth.name", "stands with type header, and only there")
	}
	if c.Auth.Name != "" && !headerName.MatchString(c.Auth.Name) {
		r.problem(p+".auth.name", "is not a header name, or one that Sallyport sets itself")
	}
	if out.Auth.Type == "signature" && out.Kind != control.KindCallback {
		r.problem(p+".auth.type", "signature is for callbacks; an mcp connection uses bearer, header or oauth")
	}
	r.oauth(p+".auth", c.Auth, &out.Auth)
	r.tls(p+".tls", c.TLS, &out)
	r.limits(p+".limits", c.Limits, &out.Limits)
	for i, s := range c.Moved {
		if !slices.Contains([]int{400, 401, 403, 404, 405, 406, 413, 415, 422, 429}, s) {
			r.problem(fmt.Sprintf("%s.uncertain_statuses[%d]", p, i), "only a status that counts as a rejection can be moved: 400 401 403 404 405 406 413 415 422 429")
		}
	}
	out.Uncertain = c.Moved
	r.catalog(p, name, c, &out)
	r.out.Connections[name] = out
}

var headerName = regexp.MustCompile(`^(?i:[!#$%&'*+.^_|~0-9a-z-]+)$`)

func (r *resolver) url(p, text string, plain bool) (origin, path string) {
	if text == "" {
		r.problem(p, "is missing")
		return "", ""
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Opaque != "" {
		r.problem(p, "must be a whole address, such as https://mcp.example.org/mcp")
		return "", ""
	}
	if u.User != nil {
		r.problem(p, "must not carry a name or password: store the secret with sallyport credentials set")
	}
	if u.Fragment != "" {
		r.problem(p, "must not have a fragment")
	}
	scheme := strings.ToLower(u.Scheme)
	switch {
	case scheme == "https":
	case scheme == "http" && plain:
	case scheme == "http":
		r.problem(p, "plain http needs network: {http: true} on this connection")
	default:
		r.problem(p, "must begin with https://")
	}
	host := strings.ToLower(u.Hostname())
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	origin = scheme + "://" + host
	if port := u.Port(); port != "" && !(scheme == "https" && port == "443") && !(scheme == "http" && port == "80") {
		origin += ":" + port
	}
	path = u.EscapedPath()
	if path == "" {
		path = "/"
	}
	if u.RawQuery != "" {
		path += "?" + u.RawQuery
	}
	return origin, path
}

// checkCIDR refuses what no connection may ever name: link-local and metadata ranges, and ranges that contain them.
func checkCIDR(text string) error {
	prefix, err := netip.ParsePrefix(text)
	if err != nil || prefix != prefix.Masked() {
		return errs.New(errs.Invalid, "must be a CIDR such as 10.20.0.0/16, with no host bits")
	}
	for _, never := range []string{"169.254.0.0/16", "fe80::/10", "168.63.129.16/32", "fd00:ec2::254/128", "::ffff:0:0/96", "64:ff9b::/96"} {
		if prefix.Overlaps(netip.MustParsePrefix(never)) {
			return errs.Newf(errs.Invalid, "covers %s (link-local, metadata or mapped), which no connection may reach", never)
		}
	}
	private := false
	for _, in := range []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8", "fc00::/7", "::1/128"} {
		outer := netip.MustParsePrefix(in)
		private = private || outer.Bits() <= prefix.Bits() && outer.Contains(prefix.Addr())
	}
	if !private {
		return errs.New(errs.Invalid, "is not private: public addresses need no entry here")
	}
	return nil
}

func (r *resolver) duration(p string, d Duration, low, high time.Duration) time.Duration {
	if d.Duration < low || d.Duration > high {
		r.problem(p, "must be %s to %s", Length(low), Length(high))
	}
	return d.Duration
}

func (r *resolver) catalog(p, name string, c Connection, out *control.Connection) {
	if c.Catalog == nil {
		if len(c.Tools) > 0 {
			r.problem(p+".tools", "needs a catalog: run sallyport catalogs pull %s", name)
		}
		return
	}
	file := c.Catalog.File
	if file == "" || path.IsAbs(file) || file != path.Clean(file) || strings.HasPrefix(file, "..") {
		r.problem(p+".catalog.file", "must name a file beside or below this one")
		return
	}
	data, ok := r.files[file]
	if !ok {
		r.problem(p+".catalog.file", "cannot be read: run sallyport catalogs pull %s", name)
		return
	}
	entries, err := catalog.Parse(data)
	if err != nil {
		r.problem(p+".catalog.file", "%s", errs.Message(err))
		return
	}
	digest := catalog.Digest(entries)
	if c.Catalog.Digest != digest.String() {
		r.problem(p+".catalog.digest", "is not the digest of %s: read its change, then write %q here", file, digest.String())
		return
	}
	raw := map[string][]byte{}
	for _, e := range entries {
		raw[e.Name] = e.Raw
	}
	cat := control.Catalog{Org: control.Org, Connection: name, Digest: digest, State: control.CatalogApproved, Listed: data}
	for _, tool := range slices.Sorted(maps.Keys(c.Tools)) {
		t, tp := c.Tools[tool], p+".tools."+tool
		if raw[tool] == nil {
			r.problem(tp, "is not in the catalog %s", file)
			continue
		}
		effect := r.oneOf(tp+".effect", t.Effect, "", "read", "write")
		if effect == "" {
			if t.Effect == "" {
				r.problem(tp, "needs an effect: read or write")
			}
			continue
		}
		if t.Repeat && effect != "read" {
			r.problem(tp+".repeat", "is for reads: a write is never repeated")
		}
		as := catalog.SandboxName(name, tool, t.As)
		if t.As != "" && as != t.As {
			r.problem(tp+".as", "must be at most %d of a-z, 0-9 and _", catalog.MaxSandboxName)
		}
		if slices.Contains(catalog.Reserved, as) {
			r.problem(tp+".as", "%s is a name of Sallyport's own", as)
		}
		cat.Tools = append(cat.Tools, control.Tool{
			Name: tool, As: as, Effect: control.Effect(effect), Repeat: t.Repeat,
			RefuseExtra: r.oneOf(tp+".extra", t.Extra, "allow", "allow", "refuse") == "refuse", Raw: raw[tool],
		})
	}
	out.Catalog = digest
	for _, class := range slices.Sorted(maps.Keys(c.Catalog.OnChange)) {
		p := p + ".catalog.on_change." + class
		if !slices.Contains(catalog.Reviewed, catalog.ChangeClass(class)) {
			r.problem(p, "is no class of changes; they are %s", catalog.Names(catalog.Reviewed))
			continue
		}
		if effect := r.oneOf(p, c.Catalog.OnChange[class], "", "note", "void", "stop"); effect != "" {
			if out.OnChange == nil {
				out.OnChange = map[string]string{}
			}
			out.OnChange[class] = effect
		}
	}
	r.out.Catalogs[name] = cat
}

// secretForms are prefixes of tokens that people paste where they do not belong. The file is committed and shown: a secret never stands in it.
var secretForms = regexp.MustCompile(`(?:\bsk-[A-Za-z0-9_-]{16,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}|\bxox[abprs]-[A-Za-z0-9-]{10,}|\bglpat-[A-Za-z0-9_-]{16,}|\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}|\bAKIA[A-Z0-9]{16}\b|-----BEGIN [A-Z ]*PRIVATE KEY|(?i:\bbearer\s+[A-Za-z0-9._~+/-]{16,})|(?i:[?&](?:access_token|api_?key|token|secret|password)=[^&\s"']{6,}))`)

func (r *resolver) secrets(data []byte) {
	for i, line := range strings.Split(string(data), "\n") {
		if at := secretForms.FindStringIndex(line); at != nil {
			r.problems = append(r.problems, Problem{
				Line: i + 1, Column: at[0] + 1,
				Message: "looks like a secret: take it out of this file, replace it at its service, and store the new one with sallyport credentials set",
			})
		}
	}
}

// ReadConnection reads one connection of a file whose catalog may not exist yet: for a first pull or test. Only that connection's own problems are
// reported.
func ReadConnection(data []byte, name string, now time.Time) (control.Connection, []Problem) {
	var f File
	d := decode(data, &f)
	c, ok := f.Connections[name]
	if !ok {
		return control.Connection{}, append(d.problems, Problem{Message: fmt.Sprintf("the file has no connection %s", name)})
	}
	c.Catalog, c.Tools = nil, nil
	r := &resolver{decoder: d, now: now, out: Desired{Connections: map[string]control.Connection{}}}
	r.problems = slices.DeleteFunc(r.problems, func(p Problem) bool { return !strings.HasPrefix(p.Path, "connections."+name) })
	r.connection(name, c)
	r.secrets(data)
	return r.out.Connections[name], r.problems
}
