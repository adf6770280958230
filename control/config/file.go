// Package config reads sallyport.yaml: strictly, with every error at once and its line, and plans what an apply would change. It joins the
// catalogs that the file names with the domain types of control; it opens no file and no store itself.
package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// File is sallyport.yaml, version 1. It is the one source of the JSON Schema and of the reference page.
type File struct {
	Version     int                   `json:"version" jsonschema:"required,enum=1" jsonschema_description:"The format of this file: 1."`
	Connections map[string]Connection `json:"connections,omitempty" jsonschema_description:"Remote MCP servers and HTTP callbacks, by name ([a-z][a-z0-9-]*)."`
	Profiles    map[string]Profile    `json:"profiles,omitempty" jsonschema_description:"What each kind of sandbox may do, by name."`
	Standing    map[string]Standing   `json:"standing,omitempty" jsonschema_description:"Standing grants, by name: the only way in which an unattended session writes."`
}

// Connection is a remote MCP server, or a platform's own HTTP callback.
type Connection struct {
	Kind     string          `json:"kind,omitempty" jsonschema:"enum=mcp,enum=callback,default=mcp" jsonschema_description:"mcp (a remote MCP server) or callback (the platform's own endpoint)."`
	URL      string          `json:"url" jsonschema:"required" jsonschema_description:"The whole address, https. Plain http needs network.http."`
	Pool     string          `json:"pool,omitempty" jsonschema:"default=default" jsonschema_description:"Which workers reach it."`
	Network  Network         `json:"network,omitempty" jsonschema_description:"What this connection may reach beyond public https addresses."`
	Auth     Auth            `json:"auth,omitempty" jsonschema_description:"How the worker authenticates. The secret itself never stands here: sallyport credentials set."`
	TLS      *TLS            `json:"tls,omitempty" jsonschema_description:"What TLS rests on beside the system's authorities."`
	Limits   Limits          `json:"limits,omitempty" jsonschema_description:"Bounds of its dispatches."`
	Trusted  bool            `json:"rejections_trusted,omitempty" jsonschema_description:"A complete rejection of this server is proof that nothing ran."`
	Moved    []int           `json:"uncertain_statuses,omitempty" jsonschema_description:"HTTP statuses that count as uncertain here though they are rejections elsewhere."`
	Catalog  *CatalogFile    `json:"catalog,omitempty" jsonschema_description:"The reviewed catalog: without one the connection serves no tool."`
	Tools    map[string]Tool `json:"tools,omitempty" jsonschema_description:"The tools that a reviewer let in, by the server's name, each with its effect."`
	Disabled bool            `json:"disabled,omitempty" jsonschema_description:"Keep the definition, serve nothing."`
}

// Network is what a connection may reach beyond public https addresses.
type Network struct {
	Allow []string `json:"allow,omitempty" jsonschema_description:"Private CIDRs. Link-local and metadata ranges are refused even here."`
	HTTP  bool     `json:"http,omitempty" jsonschema_description:"Plain http, for this connection only."`
}

// TLS is what TLS rests on beside the system's authorities.
type TLS struct {
	CA          string `json:"ca,omitempty" jsonschema_description:"Certificates of authorities (PEM): at this address they alone are trusted, at those of its sign-in beside the system's."`
	Certificate bool   `json:"certificate,omitempty" jsonschema_description:"It shows a certificate of its own. It is stored, with its key, by sallyport credentials set NAME --certificate."`
}

// Auth is how the worker authenticates.
type Auth struct {
	Type  string `json:"type,omitempty" jsonschema:"enum=none,enum=header,enum=bearer,enum=oauth,enum=signature,default=none" jsonschema_description:"none, header (needs name), bearer, oauth, or signature (callbacks: Standard Webhooks)."`
	Name  string `json:"name,omitempty" jsonschema_description:"The header's name, for type header."`
	Per   string `json:"per,omitempty" jsonschema:"enum=shared,enum=person,default=shared" jsonschema_description:"One credential for all sessions, or each session owner's own."`
	OAuth *OAuth `json:"oauth,omitempty" jsonschema_description:"For type oauth: what is fixed of the sign-in. What is left out is found out."`
}

// OAuth fixes parts of a sign-in.
type OAuth struct {
	Issuer       string   `json:"issuer,omitempty" jsonschema_description:"The one authorization server that is used."`
	Registration string   `json:"registration,omitempty" jsonschema:"enum=pre_registered,enum=metadata_document,enum=dynamic" jsonschema_description:"Force one way to a client."`
	ClientID     string   `json:"client_id,omitempty" jsonschema_description:"A client that was registered before, or the https address of its metadata document."`
	ClientAuth   string   `json:"client_auth,omitempty" jsonschema:"enum=none,enum=client_secret_basic,enum=client_secret_post,enum=private_key_jwt" jsonschema_description:"How the client authenticates. The secret is stored with sallyport credentials set NAME --client."`
	Grant        string   `json:"grant,omitempty" jsonschema:"enum=authorization_code,enum=client_credentials,default=authorization_code" jsonschema_description:"client_credentials: the client signs in for itself, without a person."`
	Scopes       []string `json:"scopes,omitempty" jsonschema_description:"Scopes without which a sign-in is refused."`
	Resource     string   `json:"resource,omitempty" jsonschema_description:"The resource indicator (RFC 8707), in place of what the server says."`
}

