// Talks to an MCP server as a user of the official Go SDK would, in each revision that the SDK
// speaks, and says what held.
//
//	client URL                     over Streamable HTTP
//	client 'COMMAND ...'           over stdio; the command is run by sh
//	client --mode 2026-07-28 ...   this revision only
//
// One line per check, `ok - NAME` or `not ok - NAME: why`; last line `N passed, N failed`; exit 1
// when one failed. The server is to be the everything server, with lists of several pages.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const stateless = "2026-07-28"

// peer is one connection and what the server sent on it unasked.
type peer struct {
	*mcp.ClientSession
	version   string
	isHTTP    bool
	progress  chan *mcp.ProgressNotificationParams
	logged    chan *mcp.LoggingMessageParams
	changed   chan string
	updated   chan string
	listening chan struct{}
}

func newPeer(version, target string) *peer {
	return &peer{
		version: version, isHTTP: isURL(target),
		progress:  make(chan *mcp.ProgressNotificationParams, 100),
		logged:    make(chan *mcp.LoggingMessageParams, 100),
		changed:   make(chan string, 100),
		updated:   make(chan string, 100),
		listening: make(chan struct{}, 100),
	}
}

func (p *peer) modern() bool { return p.version >= stateless }

func isURL(target string) bool { return strings.HasPrefix(target, "http") }

func (p *peer) connect(ctx context.Context, target string) error {
	// These take the place of the SDK's own, which have the roots.
	capabilities := &mcp.ClientCapabilities{RootsV2: &mcp.RootCapabilities{ListChanged: true}}
	capabilities.AddExtension("io.modelcontextprotocol/ui",
		map[string]any{"mimeTypes": []string{viewType}})
	client := mcp.NewClient(
		&mcp.Implementation{Name: "erlmcp-interop", Version: "1.0.0"},
		&mcp.ClientOptions{
			Capabilities:         capabilities,
			CreateMessageHandler: p.sample,
			ElicitationHandler:   p.elicit,
			ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {
				p.changed <- "tools"
			},
			PromptListChangedHandler: func(context.Context, *mcp.PromptListChangedRequest) {
				p.changed <- "prompts"
			},
			ResourceUpdatedHandler: func(
				_ context.Context, req *mcp.ResourceUpdatedNotificationRequest) {
				p.updated <- req.Params.URI
			},
			LoggingMessageHandler: func(_ context.Context, req *mcp.LoggingMessageRequest) {
				p.logged <- req.Params
			},
			ProgressNotificationHandler: func(
				_ context.Context, req *mcp.ProgressNotificationClientRequest) {
				p.progress <- req.Params
			},
		})
	client.AddRoots(&mcp.Root{URI: "file:///work", Name: "work"})
	// The SDK does not wait for the acknowledgement of a subscription; a check has to.
	client.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if method == "notifications/subscriptions/acknowledged" {
				p.listening <- struct{}{}
			}
			return next(ctx, method, req)
		}
	})
	var transport mcp.Transport
	if p.isHTTP {
		transport = &mcp.StreamableClientTransport{Endpoint: target}
	} else {
		transport = &mcp.CommandTransport{Command: exec.Command("sh", "-c", "exec "+target)}
	}
	options := &mcp.ClientSessionOptions{ProtocolVersion: p.version}
	session, err := client.Connect(ctx, transport, options)
	p.ClientSession = session
	return err
}

func (p *peer) sample(
	_ context.Context, req *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
	asked, ok := req.Params.Messages[0].Content.(*mcp.TextContent)
	if !ok {
		return nil, fmt.Errorf("asked with %T", req.Params.Messages[0].Content)
	}
	text := fmt.Sprintf("%s, in %d tokens", asked.Text, req.Params.MaxTokens)
	return &mcp.CreateMessageResult{
		Content: &mcp.TextContent{Text: text}, Model: "none", Role: "assistant",
	}, nil
}

func (p *peer) elicit(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	content := map[string]any{}
	switch {
	case strings.HasPrefix(req.Params.Message, "Step 2"):
		content["color"] = "green"
	case strings.Contains(req.Params.Message, "name?"):
		content["name"] = "Ada"
	default:
		return &mcp.ElicitResult{Action: "decline"}, nil
	}
	return &mcp.ElicitResult{Action: "accept", Content: content}, nil
}

func (p *peer) call(ctx context.Context, name string, arguments any) (*mcp.CallToolResult, error) {
	return p.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: arguments})
}

