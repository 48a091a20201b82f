// The catalogue, served by the official Go SDK.
//
//	server           on stdio
//	server --http    over HTTP on a free port, whose URL is the first line of stdout
//
// CATALOGUE names the file of what is served.
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
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const counterURI = "note://counter"

type catalogue struct {
	Server            *mcp.Implementation
	Instructions      string
	PageSize          int
	Tools             []*mcp.Tool
	Added             *mcp.Tool
	Resources         []*mcp.Resource
	ResourceTemplates []*mcp.ResourceTemplate
	Prompts           []*mcp.Prompt
	Names             []string
	Text              string
}

type arguments struct {
	A, B         float64
	Text, Region string
	Steps        int
}

type shelf struct {
	catalogue
	server  *mcp.Server
	counter atomic.Int64
	added   atomic.Bool
}

func say(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

// ask asks by its result; the SDK asks the clients of older revisions itself, and calls again.
func ask(req *mcp.CallToolRequest, question mcp.InputRequest,
	answer func(mcp.InputResponse) (string, error)) (*mcp.CallToolResult, error) {
	response, answered := req.Params.InputResponses["it"]
	if !answered {
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"it": question}}, nil
	}
	text, err := answer(response)
	if err != nil {
		return nil, err
	}
	return say(text), nil
}

func elicited(response mcp.InputResponse) (string, error) {
	result, ok := response.(*mcp.ElicitResult)
	if !ok {
		return "", fmt.Errorf("answered with %T", response)
	}
	if name, named := result.Content["name"].(string); named && result.Action == "accept" {
		return "Hello, " + name, nil
	}
	return result.Action, nil
}

func sampled(response mcp.InputResponse) (string, error) {
	switch result := response.(type) {
	case *mcp.CreateMessageResult:
		return textOf(result.Content)
	case *mcp.CreateMessageWithToolsResult:
		return textOf(result.Content[0])
	}
	return "", fmt.Errorf("answered with %T", response)
}

func textOf(content mcp.Content) (string, error) {
	text, ok := content.(*mcp.TextContent)
	if !ok {
		return "", fmt.Errorf("said %T", content)
	}
	return text.Text, nil
}

func listed(response mcp.InputResponse) (string, error) {
	result, ok := response.(*mcp.ListRootsResult)
	if !ok {
		return "", fmt.Errorf("answered with %T", response)
	}
	var uris []string
	for _, root := range result.Roots {
		uris = append(uris, root.URI)
	}
	return strings.Join(uris, " "), nil
}

func (s *shelf) call(
	ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	var given arguments
	if len(req.Params.Arguments) > 0 {
		if err := json.Unmarshal(req.Params.Arguments, &given); err != nil {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
		}
	}
	switch req.Params.Name {
	case "add":
		sum := map[string]any{"sum": given.A + given.B}
		text, err := json.Marshal(sum)
		result := say(string(text))
		result.StructuredContent = sum
		return result, err
	case "added":
		return say("here"), nil
	case "ask":
		return ask(req, &mcp.ElicitParams{Message: "Who is there?", RequestedSchema: map[string]any{
			"type":       "object",
			"properties": map[string]any{"name": map[string]any{"type": "string"}},
			"required":   []string{"name"},
		}}, elicited)
	case "ask_url":
		return ask(req, &mcp.ElicitParams{Mode: "url", Message: "Look there",
			URL: "https://example.com/page", ElicitationID: "page"}, elicited)
	case "change":
		if s.added.CompareAndSwap(false, true) {
			s.server.AddTool(s.Added, s.call)
			return say("added"), nil
		}
		s.added.Store(false)
		s.server.RemoveTools(s.Added.Name)
		return say("removed"), nil
	case "echo":
		return say(given.Text), nil
	case "fail":
		result := say("It failed.")
		result.IsError = true
		return result, nil
	case "logs":
		for _, level := range []mcp.LoggingLevel{"debug", "info", "error"} {
			err := req.Session.Log(ctx, &mcp.LoggingMessageParams{
				Level: level, Data: "at " + string(level), Logger: "catalogue"})
			if err != nil {
				return nil, err
			}
		}
		return say("logged"), nil
	case "region":
		return say(given.Region), nil
	case "roots":
		return ask(req, &mcp.ListRootsParams{}, listed)
	case "sample":
		return ask(req, &mcp.CreateMessageParams{MaxTokens: 100, Messages: []*mcp.SamplingMessage{
			{Role: "user", Content: &mcp.TextContent{Text: "Say something"}}}}, sampled)
	case "slow":
		return s.slow(ctx, req, given.Steps)
	case "touch":
		counter := s.counter.Add(1)
		err := s.server.ResourceUpdated(
			ctx, &mcp.ResourceUpdatedNotificationParams{URI: counterURI})
		return say(strconv.FormatInt(counter, 10)), err
	}
	return nil, &jsonrpc.Error{
		Code: jsonrpc.CodeInvalidParams, Message: "no tool " + req.Params.Name}
}

