package harness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Kind is a harness whose transcript is understood.
type Kind string

// Kinds of harnesses.
const (
	Claude Kind = "claude" // --output-format stream-json --verbose
	Codex  Kind = "codex"  // exec --json
	Pi     Kind = "pi"     // -p --mode json
)

// ToolCall is one call as the harness reports it, with what it gave.
type ToolCall struct {
	ID        string
	Server    string          // "" for a tool of the harness's own
	Tool      string          // without the harness's prefix
	Arguments json.RawMessage // as the harness writes them
	Answered  bool
	Result    string // text blocks joined by line breaks; other blocks as JSON
	IsError   bool
}

// Transcript is a run in the form common to all harnesses.
type Transcript struct {
	Kind     Kind
	Tools    []string          // that the harness says it has; only Claude tells
	Servers  map[string]string // MCP servers and their state; only Claude tells
	Calls    []ToolCall
	Final    string   // the last text of the agent
	Ended    bool     // the harness said that the turn is over
	Errors   []string // what the harness reports as gone wrong
	Noise    []string // lines that are not of its format
	ExitCode int
	Stderr   string
}

// Call returns the nth call (from 0) of a tool, or nil.
func (t *Transcript) Call(tool string, n int) *ToolCall {
	for i := range t.Calls {
		if t.Calls[i].Tool == tool {
			if n == 0 {
				return &t.Calls[i]
			}
			n--
		}
	}
	return nil
}

// Parse reads a whole transcript.
func Parse(kind Kind, output []byte) (*Transcript, error) {
	t := &Transcript{Kind: kind, Servers: map[string]string{}}
	for line := range bytes.Lines(output) {
		if err := t.feed(line); err != nil {
			return t, err
		}
	}
	return t, nil
}

// feed takes one line. Lines that are not JSON objects are noise: wrappers and terminals print such.
func (t *Transcript) feed(line []byte) error {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return nil
	}
	if line[0] != '{' || !json.Valid(line) {
		t.Noise = append(t.Noise, string(line))
		return nil
	}
	switch t.Kind {
	case Claude:
		return t.feedClaude(line)
	case Codex:
		return t.feedCodex(line)
	case Pi:
		return t.feedPi(line)
	}
	return fmt.Errorf("there is no harness %q", t.Kind)
}

// begin notes a call under the name that the harness uses.
func (t *Transcript) begin(id, name string, arguments json.RawMessage) {
	c := ToolCall{ID: id, Tool: name, Arguments: arguments}
	if rest, ok := strings.CutPrefix(name, "mcp__"); ok {
		if server, tool, ok := strings.Cut(rest, "__"); ok {
			c.Server, c.Tool = server, tool
		}
	}
	t.Calls = append(t.Calls, c)
}

// end notes what a call gave.
func (t *Transcript) end(id, result string, isError bool) {
	for i := range t.Calls {
		if c := &t.Calls[i]; c.ID == id && !c.Answered {
			c.Answered, c.Result, c.IsError = true, result, isError
			return
		}
	}
}

// text joins content that is a text or a list of blocks.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var blocks []json.RawMessage
	if json.Unmarshal(raw, &blocks) != nil {
		return string(raw)
	}
	var parts []string
	for _, b := range blocks {
		var block struct{ Type, Text string }
		if json.Unmarshal(b, &block) == nil && block.Type == "text" {
			parts = append(parts, block.Text)
		} else {
			parts = append(parts, string(b))
		}
	}
	return strings.Join(parts, "\n")
}

