package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/errs"
)

type credentialsConnectCmd struct {
	Connection     string `arg:""`
	For            string `help:"Whose credential it is. Default: yours, or the shared one." placeholder:"PERSON"`
	AnotherAccount bool   `help:"Another account than before may sign in. Sessions that are open cannot use it."`
	RegisterAgain  bool   `help:"Register at the authorization server anew: it forgot the former client."`
}

// Run signs in: the person opens an address, and their browser comes back here, or they paste where it ended.
func (c *credentialsConnectCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	auth, err := authOf(ctx, api, c.Connection)
	if err != nil {
		return err
	}
	if auth != "oauth" {
		return (&credentialsSetCmd{Connection: c.Connection, For: c.For}).Run(ctx, g)
	}
	back, err := listenForBrowser(ctx)
	if err != nil {
		return err
	}
	defer back.close()
	r, err := answer(api.BeginSignIn(ctx, &sallyportv1.BeginSignInRequest{
		Connection: c.Connection, Subject: c.For, RedirectUri: back.address, AnotherAccount: c.AnotherAccount, RegisterAgain: c.RegisterAgain,
	}))
	if err != nil {
		return err
	}
	if r.GetAddress() == "" {
		return g.connected(r.GetDone(), r.GetReport())
	}
	address, err := url.Parse(r.GetAddress())
	if err != nil {
		return errs.Wrap(errs.Invalid, "control answered with no address", err)
	}
	fmt.Fprintf(g.err, "Sign in at %s, within 10 minutes:\n\n%s\n\n", oneLine(r.GetIssuer()), oneLine(r.GetAddress()))
	fmt.Fprintf(g.err, "On another machine the browser ends at an address that does not open: paste that address here, then press Enter.\n")
	q, err := back.wait(ctx, g, address.Query().Get("state"))
	if err != nil {
		return err
	}
	if word := q.Get("error"); word != "" {
		return errs.Newf(errs.NotConnected, "%s did not let you in: %s. Nothing was changed", oneLine(r.GetIssuer()), oneLine(word))
	}
	end, err := answer(api.EndSignIn(ctx, &sallyportv1.EndSignInRequest{State: q.Get("state"), Code: q.Get("code"), Issuer: q.Get("iss")}))
	if err != nil {
		return err
	}
	return g.connected(end.GetCredential(), end.GetReport())
}

// connected says who signed in, and how a connection that waited for it passed its test.
func (g *Globals) connected(c *sallyportv1.CredentialRow, t *sallyportv1.TestReport) error {
	if g.JSON {
		g.printJSON(&sallyportv1.EndSignInResponse{Credential: c, Report: t})
	} else {
		who := c.GetName()
		if who == "" {
			who = "an account that the server does not name"
		}
		g.note("%s is connected as %s (version %d).", c.GetConnection(), oneLine(who), c.GetVersion())
		if len(c.GetScopes()) > 0 {
			g.note("It may: %s", oneLine(strings.Join(c.GetScopes(), " ")))
		}
		switch {
		case c.GetExpiresMs() == 0:
		case c.GetRenewable():
			g.note("It is renewed by itself.")
		default:
			g.note("It cannot be renewed: it ends at %s, then connect again.", time.UnixMilli(c.GetExpiresMs()).UTC().Format("2006-01-02 15:04 UTC"))
		}
		if t != nil {
			g.report(t, "in service", "not in service")
		}
	}
	if t != nil && !t.GetOk() {
		return errs.Newf(errs.Unreachable, "signed in, but %s did not pass its test", c.GetConnection())
	}
	return nil
}

// authOf is how an applied connection authenticates. Errors: [errs.NotFound].
func authOf(ctx context.Context, api sallyportv1connect.OperatorClient, name string) (string, error) {
	r, err := answer(api.ListConnections(ctx, &sallyportv1.ListConnectionsRequest{}))
	if err != nil {
		return "", err
	}
	for _, c := range r.GetConnections() {
		if c.GetName() == name {
			auth, _, _ := strings.Cut(c.GetAuth(), " ")
			return auth, nil
		}
	}
	return "", errs.Newf(errs.NotFound, "no connection is named %s; apply it first, then connect it", name)
}

// browser is where a person's browser comes back to: this machine's loopback (RFC 8252, section 7.3).
type browser struct {
	address string
	server  *http.Server
	came    chan url.Values
}

func listenForBrowser(ctx context.Context) (*browser, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, errs.Wrap(errs.NotAllowed, "this machine lets nobody listen on its loopback address", err)
	}
	b := &browser{address: "http://" + l.Addr().String() + "/callback", came: make(chan url.Values, 1)}
	b.server = &http.Server{Handler: b, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = b.server.Serve(l) }() // it ends with close
	return b, nil
}

func (b *browser) close() { b.server.Close() }

// ServeHTTP takes the browser. Whether it belongs to this sign-in is looked at before anything is done with it.
func (b *browser) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Referrer-Policy", "no-referrer")
	if r.Method != http.MethodGet || r.URL.Path != "/callback" || r.URL.Query().Get("state") == "" {
		http.Error(w, "nothing is here", http.StatusNotFound)
		return
	}
	select {
	case b.came <- r.URL.Query():
		fmt.Fprintln(w, "Go back to the terminal: it goes on there. You may close this page.")
	default:
		http.Error(w, "this sign-in came back already", http.StatusConflict)
	}
}

// wait returns the answer that carries state: from the browser, or pasted.
func (b *browser) wait(ctx context.Context, g *Globals, state string) (url.Values, error) {
	pasted := make(chan string, 1)
	go func() {
		if line, err := readLine(ctx, g.in); err == nil && strings.TrimSpace(line) != "" {
			pasted <- strings.TrimSpace(line)
		}
	}()
	for {
		select {
		case q := <-b.came:
			if q.Get("state") == state {
				return q, nil
			}
			fmt.Fprintln(g.err, "A browser came back from another sign-in; this one still waits.")
		case line := <-pasted:
			q := url.Values{"state": {state}, "code": {line}}
			if u, err := url.Parse(line); err == nil && u.Scheme != "" {
				q = u.Query()
			}
			if q.Get("state") != state {
				return nil, errs.New(errs.NotAllowed, "this address is of another sign-in; begin again")
			}
			return q, nil
		case <-ctx.Done():
			return nil, errs.New(errs.Cancelled, "the sign-in was left; nothing was changed")
		}
	}
}
