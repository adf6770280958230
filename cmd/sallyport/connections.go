package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/term"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/intent/seal"
)

type connectionsCmd struct {
	List    connectionsListCmd    `cmd:"" default:"withargs" help:"List connections."`
	Show    connectionsShowCmd    `cmd:"" help:"Show one connection."`
	Test    connectionsTestCmd    `cmd:"" help:"Test a connection through a worker; it changes nothing."`
	Enable  connectionsEnableCmd  `cmd:"" help:"Test a connection and put it in service."`
	Disable connectionsDisableCmd `cmd:"" help:"Take a connection out of service."`
	Add     notBuilt              `cmd:"" help:"Add a connection step by step."`
	Rm      notBuilt              `cmd:"" help:"Remove a connection: take it out of sallyport.yaml and apply --prune."`
}

type connectionsListCmd struct{}

// Run prints connections.
func (connectionsListCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ListConnections(ctx, &sallyportv1.ListConnectionsRequest{}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	rows := make([][]string, 0, len(r.GetConnections()))
	for _, c := range r.GetConnections() {
		rows = append(rows, []string{c.GetName(), c.GetKind(), c.GetState(), c.GetOrigin() + c.GetPath(), c.GetAuth(), c.GetProtocol(), fmt.Sprint(c.GetTools()), c.GetPool()})
	}
	g.table([]string{"NAME", "KIND", "STATE", "ADDRESS", "AUTH", "PROTOCOL", "TOOLS", "POOL"}, rows)
	if len(rows) == 0 {
		g.note("No connections yet: write one into sallyport.yaml, then sallyport apply.")
	}
	return nil
}

type connectionsShowCmd struct {
	Name string `arg:""`
}

// Run prints one connection.
func (c *connectionsShowCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ListConnections(ctx, &sallyportv1.ListConnectionsRequest{}))
	if err != nil {
		return err
	}
	for _, k := range r.GetConnections() {
		if k.GetName() != c.Name {
			continue
		}
		if g.JSON {
			g.printJSON(k)
			return nil
		}
		for _, p := range [][2]string{
			{"name", k.GetName()}, {"kind", k.GetKind()}, {"state", k.GetState()}, {"revision", fmt.Sprint(k.GetRevision())}, {"address", k.GetOrigin() + k.GetPath()},
			{"network", k.GetNetwork()}, {"auth", k.GetAuth()}, {"pool", k.GetPool()}, {"protocol", k.GetProtocol()}, {"catalog", k.GetCatalogDigest()}, {"tools", fmt.Sprint(k.GetTools())},
		} {
			fmt.Fprintf(g.out, "%-9s %s\n", p[0], oneLine(p[1]))
		}
		return nil
	}
	return errs.Newf(errs.NotFound, "no connection is named %s; sallyport connections list shows them", c.Name)
}

type yamlFlag struct {
	File string `short:"f" help:"Take the connection from this file instead of what is applied." placeholder:"FILE"`
}

func (f yamlFlag) bytes() ([]byte, error) {
	if f.File == "" {
		return nil, nil
	}
	data, err := os.ReadFile(f.File)
	if err != nil {
		return nil, errs.Wrap(errs.NotFound, f.File+" cannot be read", err)
	}
	return data, nil
}

type connectionsTestCmd struct {
	Name string `arg:""`
	yamlFlag
}

// Run tests a connection.
func (c *connectionsTestCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	yaml, err := c.bytes()
	if err != nil {
		return err
	}
	r, err := answer(api.TestConnection(ctx, &sallyportv1.TestConnectionRequest{Connection: c.Name, Yaml: yaml}))
	if err != nil {
		return err
	}
	return g.tested(r.GetReport())
}

func (g *Globals) tested(t *sallyportv1.TestReport) error {
	if g.JSON {
		g.printJSON(t)
	} else {
		g.report(t)
	}
	if !t.GetOk() {
		return errs.Newf(errs.Unreachable, "%s did not pass", t.GetConnection())
	}
	return nil
}

type connectionsEnableCmd struct {
	Name string `arg:""`
}

// Run tests a connection and puts it in service.
func (c *connectionsEnableCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.EnableConnection(ctx, &sallyportv1.EnableConnectionRequest{Connection: c.Name, Enable: true}))
	if err != nil {
		return err
	}
	return g.tested(r.GetReport())
}

