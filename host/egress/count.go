package egress

import (
	"bytes"
	"net/http"
	"strconv"
)

// counter counts what a provider answers, ends a stream whose session's access was withdrawn or whose budget is used up, and reads the token counts
// that providers put into their usage objects. It holds at most a line.
type counter struct {
	http.ResponseWriter
	gateway *Gateway
	usage   *usage
	line    []byte
	in, out int64 // highest counts seen: providers repeat and raise them
}

const maxUsageLine = 64 << 10

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	if c.gateway.off.Load() {
		return 0, http.ErrAbortHandler
	}
	c.usage.decision.BytesIn += int64(len(p))
	c.gateway.bytes.Add(int64(len(p)))
	c.look(p)
	return c.ResponseWriter.Write(p)
}

// Unwrap lets the server flush through.
func (c *counter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *counter) look(p []byte) {
	for len(p) > 0 {
		end := bytes.IndexByte(p, '\n')
		part := p
		if end >= 0 {
			part = p[:end]
			p = p[end+1:]
		} else {
			p = nil
		}
		if len(c.line)+len(part) <= maxUsageLine {
			c.line = append(c.line, part...)
		} else if len(part) <= maxUsageLine {
			// A usage object stands at the end of what carries it.
			c.line = append(c.line[:0], part...)
		} else {
			c.line = append(c.line[:0], part[len(part)-maxUsageLine:]...)
		}
		if end >= 0 {
			c.count()
			c.line = c.line[:0]
		}
	}
}

func (c *counter) count() {
	if !bytes.Contains(c.line, []byte(`"usage"`)) {
		return
	}
	for _, name := range []string{`"input_tokens"`, `"prompt_tokens"`, `"cache_creation_input_tokens"`} {
		c.in = max(c.in, numberAfter(c.line, name))
	}
	for _, name := range []string{`"output_tokens"`, `"completion_tokens"`} {
		c.out = max(c.out, numberAfter(c.line, name))
	}
}

func (c *counter) end() {
	c.count()
	c.usage.decision.Tokens = c.in + c.out
	c.gateway.tokens.Add(c.in + c.out)
}

// numberAfter reads the whole number that follows a member's name, or 0.
func numberAfter(line []byte, name string) int64 {
	at := bytes.LastIndex(line, []byte(name))
	if at < 0 {
		return 0
	}
	rest := bytes.TrimLeft(line[at+len(name):], " :")
	end := 0
	for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
		end++
	}
	n, err := strconv.ParseInt(string(rest[:end]), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
