package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
)

// direct is the baseline: an ordinary MCP client of 2026-07-28 that calls the upstream itself, over kept connections.
type direct struct {
	url, secret string
	client      *http.Client
	next        atomic.Int64
}

func newDirect(url, secret string) *direct {
	return &direct{url: url, secret: secret, client: &http.Client{Transport: &http.Transport{
		MaxIdleConns: 256, MaxIdleConnsPerHost: 256, DisableCompression: true,
	}}}
}

func (d *direct) close() { d.client.CloseIdleConnections() }

// call calls a tool and reads its whole answer.
func (d *direct) call(ctx context.Context, tool, arguments string) error {
	id := strconv.FormatInt(d.next.Add(1), 10)
	body := `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + arguments +
		`,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28",
		"Mcp-Method": "tools/call", "Mcp-Name": tool, "Authorization": "Bearer " + d.secret,
	} {
		req.Header.Set(name, value)
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("the upstream answered %s: %s", resp.Status, answer)
	case !bytes.Contains(answer, []byte(`"result":{`)):
		return errors.New("the upstream gave no result: " + string(answer[:min(len(answer), 200)]))
	}
	return nil
}
