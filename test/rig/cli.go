package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/identity/unixsock"
)

// CLI runs a command of the sallyport program and returns what it printed; an error has what it said.
func (r *Rig) CLI(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := r.Command(ctx, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("sallyport %s: %w\n%s%s", strings.Join(args, " "), err, out.String(), said.String())
	}
	return out.String(), nil
}

// JSON runs a command with --json and reads what it printed.
func (r *Rig) JSON(ctx context.Context, into any, args ...string) error {
	out, err := r.CLI(ctx, "", append([]string{"--json"}, args...)...)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(out), into)
}

// Connection is one connection of sallyport.yaml.
type Connection struct {
	Name   string
	URL    string
	Auth   string   // as in the file: {type: bearer}; "" for none
	Secret string   // stored through the CLI; "" stores none
	Limits string   // as in the file; "" for the defaults
	Reads  []string // the server's tools that are let in, by effect; NAME=AS renames one
	Writes []string
	// Review says which tools of a catalog that was pulled are let in as reads, as Reads does, for servers whose tools nobody knows before; nil: only
	// what Reads and Writes name.
	Review func(names []string) (reads []string)
	More   string // further members, each line indented by four
}

func (c *Connection) yaml() string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %s:\n    url: %s\n    network: {allow: [127.0.0.0/8], http: true}\n", c.Name, c.URL)
	if c.Auth != "" {
		fmt.Fprintf(&b, "    auth: %s\n", c.Auth)
	}
	if c.Limits != "" {
		fmt.Fprintf(&b, "    limits: %s\n", c.Limits)
	}
	b.WriteString(c.More)
	return b.String()
}

func (c *Connection) reviewed(digest string) string {
	var b strings.Builder
	b.WriteString(c.yaml())
	fmt.Fprintf(&b, "    catalog: {file: catalogs/%s.json, digest: %q}\n    tools:\n", c.Name, digest)
	if len(c.Reads)+len(c.Writes) == 0 {
		b.WriteString("      {}\n")
	}
	for effect, tools := range map[string][]string{"read": c.Reads, "write": c.Writes} {
		for _, t := range tools {
			name, as, renamed := strings.Cut(t, "=")
			if renamed {
				as = ", as: " + as
			}
			fmt.Fprintf(&b, "      %s: {effect: %s%s}\n", name, effect, as)
		}
	}
	return b.String()
}

// Configure does what an administrator does: write sallyport.yaml (the connections, then rest: profiles and standing grants), store the
// credentials, pull the catalogs, and apply what was read. It may be called again.
func (r *Rig) Configure(ctx context.Context, connections []Connection, rest string) error {
	first, reviewed := "version: 1\nconnections:\n", "version: 1\nconnections:\n"
	for i := range connections {
		first += connections[i].yaml()
	}
	if err := r.write(first); err != nil {
		return err
	}
	// A connection whose credential is missing cannot pass its test: it is applied, and stays out of service.
	_, applied := r.CLI(ctx, "", "apply", "--yes")
	for i := range connections {
		c := &connections[i]
		if c.Secret != "" {
			if _, err := r.CLI(ctx, c.Secret+"\n", "credentials", "set", c.Name); err != nil {
				return fmt.Errorf("%w\n(apply before it: %w)", err, applied)
			}
		}
		var pulled struct{ Digest string }
		if err := r.JSON(ctx, &pulled, "catalogs", "pull", c.Name); err != nil {
			return fmt.Errorf("%w\n(apply before it: %w)", err, applied)
		}
		if c.Review != nil {
			names, err := r.catalog(c.Name)
			if err != nil {
				return err
			}
			c.Reads = c.Review(names)
		}
		reviewed += c.reviewed(pulled.Digest)
	}
	if err := r.write(reviewed + rest); err != nil {
		return err
	}
	_, err := r.CLI(ctx, "", "apply", "--yes")
	return err
}

// catalog reads the names of the tools of a catalog that was pulled.
func (r *Rig) catalog(connection string) (names []string, err error) {
	data, err := os.ReadFile(r.Path(filepath.Join("catalogs", connection+".json")))
	if err != nil {
		return nil, err
	}
	var list struct{ Tools []struct{ Name string } }
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, err
	}
	for _, t := range list.Tools {
		names = append(names, t.Name)
	}
	return names, nil
}

func (r *Rig) write(yaml string) error {
	return os.WriteFile(r.Path("sallyport.yaml"), []byte(yaml), 0o600)
}

// operator is the people's API behind a socket.
func operator(socket string) sallyportv1connect.OperatorClient {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return unixsock.Dial(ctx, socket)
	}}}
	return sallyportv1connect.NewOperatorClient(connect.NewClient(connecthttp.NewTransport(client, "http://control")))
}