// text calls a tool that answers with one text.
func (p *peer) text(ctx context.Context, name string, arguments any) (string, error) {
	result, err := p.call(ctx, name, arguments)
	if err != nil {
		return "", err
	}
	if len(result.Content) != 1 {
		return "", fmt.Errorf("%d contents", len(result.Content))
	}
	text, ok := result.Content[0].(*mcp.TextContent)
	if !ok {
		return "", fmt.Errorf("content %T", result.Content[0])
	}
	return text.Text, nil
}

// says holds when the tool answers with this text.
func (p *peer) says(ctx context.Context, expected, name string, arguments any) error {
	text, err := p.text(ctx, name, arguments)
	if err != nil {
		return err
	}
	return equal(text, expected)
}

func (p *peer) greeted(r *report) {
	r.check("negotiates "+p.version, func(context.Context) error {
		return equal(p.InitializeResult().ProtocolVersion, p.version)
	})
	r.check("learns who the server is", func(context.Context) error {
		info := p.InitializeResult().ServerInfo
		return holds(info != nil && info.Name == "everything" && info.Version != "", "%v", info)
	})
	r.check("learns what the server offers", func(context.Context) error {
		offered := p.InitializeResult().Capabilities
		return holds(offered.Tools != nil && offered.Tools.ListChanged && offered.Prompts != nil &&
			offered.Prompts.ListChanged && offered.Resources != nil &&
			offered.Resources.Subscribe && offered.Completions != nil,
			"%v", wire(offered))
	})
}

func (p *peer) closesInTime() error {
	start := time.Now()
	// On stdio it is the end of the server that this reports.
	if err := p.Close(); err != nil {
		return err
	}
	// The SDK closes stdin and waits 5 s before it signals.
	took := time.Since(start)
	return holds(took < 4500*time.Millisecond, "after %v", took)
}

func (p *peer) leave(r *report, target string) {
	gone := p.ID()
	r.check("closes", func(ctx context.Context) error {
		late := p.closesInTime()
		// A busy machine may delay the end of one server, but hardly of each.
		for range 2 {
			if late != nil {
				other := newPeer(p.version, target)
				if err := other.connect(ctx, target); err != nil {
					return err
				}
				late = other.closesInTime()
			}
		}
		return late
	})
	if p.isHTTP && !p.modern() {
		r.check("ended its session, which is then unknown", func(ctx context.Context) error {
			ping := strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
			request, err := http.NewRequestWithContext(ctx, "POST", target, ping)
			if err != nil {
				return err
			}
			request.Header.Set("Content-Type", "application/json")
			request.Header.Set("Accept", "application/json, text/event-stream")
			request.Header.Set("Mcp-Session-Id", gone)
			request.Header.Set("Mcp-Protocol-Version", p.version)
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return err
			}
			response.Body.Close()
			return equal(response.StatusCode, 404)
		})
	}
}

func visit(r *report, target, version string) {
	p := newPeer(version, target)
	transport := "stdio"
	if p.isHTTP {
		transport = "http"
	}
	r.label = fmt.Sprintf("go %s %s", version, transport)
	connected := r.check("connects", func(ctx context.Context) error {
		return p.connect(ctx, target)
	})
	if !connected {
		return
	}
	p.greeted(r)
	p.tools(r)
	p.resources(r)
	p.prompts(r)
	p.notifications(r)
	p.questions(r)
	// A tool has no _meta before.
	if p.version >= "2025-06-18" {
		p.apps(r)
	}
	// Elsewhere the server lets no connection go.
	if p.isHTTP && p.version == "2025-11-25" {
		r.check("comes back for the answer of a call", func(ctx context.Context) error {
			return p.says(ctx, "The client came back for this.", "test_reconnection", nil)
		})
	}
	if !p.modern() {
		r.check("pings", func(ctx context.Context) error { return p.Ping(ctx, nil) })
	}
	p.leave(r, target)
}

func main() {
	versions := mcp.SupportedProtocolVersions()
	args := os.Args[1:]
	if len(args) > 2 && args[0] == "--mode" && slices.Contains(versions, args[1]) {
		versions, args = args[1:2], args[2:]
	}
	if len(args) != 1 {
		fmt.Fprintf(os.Stderr, "client [--mode %s] URL | COMMAND\n", strings.Join(versions, "|"))
		os.Exit(2)
	}
	r := &report{}
	for _, version := range versions {
		visit(r, args[0], version)
	}
	r.end()
}
