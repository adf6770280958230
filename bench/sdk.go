package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// sdkEnv tells a process of this program to be an MCP server made with the official Go SDK: what other proxies were measured with.
const sdkEnv = "SALLYPORT_BENCH_SDK"

type sdkServer struct {
	url   string
	cmd   *exec.Cmd
	stdin io.Closer
}

func startSDK(ctx context.Context) (*sdkServer, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &sdkServer{cmd: exec.CommandContext(ctx, exe)}
	s.cmd.Env = append(os.Environ(), sdkEnv+"=1")
	s.cmd.Stderr = os.Stderr
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the SDK's server did not say where it serves: %w", err), s.close())
	}
	s.url = strings.TrimSpace(line)
	return s, nil
}

func (s *sdkServer) close() error {
	s.stdin.Close() //nolint:errcheck // its end is what ends it
	return s.cmd.Wait()
}

type (
	bigInput struct {
		Bytes int `json:"bytes"`
	}
	issueInput struct {
		Project string `json:"project"`
		Title   string `json:"title"`
	}
)

// serveSDK serves until standard input ends.
func serveSDK() error {
	server := mcp.NewServer(&mcp.Implementation{Name: "sdk", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: readTool, Description: "Returns so many bytes of text."}, func(_ context.Context, _ *mcp.CallToolRequest, in bigInput) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.Repeat("a", in.Bytes)}}}, nil, nil
	})
	mcp.AddTool(server, &mcp.Tool{Name: writeTool, Description: "Creates an issue."}, func(_ context.Context, _ *mcp.CallToolRequest, in issueInput) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "created " + in.Title}}}, nil, nil
	})
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true})
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a moment
	if err != nil {
		return err
	}
	go func() {
		io.Copy(io.Discard, os.Stdin) //nolint:errcheck // its end is what is waited for
		l.Close()
	}()
	fmt.Printf("http://%s/mcp\n", l.Addr())
	err = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { //nolint:gosec // loopback, a measurement
		if r.Header.Get("Authorization") != "Bearer "+secret {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
