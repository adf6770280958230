package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// show is one run of the demo.
type show struct {
	ctx         context.Context
	cancel      context.CancelFunc
	bin, dir    string
	interactive bool

	upstream, up *exec.Cmd
	url, control string // of the MCP server, and of the endpoint that steers it
}

func (d *show) path(name string) string { return filepath.Join(d.dir, name) }

func (d *show) clean() {
	for _, c := range []*exec.Cmd{d.up, d.upstream} {
		if c == nil || c.Process == nil {
			continue
		}
		if err := c.Process.Signal(syscall.SIGTERM); err == nil {
			c.Wait() //nolint:errcheck // it was told to end
		}
	}
	d.cancel()
	if err := os.RemoveAll(d.dir); err != nil {
		fmt.Fprintln(os.Stderr, "demo: not removed:", err)
	}
}

// showLog prints the end of Sallyport's log, for who looks at a demo that failed.
func (d *show) showLog() {
	b, err := os.ReadFile(d.path("log"))
	if err != nil {
		return
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	fmt.Fprintf(os.Stderr, "\nthe last lines of Sallyport's log:\n%s\n", strings.Join(lines[max(0, len(lines)-30):], "\n"))
}

// sallyport runs one command of the operator's and returns what it printed.
func (d *show) sallyport(stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(d.ctx, filepath.Join(d.bin, "sallyport"), append([]string{"--state", d.path("s")}, args...)...)
	cmd.Dir = d.dir
	cmd.Stdin = strings.NewReader(stdin)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("sallyport %s: %w\n%s%s", strings.Join(args, " "), err, out.String(), errOut.String())
	}
	return out.String(), nil
}

// apart keeps a terminal's Ctrl-C from what must outlive the agent: clean ends it, after the agent's sandbox is gone.
var apart = &syscall.SysProcAttr{Setpgid: true}

func (d *show) startUpstream() error {
	d.upstream = exec.Command(filepath.Join(d.bin, "fixture-mcp"), "--auth", "bearer") //nolint:noctx // ended in clean
	d.upstream.Env = append(os.Environ(), "FIXTURE_SECRET="+secret)
	d.upstream.Stderr = os.Stderr
	d.upstream.SysProcAttr = apart
	out, err := d.upstream.StdoutPipe()
	if err != nil {
		return err
	}
	if err := d.upstream.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		return err
	}
	var ready struct{ URL, Control string }
	if err := json.Unmarshal(line, &ready); err != nil {
		return err
	}
	d.url, d.control = ready.URL, ready.Control
	fmt.Printf("   %s\n", d.url)
	return nil
}

func (d *show) startSallyport() error {
	if _, err := d.sallyport("", "--quiet", "init", "-f", "sallyport.yaml"); err != nil {
		return err
	}
	log, err := os.Create(d.path("log"))
	if err != nil {
		return err
	}
	d.up = exec.Command(filepath.Join(d.bin, "sallyport"), "--state", d.path("s"), "up") //nolint:noctx // ended in clean
	d.up.Stdout, d.up.Stderr = log, log
	d.up.SysProcAttr = apart
	if err := d.up.Start(); err != nil {
		return err
	}
	return until(d.ctx, "Sallyport to be up", func() (bool, error) {
		b, err := os.ReadFile(d.path("log"))
		return bytes.Contains(b, []byte("Sallyport is up")), err
	})
}

func until(ctx context.Context, what string, ok func() (bool, error)) error {
	for {
		done, err := ok()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, errors.Join(context.Cause(ctx), err))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

const connection = `version: 1
connections:
  tracker:
    url: %s
    network: {allow: [127.0.0.0/8], http: true}
    auth: {type: bearer}
`

const policy = `    catalog: {file: catalogs/tracker.json, digest: %q}
    tools:
      echo:         {effect: read}
      create_issue: {effect: write, as: new_issue}
profiles:
  demo:
    attended: true
    hold: %s
    grants:
      - {tools: [tracker/echo], rule: allow}
      - {tools: [tracker/create_issue], rule: ask}
`

// hold is how long the agent's call waits for the person: the demo's agent has nothing else to do meanwhile.
func (d *show) hold() string {
	if d.interactive {
		return "9m"
	}
	return "60s"
}

func (d *show) configure() error {
	yaml := fmt.Sprintf(connection, d.url)
	if err := os.WriteFile(d.path("sallyport.yaml"), []byte(yaml), 0o600); err != nil {
		return err
	}
	// The connection cannot pass its test before it has its credential: it is applied, and stays out of service.
	out, err := d.sallyport("", "apply", "--yes")
	if err != nil {
		return err
	}
	if !strings.Contains(out, "tracker: not in service") {
		return fmt.Errorf("a connection without its credential passed its test:\n%s", out)
	}

	if _, err := d.sallyport(secret+"\n", "credentials", "set", "tracker"); err != nil {
		return err
	}
	out, err = d.sallyport("", "--json", "catalogs", "pull", "tracker")
	if err != nil {
		return err
	}
	var pulled struct{ Digest string }
	if err := json.Unmarshal([]byte(out), &pulled); err != nil {
		return err
	}
	if err := os.WriteFile(d.path("sallyport.yaml"), []byte(yaml+fmt.Sprintf(policy, pulled.Digest, d.hold())), 0o600); err != nil {
		return err
	}
	out, err = d.sallyport("", "apply", "--yes")
	if err != nil {
		return err
	}
	fmt.Print(indent(out))
	return nil
}

func indent(s string) string {
	return "   " + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n   ") + "\n"
}

const script = `[
 {"say":"First I look.", "tool":"tracker_echo", "arguments":{"text":"how are you?"}},
 {"say":"Now I file an issue. A person has to agree.", "tool":"new_issue", "arguments":{"project":"web","title":"the button is blue"}},
 {"say":"And one that nobody wants.", "tool":"new_issue", "arguments":{"project":"web","title":"delete everything"}},
 {"say":"And one more; its answer will be lost.", "tool":"new_issue", "arguments":{"project":"web","title":"pay the invoice"}}
]`

func (d *show) runAgent() error {
	work := d.path("work")
	if err := os.Mkdir(work, 0o755); err != nil {
		return err
	}
	agent := exec.CommandContext(d.ctx, filepath.Join(d.bin, "sallyport"), "--state", d.path("s"), "run", "--profile", "demo", "--workspace", work, "--", filepath.Join(d.bin, "demo-agent"), script)
	agent.Dir = work
	agent.Cancel = func() error { return agent.Process.Signal(syscall.SIGTERM) } // it takes its sandbox along
	agent.WaitDelay = 10 * time.Second
	out, err := agent.StdoutPipe()
	if err != nil {
		return err
	}
	agent.Stderr = os.Stderr
	people := make(chan error, 1)
	if err := agent.Start(); err != nil {
		return err
	}
	deciding, ended := context.WithCancelCause(d.ctx)
	defer ended(nil)
	go func() { people <- d.decide(deciding) }()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		fmt.Printf("   %s\n", lines.Text())
	}
	err = agent.Wait()
	ended(errAgentEnded)
	decided := <-people
	switch {
	case err != nil:
		return fmt.Errorf("sallyport run: %w", err)
	case d.interactive && errors.Is(decided, errAgentEnded):
		return nil // the person decided otherwise, and nothing is left to wait for
	}
	return decided
}