// Limits bound one dispatch.
type Limits struct {
	Timeout    Duration `json:"timeout,omitempty" jsonschema_description:"Until a whole answer. Default 120s, at most 30m."`
	Concurrent int      `json:"concurrent,omitempty" jsonschema_description:"Dispatches at once. Default 16."`
	Result     Size     `json:"result,omitempty" jsonschema_description:"Bytes of an answer that stand in the result. A longer one, up to 64MiB, comes as files of the sandbox. Default 1MiB, at most 1MiB."`
	Connect    Duration `json:"connect,omitempty" jsonschema_description:"Until it is connected, and again for TLS and for initialize. Default 5s, at most 30s."`
	Silence    Duration `json:"silence,omitempty" jsonschema_description:"Without a byte while an answer comes as a stream of events. Default 120s, at most 30m."`
	Rate       *Rate    `json:"rate,omitempty" jsonschema_description:"How often it is called, over all sessions. Default: as often as agents call."`
	Breaker    *Breaker `json:"breaker,omitempty" jsonschema_description:"When a server that is down is left alone. Default: never."`
}

// Rate bounds how often a connection is called.
type Rate struct {
	Calls int      `json:"calls" jsonschema:"required" jsonschema_description:"So many at once, and as many again in each per. 1 to 100000."`
	Per   Duration `json:"per" jsonschema:"required" jsonschema_description:"1s to 24h."`
}

// Breaker leaves a server that is down alone.
type Breaker struct {
	Failures int      `json:"failures" jsonschema:"required" jsonschema_description:"After so many in a row: not reached, no answer in time, or HTTP 408, 429 and 5xx. 1 to 1000."`
	Pause    Duration `json:"pause,omitempty" jsonschema_description:"Nothing is sent for so long; then one call goes ahead of the others. Default 30s, 1s to 1h."`
}

// CatalogFile names a reviewed catalog.
type CatalogFile struct {
	File   string `json:"file" jsonschema:"required" jsonschema_description:"Beside this file; written by sallyport catalogs pull."`
	Digest string `json:"digest" jsonschema:"required" jsonschema_description:"The catalog digest that pull prints: applying it is the approval."`
	// OnChange is by class of changes.
	OnChange map[string]string `json:"on_change,omitempty" jsonschema_description:"What follows when the server lists something else, by class (added, removed, description, widened, narrowed, hints, other): note (a draft to review; agents keep what was reviewed), void (also: open approvals of the tool are void), stop (also: the tool is out of service until it was reviewed). Default: note for added, void for the others."`
}

// Tool is a reviewer's word on one tool.
type Tool struct {
	Effect string `json:"effect" jsonschema:"required,enum=read,enum=write" jsonschema_description:"The reviewer's word, never the server's: write unless it only reads."`
	Repeat bool   `json:"repeat,omitempty" jsonschema_description:"A read whose answer was lost may be asked again."`
	Extra  string `json:"extra,omitempty" jsonschema:"enum=allow,enum=refuse,default=allow" jsonschema_description:"refuse: members that the schema does not name are refused."`
	As     string `json:"as,omitempty" jsonschema_description:"The name in the sandbox, in place of connection_tool."`
}

// Profile is what one kind of sandbox may do.
type Profile struct {
	Attended     bool     `json:"attended,omitempty" jsonschema_description:"A person is there: writes may ask. An unattended session never asks."`
	Attached     string   `json:"attached,omitempty" jsonschema:"enum=deny,enum=allow,default=deny" jsonschema_description:"allow: writes also where the sandbox's network is not verified."`
	OnDisconnect string   `json:"on_disconnect,omitempty" jsonschema:"enum=keep,enum=cancel,default=keep" jsonschema_description:"What happens to a call whose agent is gone before it was sent."`
	Approvers    []string `json:"approvers,omitempty" jsonschema_description:"owner, person names, or group:NAME. Default [owner]."`
	Hold         Duration `json:"hold,omitempty" jsonschema_description:"How long a call waits for a person before the model reads that it is pending. Default 45s, at most 9m; 0s answers at once."`
	Approval     Approval `json:"approval,omitempty"`
	Grants       []Grant  `json:"grants,omitempty" jsonschema_description:"What the session may use. What is not granted is invisible."`
	Sandbox      Sandbox  `json:"sandbox,omitempty"`
	Network      Egress   `json:"network,omitempty"`
	Model        Model    `json:"model,omitempty"`
}

// Approval bounds the questions.
type Approval struct {
	Expires  Duration `json:"expires,omitempty" jsonschema_description:"Default 1h, at most 7 days."`
	Second   bool     `json:"second,omitempty" jsonschema_description:"Two approvers."`
	NotOwner bool     `json:"not_owner,omitempty" jsonschema_description:"Not the session's owner."`
}

