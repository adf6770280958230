package acceptance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sallyport.dev/test/fixture/model"
	"sallyport.dev/test/fixture/wire"
	"sallyport.dev/test/harness"
)

// trap is a machine with something to steal: secrets in the person's home and environment, sockets, listeners, another session.
type trap struct {
	w       *world
	home    string
	env     []string
	exist   []string          // must not be seen
	dial    []string          // must not be reached
	through []string          // must not be reached through the gateway
	mark    string            // stands in what the probe asks the gateway for
	secrets map[string]string // where each was planted
}

// report is what the probe writes; see its command.
type report struct {
	UID        int
	CapEff     string `json:"cap_eff"`
	NoNewPrivs string `json:"no_new_privs"`
	Interfaces []string
	Secrets    map[string]string
	Sockets    []string
	Exist      []string
	Wrote      []string
	Reached    []string
	Answers    []string
	Run        []string
	Processes  []string
	Searched   int
}

// setTrap plants everything. It is gone with the test.
func (w *world) setTrap(t *testing.T) *trap {
	t.Helper()
	home, err := os.MkdirTemp("", "sallyport-home-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	p := &trap{w: w, home: home, mark: "mark-" + token(), secrets: map[string]string{}}
	for _, name := range []string{
		".ssh/id_ed25519", ".aws/credentials", ".netrc", ".git-credentials", ".npmrc", ".docker/config.json", ".config/gh/hosts.yml", ".kube/config",
		".claude/.credentials.json", ".claude.json", ".codex/auth.json", ".pi/agent/auth.json", ".env",
	} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(home, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(home, name), []byte(`{"token":"`+p.secret("~/"+name)+`"}`), 0o644))
	}
	agent, docker := p.listen(t, "unix", filepath.Join(home, "agent.sock")), p.listen(t, "unix", filepath.Join(home, "docker.sock"))
	p.env = []string{"HOME=" + home, "SSH_AUTH_SOCK=" + agent, "DOCKER_HOST=unix://" + docker, "XDG_RUNTIME_DIR=" + home}
	for _, name := range []string{
		"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "OPENAI_API_KEY", "CODEX_API_KEY", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL", "NPM_TOKEN",
		"LC_TOKEN", // ssh lets everything through that begins so, and people use it
	} {
		p.env = append(p.env, name+"="+p.secret("the variable "+name))
	}
	_, port, err := net.SplitHostPort(p.listen(t, "tcp", ":0"))
	must(t, err)
	addresses, err := net.InterfaceAddrs()
	must(t, err)
	for _, a := range addresses {
		if ip, _, err := net.ParseCIDR(a.String()); err == nil && !ip.IsLinkLocalUnicast() {
			p.dial = append(p.dial, "tcp="+net.JoinHostPort(ip.String(), port))
		}
	}
	p.dial = append(p.dial,
		"unix=@"+strings.TrimPrefix(p.listen(t, "unix", "@sallyport-acceptance-"+token()), "@"), "udp="+p.echo(t),
		"tcp="+strings.TrimPrefix(w.model.URL(), "http://"), "tcp=169.254.169.254:80", "dns=tracker.example.org",
	)
	for _, s := range w.servers {
		p.dial = append(p.dial, fmt.Sprintf("tcp=127.0.0.1:%d", s.Port()))
		p.through = append(p.through, fmt.Sprintf("127.0.0.1:%d", s.Port()))
	}
	state := w.rig.State()
	for _, s := range []string{"control.sock", "link.sock", "host.sock", "gate.sock"} {
		p.dial = append(p.dial, "unix="+filepath.Join(state, "run", s))
	}
	p.dial = append(p.dial, "unix="+agent, "unix="+docker)
	p.exist = []string{state, w.rig.Path("sallyport.yaml"), home, "/etc/shadow", "/etc/ssh", "/run/docker.sock", "/var/run/docker.sock", "/run/dbus", "/run/user"}
	// A home's own folder may be there, as the way to where the agents are installed.
	if me, err := user.Current(); err == nil {
		entries, err := os.ReadDir(me.HomeDir)
		must(t, err)
		for _, e := range entries {
			if name := filepath.Join(me.HomeDir, e.Name()); !strings.HasPrefix(w.agents.Root, name+"/") {
				p.exist = append(p.exist, name)
			}
		}
	}
	p.other(t)
	return p
}