var errAgentEnded = errors.New("the agent ended before that")

// waiting returns the open question whose arguments hold text.
func (d *show) waiting(ctx context.Context, text string) (id, digest string, err error) {
	err = until(ctx, "a question about "+text, func() (bool, error) {
		out, err := d.sallyport("", "--json", "approvals", "list")
		if err != nil {
			return false, err
		}
		var list struct {
			Approvals []struct{ ID, Digest, Kind string }
		}
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			return false, err
		}
		for _, a := range list.Approvals {
			if a.Kind != "approval" {
				continue
			}
			shown, err := d.sallyport("", "approvals", "show", a.ID)
			if err == nil && strings.Contains(shown, text) {
				id, digest = a.ID, a.Digest
				return true, nil
			}
		}
		return false, nil
	})
	return id, digest, err
}

// decide is the person: approve, deny, approve. It ends with ctx, which ends with the agent.
func (d *show) decide(ctx context.Context) error {
	id, digest, err := d.waiting(ctx, "the button is blue")
	if err != nil {
		return err
	}
	if d.interactive {
		fmt.Printf("\n   Your turn, three times (if you approve the invoice, its answer is lost). In another terminal:\n\n   %s --state %s approvals watch\n\n", filepath.Join(d.bin, "sallyport"), d.path("s"))
	} else {
		shown, err := d.sallyport("", "approvals", "show", id)
		if err != nil {
			return err
		}
		fmt.Printf("   person: I am shown every byte that will run:\n%s", indent(indent(shown)))
		if _, err := d.sallyport("", "approve", id, "--digest", digest, "--yes"); err != nil {
			return err
		}
		fmt.Println("   person: approved")
	}
	if id, digest, err = d.waiting(ctx, "delete everything"); err != nil {
		return err
	}
	if !d.interactive {
		if _, err := d.sallyport("", "deny", id, "--digest", digest, "--reason", "we keep everything"); err != nil {
			return err
		}
		fmt.Println("   person: denied, with the reason")
	}
	if id, digest, err = d.waiting(ctx, "pay the invoice"); err != nil {
		return err
	}
	// The server will do it and then hold its answer back; the worker is killed while it waits.
	if err := d.steer("POST", "/holds", `{"tool":"create_issue","where":"after-effect"}`, nil); err != nil {
		return err
	}
	if !d.interactive {
		if _, err := d.sallyport("", "approve", id, "--digest", digest, "--yes"); err != nil {
			return err
		}
		fmt.Println("   person: approved")
	}
	if err := until(ctx, "the server to have done it", func() (bool, error) {
		n, err := d.effects(`{"project":"web","title":"pay the invoice"}`)
		return n == 1, err
	}); err != nil {
		return err
	}
	pid, err := d.workerPID()
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	fmt.Printf("   (the server has done it; before it answers, the worker, process %d, is killed with -9)\n", pid)
	return d.steer("DELETE", "/holds", "", nil)
}

func (d *show) steer(method, path, body string, into any) error {
	req, err := http.NewRequestWithContext(d.ctx, method, d.control+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s %s", method, path, r.Status, b)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(b, into)
}

// effects is how often the server did exactly this.
func (d *show) effects(arguments string) (int, error) {
	q, err := json.Marshal(map[string]string{"tool": "create_issue", "arguments": arguments})
	if err != nil {
		return 0, err
	}
	var n struct{ Requests, Effects int }
	return n.Effects, errors.Join(d.steer("POST", "/count", string(q), &n))
}

// workerPID finds the worker among up's children.
func (d *show) workerPID() (int, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", d.up.Process.Pid))
	if err != nil {
		return 0, err
	}
	for _, t := range tasks {
		b, err := os.ReadFile(t)
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(b)) {
			cmdline, err := os.ReadFile("/proc/" + f + "/cmdline")
			if err == nil && bytes.Contains(cmdline, []byte("\x00worker\x00")) {
				return strconv.Atoi(f)
			}
		}
	}
	return 0, errors.New("the worker's process was not found")
}
