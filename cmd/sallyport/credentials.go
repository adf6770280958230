package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control/config"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
	"sallyport.dev/intent/oauth"
	"sallyport.dev/intent/seal"
)

type credentialsCmd struct {
	List    credentialsListCmd    `cmd:"" default:"withargs" help:"List credentials; never their values."`
	Set     credentialsSetCmd     `cmd:"" help:"Store a credential, read from standard input and sealed here."`
	Rm      credentialsRmCmd      `cmd:"" help:"Forget a credential, and end a sign-in at its server."`
	Connect credentialsConnectCmd `cmd:"" help:"Sign in to a connection, or store its credential."`
	Rotate  notBuilt              `cmd:"" help:"Not built: seal every credential of a pool to a new key."`
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
	Connection string   `arg:""`
	NoValue    []string `arg:"" optional:"" hidden:""`
	For        string   `help:"Whose credential it is. Default: yours, or the shared one." placeholder:"PERSON"`
	File       string   `help:"Read the value from this file instead of standard input." placeholder:"FILE"`
	Client     bool     `help:"Store the secret of the client itself at its authorization server: a password, or a private key (PEM)."`
	Cert       bool     `name:"certificate" help:"Store the certificate that the connection shows in TLS, with its private key (PEM, one after the other)."`
	Key        string   `help:"The pool key's fingerprint, as the worker printed it: pin it here to seal to no other." placeholder:"FINGERPRINT"`
}

const maxSecret = 64 << 10

// Run seals a value to the pool's key and hands the ciphertext to control, which cannot open it.
func (c *credentialsSetCmd) Run(ctx context.Context, g *Globals) error {
	if len(c.NoValue) > 0 {
		// Not repeated here: what stands on a command line is in the shell's history already, and should not be in a log too.
		return errs.New(errs.Invalid, "a secret is never an argument: others can read it there. Replace this one at its service, then pipe the new one in, or type it when asked")
	}
	api, err := g.client()
	if err != nil {
		return err
	}
	if c.Client || c.Cert {
		if c.For != "" || c.Client && c.Cert {
			return errs.New(errs.Invalid, "a client's secret and a certificate belong to no person, and are set one at a time: leave the others out")
		}
		c.For = oauth.ClientSubject
		if c.Cert {
			c.For = intent.CertificateSubject
		}
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
	value, err := c.value(ctx, g)
	if err != nil {
		return err
	}
	defer clear(value)
	var expires int64
	if c.Cert {
		until, err := certificate(value)
		if err != nil {
			return err
		}
		expires = until.UnixMilli()
	}
	sealed, err := seal.Seal(public, seal.Credential, key.GetAssociatedData(), value)
	if err != nil {
		return err
	}
	r, err := answer(api.PutCredential(ctx, &sallyportv1.PutCredentialRequest{
		Connection: c.Connection, Subject: c.For, Version: key.GetVersion(), Sealed: sealed, KeyFingerprint: public.Fingerprint(), ExpiresMs: expires,
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

// value reads the secret: hidden from a terminal, otherwise from standard input or a file.
func (c *credentialsSetCmd) value(ctx context.Context, g *Globals) ([]byte, error) {
	var value []byte
	var err error
	switch in, isFile := g.in.(*os.File); {
	case c.File != "":
		if value, err = os.ReadFile(c.File); err != nil {
			return nil, errs.Wrap(errs.NotFound, c.File+" cannot be read", err)
		}
	case isFile && term.IsTerminal(int(in.Fd())):
		value, err = readHidden(ctx, in, func() { fmt.Fprintf(g.err, "Value for %s (it is not shown): ", c.Connection) })
		fmt.Fprintln(g.err)
	default:
		value, err = io.ReadAll(io.LimitReader(g.in, maxSecret+1))
	}
	if errs.Is(err, errs.Cancelled) {
		return nil, err
	}
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, "the value cannot be read", err)
	}
	value = bytes.TrimRight(value, "\r\n")
	switch {
	case c.Client:
		return clientSecret(value)
	case c.Cert:
		return value, nil
	}
	if len(value) == 0 || len(value) > maxSecret || bytes.ContainsAny(value, "\r\n\x00") {
		return nil, errs.Newf(errs.Invalid, "the value must be one line that is not empty, of at most %s", config.Bytes(maxSecret))
	}
	return value, nil
}

// certificate checks a certificate and its key, and returns how long it is valid.
func certificate(value []byte) (until time.Time, err error) {
	pair, err := tls.X509KeyPair(value, value)
	switch {
	case err != nil:
		// Not wrapped: an error of parsing a key may quote it.
		return until, errs.New(errs.Invalid, "this must be a certificate and the private key that belongs to it, in PEM, one after the other")
	case len(value) > maxSecret:
		return until, errs.Newf(errs.Oversize, "a certificate with its key must be at most %s", config.Bytes(maxSecret))
	case !time.Now().Before(pair.Leaf.NotAfter):
		return until, errs.Newf(errs.Invalid, "the certificate was valid until %s: store one that still is", pair.Leaf.NotAfter.UTC().Format(time.DateOnly))
	}
	return pair.Leaf.NotAfter, nil
}

// clientSecret is what is sealed for a client: a password, or a private key.
func clientSecret(value []byte) ([]byte, error) {
	s := oauth.ClientSecret{V: 1, Secret: string(value)}
	switch {
	case bytes.HasPrefix(value, []byte("-----BEGIN PRIVATE KEY-----")):
		s.Secret, s.PrivateKey = "", string(value)+"\n"
	case len(value) == 0 || bytes.ContainsAny(value, "\r\n\x00"):
		return nil, errs.New(errs.Invalid, "a client's secret is one line, or a private key in PEM (PKCS #8)")
	}
	clear(value)
	return oauth.Encode(s)
}

// readHidden asks for a line and reads it without showing it. What is typed before the question stands is not it. Ctrl-C ends it; the terminal is left as
// it was.
func readHidden(ctx context.Context, in *os.File, ask func()) ([]byte, error) {
	fd := int(in.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	hidden := *before
	hidden.Lflag &^= unix.ECHO
	if err := unix.IoctlSetTermios(fd, unix.TCSETSF, &hidden); err != nil {
		return nil, err
	}
	ask()
	line, err := readLine(ctx, in)
	return []byte(line), errors.Join(err, unix.IoctlSetTermios(fd, unix.TCSETS, before))
}

type credentialsRmCmd struct {
	Connection string `arg:""`
	For        string `help:"Whose credential it is." placeholder:"PERSON"`
	Yes        bool   `help:"Do not ask."`
}

// Run forgets a credential.
func (c *credentialsRmCmd) Run(ctx context.Context, g *Globals) error {
	if err := g.confirm(ctx, c.Yes, "Calls of "+c.Connection+" stop working. Forget its credential?"); err != nil {
		return err
	}
	api, err := g.client()
	if err != nil {
		return err
	}
	_, err = answer(api.RemoveCredential(ctx, &sallyportv1.RemoveCredentialRequest{Connection: c.Connection, Subject: c.For}))
	return err
}