func (p *trap) secret(where string) string {
	s := canary()
	p.secrets[s] = where
	return s
}

// listen serves connections, each by closing it, and returns the address.
func (p *trap) listen(t *testing.T, network, address string) string {
	t.Helper()
	l, err := net.Listen(network, address)
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	if network == "unix" && address[0] == '/' {
		must(t, os.Chmod(address, 0o777))
	}
	return l.Addr().String()
}

// echo answers every packet.
func (p *trap) echo(t *testing.T) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 64)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(b[:n], from)
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })
	return c.LocalAddr().String()
}

// other is a second session that lives meanwhile, with a secret in its home.
func (p *trap) other(t *testing.T) {
	t.Helper()
	cmd := p.w.command(context.WithoutCancel(t.Context()), "run", "--profile", "anthropic-dev", "--workspace", p.w.workspace(t), "--", "/bin/sh", "-c",
		"cat /run/sallyport/in/session.json; echo; cat")
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	var session struct{ Session string }
	must(t, json.NewDecoder(out).Decode(&session))
	dir := filepath.Join(p.w.rig.State(), "host", "sessions", session.Session)
	must(t, os.WriteFile(filepath.Join(dir, "home", "secret"), []byte(p.secret("another session's home")), 0o644))
	p.exist = append(p.exist, dir, filepath.Join(dir, "home", "secret"))
}

// bait fills a workspace: what the agent may read, what is masked, what it may not write, a way out by a link, and the probe. It returns the command
// that looks around, and what it must find: one secret, so that it is known to find any.
func (p *trap) bait(t *testing.T, dir string) (command []string, may string) {
	t.Helper()
	may = canary()
	must(t, os.MkdirAll(filepath.Join(dir, ".git", "hooks"), 0o755))
	for name, text := range map[string]string{
		"notes.txt": may, ".env": p.secret(".env"), ".env.production": p.secret(".env.production"), ".git/config": "[core]\n", ".envrc": "true\n",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	must(t, os.Symlink(filepath.Join(p.home, ".netrc"), filepath.Join(dir, "link")))
	program, err := os.ReadFile(built.probe)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "probe"), program, 0o755))
	var write []string
	for _, name := range []string{".git/hooks/pre-commit", ".git/config", ".claude/settings.json", ".mcp.json", ".codex/config.toml", ".vscode/tasks.json", ".idea/workspace.xml", ".envrc"} {
		write = append(write, filepath.Join(dir, name))
	}
	write = append(write, "/usr/bin/new", "/etc/new", "/run/sallyport/in/open", "/run/sallyport/in/session.json", "/run/sallyport/in/results/new",
		"/run/sallyport/in/bin/sallyport-guest")
	return []string{
		filepath.Join(dir, "probe"), "--out", filepath.Join(dir, "report.json"), "--exist", strings.Join(p.exist, " "), "--write", strings.Join(write, " "),
		"--dial", strings.Join(p.dial, " "), "--through", strings.Join(p.through, " "), "--mark", p.mark,
	}, may
}