// Grant is one rule over tools.
type Grant struct {
	Tools []string    `json:"tools" jsonschema:"required" jsonschema_description:"connection/tool, or connection/* alone."`
	Rule  string      `json:"rule" jsonschema:"required,enum=allow,enum=ask,enum=deny" jsonschema_description:"allow is for reads only; a write asks, or has a standing grant."`
	When  string      `json:"when,omitempty" jsonschema_description:"A CEL condition over args, tool, connection, owner, profile, attended, now, used. An error denies."`
	Limit *GrantLimit `json:"limit,omitempty"`
}

// GrantLimit bounds a rule's use.
type GrantLimit struct {
	Calls int64    `json:"calls" jsonschema:"required"`
	Per   Duration `json:"per" jsonschema:"required"`
}

// Sandbox is the box that the agent runs in.
type Sandbox struct {
	Driver    string   `json:"driver,omitempty" jsonschema:"enum=bwrap,enum=process,default=bwrap" jsonschema_description:"bwrap, or process (no isolation: only with --insecure-no-sandbox)."`
	Closed    string   `json:"closed,omitempty" jsonschema:"enum=proven,enum=asserted,enum=no,default=proven" jsonschema_description:"What must be known of its network."`
	Workspace string   `json:"workspace,omitempty" jsonschema:"enum=read-write,enum=read-only,enum=none,default=read-write"`
	Memory    Size     `json:"memory,omitempty" jsonschema_description:"Default 4GiB."`
	PIDs      int64    `json:"pids,omitempty" jsonschema_description:"Default 512."`
	CPU       float64  `json:"cpu,omitempty" jsonschema_description:"Processors. Default 2."`
	Protected []string `json:"protected,omitempty" jsonschema_description:"Workspace paths kept read-only, beyond the built-in list."`
	EnvFiles  bool     `json:"allow_env_files,omitempty" jsonschema_description:"Show .env files of the workspace."`
}

// Egress is what the sandbox may reach beyond its tools.
type Egress struct {
	Allow         []string `json:"allow,omitempty" jsonschema_description:"host:port, through the allowlist proxy."`
	SharedAddress string   `json:"shared_address,omitempty" jsonschema:"enum=refuse,enum=allow,default=refuse" jsonschema_description:"An allowed name on the address of a managed host."`
}

// Model is which model the agent talks to, through the gateway.
type Model struct {
	Provider string   `json:"provider,omitempty" jsonschema:"enum=anthropic,enum=openai,enum=none"`
	Source   string   `json:"source,omitempty" jsonschema_description:"A name in the host's host.yaml."`
	Allow    []string `json:"allow,omitempty" jsonschema_description:"Provider features beyond the strict default, by name."`
}

// Standing is an administrator's grant.
type Standing struct {
	Profile string   `json:"profile" jsonschema:"required"`
	Tools   []string `json:"tools" jsonschema:"required"`
	When    string   `json:"when,omitempty"`
	Calls   int64    `json:"calls,omitempty" jsonschema_description:"Default 1000."`
	Per     Duration `json:"per,omitempty" jsonschema_description:"The window of calls; without it they are for the grant's whole life."`
	Until   Date     `json:"until" jsonschema:"required" jsonschema_description:"A day (UTC), at most 400 days away."`
	Reason  string   `json:"reason" jsonschema:"required"`
}

// Duration is a length of time such as 45s, 10m, 24h or 7d.
type Duration struct {
	time.Duration
	Set bool
}

func (d *Duration) readScalar(text string) error {
	days, isDays := strings.CutSuffix(text, "d")
	if n, err := strconv.Atoi(days); isDays && err == nil && n >= 0 && n < 10000 {
		d.Duration, d.Set = time.Duration(n)*24*time.Hour, true
		return nil
	}
	v, err := time.ParseDuration(text)
	if err != nil || v < 0 {
		return errors.New("must be a length of time, such as 45s, 10m or 24h")
	}
	d.Duration, d.Set = v, true
	return nil
}

func (Duration) expects() string { return "a length of time, such as 45s, 10m or 24h" }

// Size is a number of bytes such as 512KiB, 1MiB or 4GiB.
type Size struct {
	Bytes int64
	Set   bool
}

func (s *Size) readScalar(text string) error {
	number, factor := text, int64(1)
	for _, u := range []struct {
		unit string
		by   int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"B", 1}} {
		if cut, ok := strings.CutSuffix(text, u.unit); ok {
			number, factor = strings.TrimSpace(cut), u.by
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/factor {
		return errors.New("must be a size, such as 512KiB, 1MiB or 4GiB")
	}
	s.Bytes, s.Set = n*factor, true
	return nil
}

func (Size) expects() string { return "a size, such as 512KiB, 1MiB or 4GiB" }

// Date is a day in UTC.
type Date struct{ time.Time }

func (d *Date) readScalar(text string) error {
	t, err := time.Parse(time.DateOnly, text)
	if err != nil {
		return fmt.Errorf("must be a day, such as %s", "2027-01-31")
	}
	d.Time = t
	return nil
}

func (Date) expects() string { return "a day, such as 2027-01-31" }
