// Command demo-agent stands for an agent in the demo: it starts the MCP server that it was configured with, as every harness does, makes the calls of
// its script, and prints what a model would read. It has no network and no credential.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// step is one call of the script.
type step struct {
	Say       string          `json:"say"`
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "demo-agent:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: demo-agent SCRIPT")
	}
	var script []step
	if err := json.Unmarshal([]byte(os.Args[1]), &script); err != nil {
		return err
	}
	look()
	c, err := start()
	if err != nil {
		return err
	}
	defer c.end()
	if _, err := c.ask("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"demo-agent","version":"1"}}`); err != nil {
		return err
	}
	if err := c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`); err != nil {
		return err
	}
	list, err := c.ask("tools/list", `{}`)
	if err != nil {
		return err
	}
	var tools struct{ Tools []struct{ Name string } }
	if err := json.Unmarshal(list, &tools); err != nil {
		return err
	}
	var names []string
	for _, t := range tools.Tools {
		names = append(names, t.Name)
	}
	fmt.Printf("agent: my tools are %s\n", strings.Join(names, ", "))
	for _, s := range script {
		fmt.Printf("agent: %s\nagent: I call %s %s\n", s.Say, s.Tool, s.Arguments)
		result, err := c.ask("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, s.Tool, s.Arguments))
		if err != nil {
			fmt.Printf("agent: I read an error: %v\n", err)
			continue
		}
		fmt.Printf("agent: I read: %s\n", words(result))
	}
	return nil
}

// look shows what the sandbox has of the outside.
func look() {
	b, err := os.ReadFile("/proc/net/dev")
	if err != nil {
		return
	}
	var up []string
	for _, line := range strings.Split(string(b), "\n") {
		if name, _, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			up = append(up, name)
		}
	}
	fmt.Printf("agent: my network interfaces are %s; I am uid %d\n", strings.Join(up, ", "), os.Getuid())
}

// words is the text of a CallToolResult, as a model reads it.
func words(result json.RawMessage) string {
	var r struct {
		IsError bool
		Content []struct{ Text string }
	}
	if err := json.Unmarshal(result, &r); err != nil {
		return string(result)
	}
	var out []string
	if r.IsError {
		out = append(out, "(failed)")
	}
	for _, c := range r.Content {
		out = append(out, c.Text)
	}
	return strings.Join(out, " ")
}

type client struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	id  int
}

func start() (*client, error) {
	c := &client{cmd: exec.Command("/run/sallyport/in/bin/sallyport-guest", "shim")} //nolint:noctx // ends with its standard input
	c.cmd.Stderr = os.Stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReaderSize(out, 1<<20)
	return c, c.cmd.Start()
}

func (c *client) send(line string) error {
	_, err := io.WriteString(c.in, line+"\n")
	return err
}

func (c *client) ask(method, params string) (json.RawMessage, error) {
	c.id++
	if err := c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, c.id, method, params)); err != nil {
		return nil, err
	}
	for {
		line, err := c.out.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		var m struct {
			ID     *int
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		if err := json.Unmarshal(line, &m); err != nil {
			return nil, err
		}
		if m.ID == nil || *m.ID != c.id {
			continue
		}
		if m.Error != nil {
			return nil, fmt.Errorf("%s", m.Error.Message)
		}
		return m.Result, nil
	}
}

func (c *client) end() {
	c.in.Close()
	if err := c.cmd.Wait(); err != nil {
		fmt.Fprintln(os.Stderr, "demo-agent: the MCP server:", err)
	}
}