// sprung reads the report and complains of everything that it found.
func (p *trap) sprung(t *testing.T, dir, may string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "report.json"))
	must(t, err)
	var r report
	must(t, json.Unmarshal(data, &r))
	t.Logf("%d files searched, %d processes, sockets %q", r.Searched, len(r.Processes), r.Sockets)
	if r.Secrets[filepath.Join(dir, "notes.txt")] != may || r.Searched == 0 {
		t.Fatalf("the probe does not find what it may: %+v", r)
	}
	for where, s := range r.Secrets {
		if s != may {
			t.Errorf("what was planted in %s is readable in %s", p.secrets[s], where)
		}
	}
	for what, found := range map[string][]string{"is seen": r.Exist, "could be written": r.Wrote} {
		if len(found) > 0 {
			t.Errorf("%q %s", found, what)
		}
	}
	for _, s := range r.Reached {
		if s != "unix=/run/sallyport/in/bridge.sock" && !slices.ContainsFunc(own, func(dir string) bool { return strings.HasPrefix(s, "unix="+dir) }) {
			t.Errorf("%s was reached", s)
		}
	}
	if r.UID == 0 || strings.Trim(r.CapEff, "0") != "" || r.NoNewPrivs != "1" {
		t.Errorf("it runs as uid %d with the capabilities %s, no_new_privs %s", r.UID, r.CapEff, r.NoNewPrivs)
	}
	// Codex lets its commands open no socket, so they see none at all.
	if len(r.Interfaces) > 0 && !slices.Equal(r.Interfaces, []string{"lo"}) {
		t.Errorf("its interfaces are %q", r.Interfaces)
	}
	for _, name := range r.Run {
		if !strings.HasPrefix(name, "/run/sallyport/in/") && !strings.HasPrefix(name, "/run/sallyport/out/") && name != "/run/sallyport/in" && name != "/run/sallyport/out" && name != "/run/sallyport" {
			t.Errorf("%s is seen", name)
		}
	}
	for _, answer := range r.Answers {
		if strings.Contains(answer, ": HTTP/1.1 2") {
			t.Errorf("the gateway answered %s", answer)
		}
	}
	for _, s := range p.w.servers {
		if n := len(s.Recorder().Records(func(r *wire.Record) bool { return bytes.Contains(r.Request.Head, []byte(p.mark)) })); n != 0 {
			t.Errorf("the gateway sent %d requests to an MCP server", n)
		}
	}
	for _, r := range p.w.model.Requests() {
		if strings.Contains(r.Path, p.mark) {
			t.Errorf("the gateway asked the model for %s", r.Path)
		}
	}
	for _, line := range r.Processes {
		if strings.Contains(line, "--state "+p.w.rig.State()) {
			t.Errorf("a process of the host is seen: %s", line)
		}
	}
}

// own are folders where agents keep sockets of their own.
var own = []string{"/tmp/", "/home/agent/"}

// unsent: no model was sent a planted secret or one of the installation's.
func (p *trap) unsent(t *testing.T, token string) {
	t.Helper()
	for _, r := range p.w.model.Requests() {
		if !strings.Contains(r.Body, token) {
			continue
		}
		for s, where := range p.secrets {
			if strings.Contains(r.Body, s) || strings.Contains(fmt.Sprint(r.Header), s) {
				t.Errorf("the model was sent what was planted in %s", where)
			}
		}
	}
}

// isolated: what an agent starts in its sandbox finds no secret, no socket, no other session, no network.
func isolated(t *testing.T, w *world, a agent) {
	p := w.setTrap(t)
	s := w.prepare(t, a, nil, "dev")
	command, may := p.bait(t, s.dir)
	s.play(a.shell(command), model.Say("looked TOKEN: {{0}}"))
	s.command.Env = append(s.command.Env, p.env...)
	s.start()
	s.end("probed")
	p.sprung(t, s.dir, may)
	p.unsent(t, s.token)
}

// isolatedProgram: the same for a program that is no known agent; it is also started with an open file too many.
func isolatedProgram(t *testing.T, w *world) {
	p := w.setTrap(t)
	dir := w.workspace(t)
	command, may := p.bait(t, dir)
	cmd := w.command(t.Context(), append([]string{"run", "--profile", "anthropic-dev", "--workspace", dir, "--"}, command...)...)
	cmd.Env = append(cmd.Env, p.env...)
	f, err := os.Open(filepath.Join(p.home, ".netrc"))
	must(t, err)
	defer f.Close()
	cmd.ExtraFiles = []*os.File{f}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p.sprung(t, dir, may)
}

// shell is a step in which the agent's model runs a command with the agent's own tool.
func (a agent) shell(command []string) model.Step {
	var words []string
	for _, w := range command {
		words = append(words, "'"+w+"'")
	}
	line := quoted(strings.Join(words, " "))
	switch a.kind {
	case harness.Claude:
		return model.Call("Bash", `{"command":`+line+`,"description":"look around"}`)
	case harness.Codex:
		return model.Call("exec_command", `{"cmd":`+line+`}`)
	}
	return model.Call("bash", `{"command":`+line+`}`)
}