func (s *shelf) slow(
	ctx context.Context, req *mcp.CallToolRequest, steps int) (*mcp.CallToolResult, error) {
	token := req.Params.GetProgressToken()
	for step := 1; step <= steps; step++ {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		if token == nil {
			continue
		}
		err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token, Progress: float64(step), Total: float64(steps)})
		if err != nil {
			return nil, err
		}
	}
	return say(fmt.Sprintf("%d steps", steps)), nil
}

func (s *shelf) read(
	_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	uri := req.Params.URI
	contents := &mcp.ResourceContents{URI: uri, MIMEType: "text/plain"}
	item, isItem := strings.CutPrefix(uri, "note://item/")
	switch {
	case isItem:
		contents.Text = "item " + item
	case uri == "note://text":
		contents.Text = s.Text
	case uri == counterURI:
		contents.Text = strconv.FormatInt(s.counter.Load(), 10)
	case uri == "note://blob":
		contents.MIMEType = "application/octet-stream"
		for each := range 256 {
			contents.Blob = append(contents.Blob, byte(each))
		}
	default:
		return nil, mcp.ResourceNotFoundError(uri)
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{contents}}, nil
}

func (s *shelf) prompt(
	_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	text := fmt.Sprintf("Greet %s.", req.Params.Arguments["name"])
	return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{
		{Role: "user", Content: &mcp.TextContent{Text: text}}}}, nil
}

func (s *shelf) complete(
	_ context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	values := slices.DeleteFunc(slices.Clone(s.Names), func(name string) bool {
		return !strings.HasPrefix(name, req.Params.Argument.Value)
	})
	return &mcp.CompleteResult{
		Completion: mcp.CompletionResultDetails{Values: values, Total: len(values)}}, nil
}

func main() {
	file, err := os.ReadFile(os.Getenv("CATALOGUE"))
	if err != nil {
		log.Fatal(err)
	}
	s := &shelf{}
	if err := json.Unmarshal(file, &s.catalogue); err != nil {
		log.Fatal(err)
	}
	s.server = mcp.NewServer(s.Server, &mcp.ServerOptions{
		Instructions: s.Instructions, PageSize: s.PageSize, CompletionHandler: s.complete,
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
	})
	for _, tool := range s.Tools {
		s.server.AddTool(tool, s.call)
	}
	for _, resource := range s.Resources {
		s.server.AddResource(resource, s.read)
	}
	for _, template := range s.ResourceTemplates {
		s.server.AddResourceTemplate(template, s.read)
	}
	for _, prompt := range s.Prompts {
		s.server.AddPrompt(prompt, s.prompt)
	}
	if !slices.Contains(os.Args, "--http") {
		if err := s.server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
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
	serve := func(*http.Request) *mcp.Server { return s.server }
	sessions := mcp.NewStreamableHTTPHandler(serve, nil)
	stateless := mcp.NewStreamableHTTPHandler(serve, &mcp.StreamableHTTPOptions{Stateless: true})
	log.Fatal(http.Serve(listener, http.HandlerFunc(
		func(response http.ResponseWriter, request *http.Request) {
			if request.Header.Get("MCP-Protocol-Version") >= "2026-07-28" {
				stateless.ServeHTTP(response, request)
			} else {
				sessions.ServeHTTP(response, request)
			}
		})))
}
