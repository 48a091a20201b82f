// The tools of tools.json, served by the official Go SDK.
//
//	server           on stdio
//	server --http    over HTTP on a free port, whose URL is the first line of stdout
//
// TOOLS names the file of the tools.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type arguments struct {
	Text *string
	Ms   *int
}

func call(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	var given arguments
	if err := json.Unmarshal(req.Params.Arguments, &given); err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
	}
	switch {
	case req.Params.Name == "echo" && given.Text != nil:
		return say(*given.Text), nil
	case req.Params.Name == "sleep" && given.Ms != nil:
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Duration(*given.Ms) * time.Millisecond):
			return say("done"), nil
		}
	}
	return nil, &jsonrpc.Error{
		Code: jsonrpc.CodeInvalidParams, Message: "no such tool, or not its arguments"}
}

func say(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

func main() {
	file, err := os.ReadFile(os.Getenv("TOOLS"))
	if err != nil {
		log.Fatal(err)
	}
	var tools []*mcp.Tool
	if err := json.Unmarshal(file, &tools); err != nil {
		log.Fatal(err)
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "go", Version: "1.8.0"}, nil)
	for _, tool := range tools {
		server.AddTool(tool, call)
	}
	if !slices.Contains(os.Args, "--http") {
		if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
			log.Fatal(err)
		}
		return
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("http://%s/mcp\n", listener.Addr())
	// The SDK serves either sessions or the stateless revision at one handler.
	serve := func(*http.Request) *mcp.Server { return server }
	sessions := mcp.NewStreamableHTTPHandler(
		serve, &mcp.StreamableHTTPOptions{JSONResponse: true})
	stateless := mcp.NewStreamableHTTPHandler(
		serve, &mcp.StreamableHTTPOptions{JSONResponse: true, Stateless: true})
	log.Fatal(http.Serve(listener, http.HandlerFunc(
		func(response http.ResponseWriter, request *http.Request) {
			if request.Header.Get("MCP-Protocol-Version") >= "2026-07-28" {
				stateless.ServeHTTP(response, request)
			} else {
				sessions.ServeHTTP(response, request)
			}
		})))
}