func (t *Transcript) feedClaude(line []byte) error {
	var e struct {
		Type, Subtype, Result string
		IsError               bool `json:"is_error"`
		Errors                []string
		Tools                 []string
		Servers               []struct{ Name, Status string } `json:"mcp_servers"`
		Message               struct{ Content json.RawMessage }
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return fmt.Errorf("claude's transcript: %w", err)
	}
	switch e.Type {
	case "system":
		if e.Subtype == "init" {
			t.Tools = e.Tools
			for _, s := range e.Servers {
				t.Servers[s.Name] = s.Status
			}
		}
	case "assistant", "user":
		var blocks []struct {
			Type, Text, ID, Name string
			Input, Content       json.RawMessage
			ToolUseID            string `json:"tool_use_id"`
			IsError              bool   `json:"is_error"`
		}
		if json.Unmarshal(e.Message.Content, &blocks) != nil {
			return nil //nolint:nilerr // a plain text of the user
		}
		for _, b := range blocks {
			switch {
			case b.Type == "tool_use":
				t.begin(b.ID, b.Name, b.Input)
			case b.Type == "tool_result":
				t.end(b.ToolUseID, text(b.Content), b.IsError)
			case b.Type == "text" && e.Type == "assistant":
				t.Final = b.Text
			}
		}
	case "result":
		t.Ended = true
		if e.IsError {
			t.Errors = append(t.Errors, append(e.Errors, e.Subtype+": "+e.Result)...)
		} else {
			t.Final = e.Result
		}
	}
	return nil
}

func (t *Transcript) feedCodex(line []byte) error {
	var e struct {
		Type, Message string
		Error         *struct{ Message string }
		Item          struct {
			ID, Type, Text, Message, Status string
			Server, Tool, Command           string
			Arguments                       json.RawMessage
			Result                          *struct{ Content json.RawMessage }
			Error                           *struct{ Message string }
			AggregatedOutput                string `json:"aggregated_output"`
		}
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return fmt.Errorf("codex's transcript: %w", err)
	}
	it := e.Item
	switch e.Type {
	case "error":
		t.Errors = append(t.Errors, e.Message)
	case "turn.failed":
		t.Ended = true
		if e.Error != nil {
			t.Errors = append(t.Errors, e.Error.Message)
		}
	case "turn.completed":
		t.Ended = true
	case "item.started", "item.completed":
		switch it.Type {
		case "mcp_tool_call":
			if t.find(it.ID) == nil {
				t.Calls = append(t.Calls, ToolCall{ID: it.ID, Server: it.Server, Tool: it.Tool, Arguments: it.Arguments})
			}
			if e.Type == "item.completed" {
				result := ""
				if it.Result != nil {
					result = text(it.Result.Content)
				}
				if it.Error != nil {
					result = it.Error.Message
				}
				t.end(it.ID, result, it.Status == "failed" || it.Error != nil)
			}
		case "command_execution":
			if t.find(it.ID) == nil {
				arguments, _ := json.Marshal(it.Command) // a string does not fail
				t.Calls = append(t.Calls, ToolCall{ID: it.ID, Tool: "shell", Arguments: arguments})
			}
			if e.Type == "item.completed" {
				t.end(it.ID, it.AggregatedOutput, it.Status == "failed")
			}
		case "agent_message":
			if e.Type == "item.completed" {
				t.Final = it.Text
			}
		case "error":
			t.Errors = append(t.Errors, it.Message)
		}
	}
	return nil
}

func (t *Transcript) find(id string) *ToolCall {
	for i := range t.Calls {
		if t.Calls[i].ID == id {
			return &t.Calls[i]
		}
	}
	return nil
}

func (t *Transcript) feedPi(line []byte) error {
	var e struct {
		Type       string
		ToolCallID string
		ToolName   string
		Args       json.RawMessage
		Result     struct{ Content json.RawMessage }
		IsError    bool
		Aborted    bool
		Message    struct {
			Role, StopReason, ErrorMessage string
			Content                        json.RawMessage
		}
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return fmt.Errorf("pi's transcript: %w", err)
	}
	switch e.Type {
	case "tool_execution_start":
		t.begin(e.ToolCallID, e.ToolName, e.Args)
	case "tool_execution_end":
		t.end(e.ToolCallID, text(e.Result.Content), e.IsError)
	case "message_end":
		if e.Message.Role != "assistant" {
			return nil
		}
		if e.Message.ErrorMessage != "" {
			t.Errors = append(t.Errors, e.Message.ErrorMessage)
		}
		var blocks []struct{ Type, Text string }
		if json.Unmarshal(e.Message.Content, &blocks) == nil {
			for _, b := range blocks {
				if b.Type == "text" {
					t.Final = b.Text
				}
			}
		}
	case "agent_end":
		t.Ended = true
	}
	return nil
}
