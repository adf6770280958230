package enrol

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/errs"
	"sallyport.dev/identity"
	"sallyport.dev/identity/statefile"
	"sallyport.dev/identity/unixsock"
)

const dialTimeout = 10 * time.Second

// Join exchanges a token for an identity and writes the files of dir. The key is made here and stays here. Errors: [errs.Invalid] for the token,
// [errs.NotAllowed] when control is another one or refuses it, [errs.Unreachable].
func Join(ctx context.Context, text string, dir *statefile.Dir) (*identity.Source, Enrolment, error) {
	var e Enrolment
	t, err := identity.ParseToken(text)
	if err != nil {
		return nil, e, err
	}
	if t.Expired(time.Now()) {
		return nil, e, errs.Newf(errs.NotAllowed, "the enrolment token expired at %s; make a new one: sallyport enrol", t.Expires.Format(time.RFC3339))
	}
	want, err := t.ID()
	if err != nil {
		return nil, e, err
	}
	req, err := identity.NewRequest()
	if err != nil {
		return nil, e, err
	}
	client, done := client(t.Address, identity.JoinClient(t.CAKey, t.Control, time.Now))
	defer done()
	res, err := client.Join(ctx, &sallyportv1.JoinRequest{Token: text, Csr: req.CSR})
	if err != nil {
		return nil, e, explain(err, t.Address)
	}
	e = Enrolment{V: 1, ID: want.String(), Control: []Node{{ID: t.Control.String(), Address: t.Address}}, CA: string(res.GetCa()), IntentRoot: res.GetIntentRoot()}
	m, err := req.Accept(res.GetChain(), res.GetCa(), want, time.Now())
	if err != nil {
		return nil, e, err
	}
	src, err := store(dir, e, m)
	return src, e, err
}

// Local gives the process that owns dir an identity of ca without a network: for the parts that `sallyport up` starts on the CA's machine. It
// replaces what dir held. Errors: [errs.Invalid], [errs.Unavailable].
func Local(dir *statefile.Dir, ca *identity.CA, id spiffeid.ID, control []Node, intentRoot []byte) (*identity.Source, Enrolment, error) {
	e := Enrolment{V: 1, ID: id.String(), Control: control, CA: string(ca.Bundle()), IntentRoot: intentRoot}
	now := time.Now()
	m, err := Issue(ca, id, now)
	if err != nil {
		return nil, e, err
	}
	src, err := store(dir, e, m)
	return src, e, err
}

// Issue makes a key and certificate of id in memory: for control itself, which holds the CA. Errors: [errs.Invalid].
func Issue(ca *identity.CA, id spiffeid.ID, now time.Time) (identity.Material, error) {
	req, err := identity.NewRequest()
	if err != nil {
		return identity.Material{}, err
	}
	chain, err := ca.Issue(req.CSR, id, now)
	if err != nil {
		return identity.Material{}, err
	}
	return req.Accept(chain, ca.Bundle(), id, now)
}

func store(dir *statefile.Dir, e Enrolment, m identity.Material) (*identity.Source, error) {
	src, err := identity.NewSource(m, time.Now())
	if err != nil {
		return nil, err
	}
	// What an old slot holds would be taken over at the next start, in the new identity's place. A process that has it open keeps it.
	if err := dir.Empty(nextFile); err != nil {
		return nil, err
	}
	if err := writeEnrolment(dir, e); err != nil {
		return nil, err
	}
	return src, Keep(dir, e, m)
}

// Asker returns what a [identity.Renewer] asks control with: the first of the nodes that answers.
func Asker(src *identity.Source, nodes []Node) func(ctx context.Context, csr []byte) (chain, ca []byte, err error) {
	return func(ctx context.Context, csr []byte) (chain, ca []byte, err error) {
		var failures []error
		for _, n := range nodes {
			id, err := spiffeid.FromString(n.ID)
			if err != nil {
				return nil, nil, errs.Wrap(errs.Invalid, "the enrolment names a control node that is none; enrol again", err)
			}
			client, done := client(n.Address, identity.RenewClient(src, id))
			res, err := client.Renew(ctx, &sallyportv1.RenewRequest{Csr: csr})
			done()
			if err == nil {
				return res.GetChain(), res.GetCa(), nil
			}
			failures = append(failures, explain(err, n.Address))
		}
		return nil, nil, errors.Join(failures...)
	}
}

func client(address string, config *tls.Config) (c sallyportv1connect.JoinClient, done func()) {
	transport := &http.Transport{
		Proxy: nil, // a proxy of the environment has no business between a machine and its control plane
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			raw, err := Dial(ctx, address)
			if err != nil {
				return nil, err
			}
			conn := tls.Client(raw, config)
			if err := conn.HandshakeContext(ctx); err != nil {
				raw.Close()
				return nil, err
			}
			return conn, nil
		},
		DisableKeepAlives:   true,
		TLSHandshakeTimeout: dialTimeout,
	}
	// The host is not used: the address is dialed above, and names in certificates are SPIFFE ids.
	t := connecthttp.NewTransport(&http.Client{Transport: transport, CheckRedirect: noRedirect}, "https://control", connecthttp.WithReadMaxBytes(statefile.MaxFile))
	return sallyportv1connect.NewJoinClient(connect.NewClient(t)), transport.CloseIdleConnections
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Dial opens a plain connection to an address of control: "host:port", or "unix:PATH".
func Dial(ctx context.Context, address string) (net.Conn, error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return unixsock.Dial(ctx, path)
	}
	d := net.Dialer{Timeout: dialTimeout}
	return d.DialContext(ctx, "tcp", address)
}

// explain turns a failed exchange into what a person can act on. Refusals of control keep control's own words: they are safe by contract.
func explain(err error, address string) error {
	if ours := (*errs.Error)(nil); errors.As(err, &ours) {
		return ours
	}
	var net net.Error
	if errors.As(err, &net) || errors.Is(err, io.EOF) {
		return errs.Wrap(errs.Unreachable, "control does not answer at "+address+"; check that it runs with --listen and that the address is reachable from here", err)
	}
	var refused *connect.Error
	if errors.As(err, &refused) {
		switch refused.Code() {
		case connect.CodePermissionDenied, connect.CodeUnauthenticated, connect.CodeFailedPrecondition, connect.CodeInvalidArgument, connect.CodeNotFound:
			return errs.Wrap(errs.NotAllowed, "control refused: "+refused.Message(), err)
		}
	}
	return errs.Wrap(errs.Unreachable, "control does not answer at "+address+" as a control plane", err)
}
