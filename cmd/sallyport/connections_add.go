package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control/config"
	"sallyport.dev/errs"
)

type connectionsAddCmd struct {
	URL    string   `arg:"" help:"The address of a remote MCP server."`
	Name   string   `help:"Its name here. Default: from its host." placeholder:"NAME"`
	Pool   string   `help:"Which workers reach it." default:"default" placeholder:"POOL"`
	Auth   string   `help:"How it authenticates. Default: as it is found." enum:"auto,none,bearer,header,oauth" default:"auto"`
	Header string   `help:"The header that carries the credential, for auth header." placeholder:"HEADER"`
	Person bool     `help:"Each session's owner connects for themselves."`
	Allow  []string `help:"A private network that it may reach. Several: --allow A,B." placeholder:"CIDR"`
	HTTP   bool     `name:"http" help:"Plain http, for this connection only."`
	File   string   `short:"f" help:"The file that it is written into." default:"sallyport.yaml" placeholder:"FILE"`
	Yes    bool     `help:"Do not ask."`
}

// Run looks at the server, writes the connection into sallyport.yaml, applies it, connects it, and writes its tools down to be reviewed.
func (c *connectionsAddCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	if c.Name == "" {
		c.Name = nameOf(c.URL)
	}
	if !connectionName.MatchString(c.Name) {
		return errs.New(errs.Invalid, "name the connection: --name NAME, a lower-case letter, then up to 31 of a-z, 0-9 and -")
	}
	asked := c.Auth
	if c.Header != "" {
		asked = "header"
	}
	g.note("1. What is at %s", c.URL)
	r, err := answer(api.TestConnection(ctx, &sallyportv1.TestConnectionRequest{Connection: c.Name, Yaml: []byte("version: 1\nconnections:\n" + c.entry("none"))}))
	if err != nil {
		return err
	}
	t := r.GetReport()
	g.report(t, "answers without a credential", "does not serve without more")
	auth, err := c.found(g, t, asked)
	if err != nil {
		return err
	}
	g.note("\n2. The connection in %s", c.File)
	entry := c.entry(auth)
	if err := c.insert(entry); err != nil {
		return err
	}
	fmt.Fprint(g.out, entry)
	apply := &applyCmd{fileFlags: fileFlags{File: c.File}, Yes: c.Yes}
	if err := apply.Run(ctx, g); err != nil {
		return err
	}
	switch auth {
	case "oauth":
		g.note("\n3. Sign in")
		if err := (&credentialsConnectCmd{Connection: c.Name}).Run(ctx, g); err != nil {
			return err
		}
	case "bearer", "header":
		g.note("\n3. Its credential")
		if err := (&credentialsSetCmd{Connection: c.Name}).Run(ctx, g); err != nil {
			return err
		}
		if err := (&connectionsEnableCmd{Name: c.Name}).Run(ctx, g); err != nil {
			return err
		}
	}
	g.note("\n4. Its tools")
	pull := &catalogsPullCmd{Name: c.Name, yamlFlag: yamlFlag{File: c.File}}
	if err := pull.Run(ctx, g); err != nil {
		return err
	}
	g.note("\nThen grant them to a profile, and: sallyport apply")
	return nil
}

// found is how the server authenticates: what was asked for, or what it said.
func (c *connectionsAddCmd) found(g *Globals, t *sallyportv1.TestReport, asked string) (string, error) {
	switch {
	case !t.GetOk() && !t.GetNeedsCredential():
		return "", errs.New(errs.Unreachable, "nothing was written: mend what the last step says. A private network is named with --allow CIDR, plain http with --http")
	case asked != "auto":
		return asked, nil
	case t.GetOk():
		g.note("It needs no credential.")
		return "none", nil
	case t.GetFound() != nil:
		f := t.GetFound()
		g.note("One signs in at %s (OAuth) for %s.", oneLine(f.GetIssuer()), oneLine(f.GetResource()))
		if len(f.GetScopes()) > 0 {
			g.note("It names the scopes: %s", oneLine(strings.Join(f.GetScopes(), " ")))
		}
		if len(f.GetRegistration()) == 0 {
			g.note("It registers no clients by itself: register Sallyport there, then write client_id and issuer into auth.oauth.")
		}
		return "oauth", nil
	}
	g.note("It wants a credential, and does not say how one signs in (%s): a bearer token is taken. Another header: --header NAME.", oneLine(t.GetNotFound()))
	return "bearer", nil
}

// entry is the connection as the file has it.
func (c *connectionsAddCmd) entry(auth string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %s:\n    url: %s\n", c.Name, yamlText(c.URL))
	if c.Pool != "default" {
		fmt.Fprintf(&b, "    pool: %s\n", yamlText(c.Pool))
	}
	var network []string
	if len(c.Allow) > 0 {
		quoted := make([]string, len(c.Allow))
		for i, a := range c.Allow {
			quoted[i] = yamlText(a)
		}
		network = append(network, "allow: ["+strings.Join(quoted, ", ")+"]")
	}
	if c.HTTP {
		network = append(network, "http: true")
	}
	if network != nil {
		fmt.Fprintf(&b, "    network: {%s}\n", strings.Join(network, ", "))
	}
	more := ""
	if auth == "header" {
		more = ", name: " + yamlText(c.Header)
	}
	if c.Person && auth != "none" {
		more += ", per: person"
	}
	fmt.Fprintf(&b, "    auth: {type: %s%s}\n", auth, more)
	return b.String()
}

func yamlText(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// atTop finds the line after which connections stand.
var atTop = regexp.MustCompile(`(?m)^connections:[ \t]*(?:#.*)?$`)

// insert writes the entry into the file, which is as it was elsewhere, and makes a file where there is none.
func (c *connectionsAddCmd) insert(entry string) error {
	data, err := os.ReadFile(c.File)
	if os.IsNotExist(err) {
		data, err = []byte("version: 1\n"), nil
	}
	if err != nil {
		return errs.Wrap(errs.NotFound, c.File+" cannot be read", err)
	}
	text := string(data)
	byHand := errs.Newf(errs.Conflict, "%s has its connections in a form that is not written into by itself; put this below connections, then: sallyport apply\n%s", c.File, entry)
	switch at := atTop.FindStringIndex(text); {
	case regexp.MustCompile(`(?m)^  ` + regexp.QuoteMeta(c.Name) + `:`).MatchString(text):
		return errs.Newf(errs.Conflict, "%s names %s already; take another name with --name, or change it there", c.File, c.Name)
	case at != nil:
		text = text[:at[1]] + "\n" + entry + strings.TrimPrefix(text[at[1]:], "\n")
	case regexp.MustCompile(`(?m)^connections:`).MatchString(text):
		return byHand
	default:
		text = strings.TrimRight(text, "\n") + "\nconnections:\n" + entry
	}
	// What was written must be read as what was meant.
	if _, problems := config.ReadConnection([]byte(text), c.Name, time.Now()); len(problems) > 0 {
		return errs.Newf(errs.Invalid, "%s: %s; nothing was written", c.File, problems[0].Message)
	}
	if err := os.WriteFile(c.File, []byte(text), 0o644); err != nil {
		return errs.Wrap(errs.NotAllowed, c.File+" cannot be written", err)
	}
	return nil
}

// nameOf makes a name of an address: mcp.tracker.example.org is tracker.
func nameOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	for label := range strings.SplitSeq(strings.ToLower(u.Hostname()), ".") {
		if label != "mcp" && label != "www" && label != "api" && connectionName.MatchString(label) {
			return label
		}
	}
	return ""
}