type connectionsDisableCmd struct {
	Name string `arg:""`
}

// Run takes a connection out of service.
func (c *connectionsDisableCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.EnableConnection(ctx, &sallyportv1.EnableConnectionRequest{Connection: c.Name}))
	if err != nil {
		return err
	}
	g.note("%s is %s.", c.Name, r.GetState())
	return nil
}

type credentialsCmd struct {
	List    credentialsListCmd `cmd:"" default:"withargs" help:"List credentials; never their values."`
	Set     credentialsSetCmd  `cmd:"" help:"Store a credential, read from standard input and sealed here."`
	Rm      credentialsRmCmd   `cmd:"" help:"Forget a credential."`
	Connect notBuilt           `cmd:"" help:"Sign in to a connection (OAuth)."`
	Rotate  notBuilt           `cmd:"" help:"Seal every credential of a pool to a new key."`
}

type credentialsListCmd struct{}

// Run prints credentials.
func (credentialsListCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ListCredentials(ctx, &sallyportv1.ListCredentialsRequest{}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	rows := make([][]string, 0, len(r.GetCredentials()))
	for _, c := range r.GetCredentials() {
		rows = append(rows, []string{c.GetConnection(), c.GetSubject(), fmt.Sprint(c.GetVersion()), c.GetState(), c.GetAccount(), ago(c.GetExpiresMs()), ago(c.GetUpdatedMs())})
	}
	g.table([]string{"CONNECTION", "SUBJECT", "VERSION", "STATE", "ACCOUNT", "EXPIRES", "SET"}, rows)
	return nil
}

type credentialsSetCmd struct {
	Connection string `arg:""`
	For        string `help:"Whose credential it is. Default: yours, or the shared one." placeholder:"PERSON"`
	File       string `help:"Read the value from this file instead of standard input." placeholder:"FILE"`
	Key        string `help:"The pool key's fingerprint, as the worker printed it: pin it here to seal to no other." placeholder:"FINGERPRINT"`
}

const maxSecret = 64 << 10

// Run seals a value to the pool's key and hands the ciphertext to control, which cannot open it.
func (c *credentialsSetCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	key, err := answer(api.PoolKey(ctx, &sallyportv1.PoolKeyRequest{Connection: c.Connection, Subject: c.For}))
	if err != nil {
		return err
	}
	public, err := seal.ParsePublicKey(key.GetPublicKey())
	if err != nil {
		return err
	}
	if err := g.pinKey(key.GetPool(), public.Fingerprint(), c.Key); err != nil {
		return err
	}
	value, err := c.value(g)
	if err != nil {
		return err
	}
	defer clear(value)
	sealed, err := seal.Seal(public, seal.Credential, key.GetAssociatedData(), value)
	if err != nil {
		return err
	}
	r, err := answer(api.PutCredential(ctx, &sallyportv1.PutCredentialRequest{
		Connection: c.Connection, Subject: c.For, Version: key.GetVersion(), Sealed: sealed, KeyFingerprint: public.Fingerprint(),
	}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	g.note("Stored as version %d, sealed to key %s of pool %s.", r.GetVersion(), public.Fingerprint(), key.GetPool())
	return nil
}

// pinKey remembers the first key of a pool that this installation sealed to, and refuses another one: a control that lies about the key would
// otherwise read what is typed here.
func (g *Globals) pinKey(pool, fingerprint, want string) error {
	if want != "" && want != fingerprint {
		return errs.Newf(errs.NotAllowed, "control offers key %s, not %s: nothing was sealed", fingerprint, want)
	}
	dir, err := g.stateDir()
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "pinned", pool)
	known, err := os.ReadFile(path)
	switch {
	case err == nil && strings.TrimSpace(string(known)) == fingerprint:
		return nil
	case err == nil && want == "":
		return errs.Newf(errs.NotAllowed, "pool %s had key %s, control now offers %s: compare it with what the worker printed, then name it with --key", pool, strings.TrimSpace(string(known)), fingerprint)
	case err != nil && !os.IsNotExist(err):
		return errs.Wrap(errs.NotAllowed, "the pinned key cannot be read", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return errs.Wrap(errs.NotAllowed, "the key cannot be pinned", err)
	}
	return os.WriteFile(path, []byte(fingerprint+"\n"), 0o600)
}

func (c *credentialsSetCmd) value(g *Globals) ([]byte, error) {
	var value []byte
	var err error
	switch in, isFile := g.in.(*os.File); {
	case c.File != "":
		value, err = os.ReadFile(c.File)
	case isFile && term.IsTerminal(int(in.Fd())):
		fmt.Fprintf(g.err, "Value for %s (it is not shown): ", c.Connection)
		value, err = term.ReadPassword(int(in.Fd()))
		fmt.Fprintln(g.err)
	default:
		value, err = io.ReadAll(io.LimitReader(g.in, maxSecret+1))
	}
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, "the value cannot be read", err)
	}
	value = bytes.TrimRight(value, "\r\n")
	if len(value) == 0 || len(value) > maxSecret || bytes.ContainsAny(value, "\r\n\x00") {
		return nil, errs.New(errs.Invalid, "the value must be one line that is not empty")
	}
	return value, nil
}

type credentialsRmCmd struct {
	Connection string `arg:""`
	For        string `help:"Whose credential it is." placeholder:"PERSON"`
	Yes        bool   `help:"Do not ask."`
}

// Run forgets a credential.
func (c *credentialsRmCmd) Run(ctx context.Context, g *Globals) error {
	if err := g.confirm(c.Yes, "Calls of "+c.Connection+" stop working. Forget its credential?"); err != nil {
		return err
	}
	api, err := g.client()
	if err != nil {
		return err
	}
	_, err = answer(api.RemoveCredential(ctx, &sallyportv1.RemoveCredentialRequest{Connection: c.Connection, Subject: c.For}))
	return err
}

type catalogsCmd struct {
	Pull    catalogsPullCmd `cmd:"" help:"Write what a server lists now into its catalog file, to be reviewed."`
	Show    catalogsShowCmd `cmd:"" help:"Print a catalog file's tools as a reviewer reads them."`
	Diff    catalogsDiffCmd `cmd:"" help:"Compare two catalog files."`
	Approve notBuilt        `cmd:"" help:"Approve a draft: apply the file with its digest."`
	Reject  notBuilt        `cmd:"" help:"Reject a draft."`
}

type catalogsPullCmd struct {
	Name string `arg:"" help:"The connection."`
	yamlFlag
	Out string `help:"Where to write. Default: catalogs/NAME.json." placeholder:"FILE"`
}

// Run pulls a catalog and says what to put into sallyport.yaml.
func (c *catalogsPullCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	yaml, err := c.bytes()
	if err != nil {
		return err
	}
	r, err := answer(api.PullCatalog(ctx, &sallyportv1.PullCatalogRequest{Connection: c.Name, Yaml: yaml}))
	if err != nil {
		return err
	}
	out := c.Out
	if out == "" {
		out = filepath.Join("catalogs", c.Name+".json")
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return errs.Wrap(errs.NotAllowed, "the catalog file cannot be written", err)
	}
	if err := os.WriteFile(out, r.GetCatalog(), 0o644); err != nil {
		return errs.Wrap(errs.NotAllowed, "the catalog file cannot be written", err)
	}
	if g.JSON {
		g.printJSON(map[string]any{"file": out, "digest": r.GetDigest(), "protocol": r.GetProtocol(), "tools": proposals(r)})
		return nil
	}
	g.note("Wrote %s (%d tools, MCP %s). Read it; then put into sallyport.yaml, with every effect as you judge it:", out, len(r.GetProposed()), r.GetProtocol())
	fmt.Fprintf(g.out, "    catalog: {file: %s, digest: %q}\n    tools:\n", out, r.GetDigest())
	for _, p := range r.GetProposed() {
		fmt.Fprintf(g.out, "      %s: {effect: %s}", p.GetName(), p.GetEffect())
		if p.GetHint() != "none" {
			fmt.Fprintf(g.out, "   # the server says %s", oneLine(p.GetHint()))
		}
		fmt.Fprintln(g.out)
		for _, f := range p.GetFindings() {
			fmt.Fprintf(g.out, "      # look closely at %s: %s\n", p.GetName(), oneLine(f))
		}
	}
	return nil
}

func proposals(r *sallyportv1.PullCatalogResponse) []map[string]any {
	var out []map[string]any
	for _, p := range r.GetProposed() {
		out = append(out, map[string]any{"name": p.GetName(), "effect": p.GetEffect(), "hint": p.GetHint(), "findings": p.GetFindings()})
	}
	return out
}
