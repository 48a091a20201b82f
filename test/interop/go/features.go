package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU" +
		"5ErkJggg=="
	wav = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="

	viewType = "text/html;profile=mcp-app"
)

// named collects the names of a list, over all of its pages.
func named[T any](items iter.Seq2[T, error], name func(T) string) ([]string, error) {
	var names []string
	for item, err := range items {
		if err != nil {
			return nil, err
		}
		names = append(names, name(item))
	}
	return names, nil
}

func (p *peer) tools(r *report) {
	r.check("lists the fixture tools, page by page", func(ctx context.Context) error {
		first, err := p.ListTools(ctx, &mcp.ListToolsParams{})
		if err != nil {
			return err
		}
		if first.NextCursor == "" {
			return errors.New("the first page is the last one")
		}
		all := p.Tools(ctx, nil)
		names, err := named(all, func(tool *mcp.Tool) string { return tool.Name })
		if err != nil {
			return err
		}
		return lacks("tool", names, []string{
			"echo", "slow_tool", "test_simple_text", "test_image_content", "test_audio_content",
			"test_embedded_resource", "test_multiple_content_types", "test_error_handling",
			"test_tool_with_progress", "test_sampling", "test_elicitation",
		})
	})
	content := func(name, expected string) func(context.Context) error {
		return func(ctx context.Context) error {
			result, err := p.call(ctx, name, nil)
			if err != nil {
				return err
			}
			return same(result.Content, expected)
		}
	}
	r.check("calls a tool without arguments", content("test_simple_text",
		`[{"type": "text", "text": "This is a simple text response for testing."}]`))
	r.check("gets an image", content("test_image_content",
		`[{"type": "image", "data": "`+png+`", "mimeType": "image/png"}]`))
	if p.version >= "2025-03-26" {
		r.check("gets audio", content("test_audio_content",
			`[{"type": "audio", "data": "`+wav+`", "mimeType": "audio/wav"}]`))
	} else {
		r.check("gets text in place of audio", content("test_audio_content",
			`[{"type": "text",
			   "text": "[audio content, which this protocol version does not have]"}]`))
	}
	r.check("gets an embedded resource", content("test_embedded_resource",
		`[{"type": "resource", "resource": {"uri": "test://embedded-resource",
		   "mimeType": "text/plain", "text": "This is an embedded resource content."}}]`))
	if p.version >= "2025-06-18" {
		r.check("gets a link to a resource", content("resource_link",
			`[{"type": "resource_link", "uri": "test://static-text", "name": "static-text",
			   "mimeType": "text/plain"}]`))
		r.check("gets structured content", p.getsStructured)
	} else {
		r.check("gets text in place of a link", content("resource_link",
			`[{"type": "text", "text": "static-text: test://static-text"}]`))
		r.check("gets text in place of structured content", p.getsStructuredAsText)
	}
	r.check("gets several kinds of content in order", content("test_multiple_content_types",
		`[{"type": "text", "text": "Multiple content types test:"},
		  {"type": "image", "data": "`+png+`", "mimeType": "image/png"},
		  {"type": "resource", "resource": {"uri": "test://mixed-content-resource",
		   "mimeType": "application/json", "text": "{\"test\":\"data\",\"value\":123}"}}]`))
	r.check("gets the error of a tool as a result", func(ctx context.Context) error {
		result, err := p.call(ctx, "test_error_handling", nil)
		if err != nil {
			return err
		}
		if !result.IsError {
			return errors.New("isError is false")
		}
		return same(result.Content, `[{"type": "text",
			"text": "This tool intentionally returns an error for testing"}]`)
	})
	r.check("is refused an unknown tool with -32602", func(ctx context.Context) error {
		_, err := p.call(ctx, "no_such_tool", nil)
		_, err = refused(-32602, err)
		return err
	})
	r.check("sees progress before the result", p.seesProgress)
	r.check("gets back every character it sent", func(ctx context.Context) error {
		text := "a\"\\/\n\t\u0001\u007f é 漢字 \U0001f40e </script> \u2028"
		return p.says(ctx, text, "echo", map[string]any{"text": text})
	})
	r.check("gets back 300,000 characters", func(ctx context.Context) error {
		text := strings.Repeat("x", 300_000)
		return p.says(ctx, text, "echo", map[string]any{"text": text})
	})
	r.check("makes 20 calls at once, each with its own answer", func(ctx context.Context) error {
		outcomes := make(chan error, 20)
		for n := range 20 {
			go func() {
				text := fmt.Sprintf("text %d", n)
				outcomes <- p.says(ctx, text, "echo", map[string]any{"text": text})
			}()
		}
		var all error
		for range 20 {
			all = errors.Join(all, <-outcomes)
		}
		return all
	})
	r.check("cancels a slow call and goes on", func(ctx context.Context) error {
		slow, cancel := context.WithCancel(ctx)
		start := time.Now()
		time.AfterFunc(300*time.Millisecond, cancel)
		_, err := p.call(slow, "slow_tool", map[string]any{"ms": 10_000})
		if !errors.Is(err, context.Canceled) {
			return fmt.Errorf("the call ended with %v", err)
		}
		if err := p.says(ctx, "after", "echo", map[string]any{"text": "after"}); err != nil {
			return err
		}
		return holds(time.Since(start) < 8*time.Second, "the next call was slow")
	})
	r.check("learns what is wrong with its arguments", func(ctx context.Context) error {
		result, err := p.call(ctx, "add", map[string]any{"a": 1, "b": "two"})
		// Before 2025-11-25 it is an error of the protocol.
		if p.version < "2025-11-25" {
			_, err = refused(-32602, err)
			return err
		}
		if err != nil {
			return err
		}
		text, ok := result.Content[0].(*mcp.TextContent)
		return holds(result.IsError && ok && strings.Contains(text.Text, "/b must be a number"),
			"%v", wire(result))
	})
}

func (p *peer) getsStructured(ctx context.Context) error {
	result, err := p.call(ctx, "system_info", nil)
	if err != nil {
		return err
	}
	return aboutTheNode(result.StructuredContent)
}

func (p *peer) getsStructuredAsText(ctx context.Context) error {
	text, err := p.text(ctx, "system_info", nil)
	if err != nil {
		return err
	}
	return aboutTheNode(decoded(text))
}

func aboutTheNode(value any) error {
	info, _ := value.(map[string]any)
	release, ok := info["otp_release"].(string)
	return holds(ok && release != "", "got %v", value)
}

func (p *peer) seesProgress(ctx context.Context) error {
	params := &mcp.CallToolParams{Name: "test_tool_with_progress"}
	params.SetProgressToken("go-progress")
	ended := make(chan error, 1)
	go func() {
		_, err := p.CallTool(ctx, params)
		ended <- err
	}()
	for _, expected := range []float64{0, 50, 100} {
		got, err := within(ctx, "progress", p.progress)
		if err != nil {
			return err
		}
		if got.Progress != expected || got.Total != 100 || got.ProgressToken != "go-progress" {
			return fmt.Errorf("got %v, expected %v of 100", wire(got), expected)
		}
		// It is sent 150 ms before the result: it must not be held back.
		select {
		case err := <-ended:
			if expected == 0 {
				return fmt.Errorf("the call had ended before its progress was seen: %v", err)
			}
			ended <- err
		default:
		}
	}
	_, err := within(ctx, "result", ended)
	return err
}

func (p *peer) resources(r *report) {
	read := func(uri, expected string) func(context.Context) error {
		return func(ctx context.Context) error {
			result, err := p.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
			if err != nil {
				return err
			}
			return same(result.Contents, expected)
		}
	}
	r.check("lists the fixture resources", func(ctx context.Context) error {
		all := p.Resources(ctx, nil)
		uris, err := named(all, func(resource *mcp.Resource) string { return resource.URI })
		if err != nil {
			return err
		}
		return lacks("resource", uris, []string{
			"test://static-text", "test://static-binary", "test://watched-resource"})
	})
	r.check("lists the resource template", func(ctx context.Context) error {
		uri := func(template *mcp.ResourceTemplate) string { return template.URITemplate }
		uris, err := named(p.ResourceTemplates(ctx, nil), uri)
		if err != nil {
			return err
		}
		return lacks("template", uris, []string{"test://template/{id}/data"})
	})
	r.check("reads text", read("test://static-text", `[{"uri": "test://static-text",
		"mimeType": "text/plain", "text": "This is the content of the static text resource."}]`))
	r.check("reads bytes", read("test://static-binary", `[{"uri": "test://static-binary",
		"mimeType": "image/png", "blob": "`+png+`"}]`))
	r.check("reads what a template describes", func(ctx context.Context) error {
		uri := "test://template/123/data"
		result, err := p.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
		if err != nil {
			return err
		}
		if len(result.Contents) != 1 || result.Contents[0].URI != uri {
			return fmt.Errorf("%v", wire(result.Contents))
		}
		return same(decoded(result.Contents[0].Text),
			`{"id": "123", "templateTest": true, "data": "Data for ID: 123"}`)
	})
	r.check("is refused an unknown resource with its URI", func(ctx context.Context) error {
		uri := "test://no-such-resource"
		_, err := p.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
		code := int64(-32002)
		if p.modern() {
			code = -32602
		}
		data, err := refused(code, err)
		if err != nil {
			return err
		}
		return equal(data["uri"], uri)
	})
}

func (p *peer) prompts(r *report) {
	get := func(name string, arguments map[string]string) func(
		context.Context) (*mcp.GetPromptResult, error) {
		return func(ctx context.Context) (*mcp.GetPromptResult, error) {
			return p.GetPrompt(ctx, &mcp.GetPromptParams{Name: name, Arguments: arguments})
		}
	}
	r.check("lists the fixture prompts", func(ctx context.Context) error {
		all := p.Prompts(ctx, nil)
		names, err := named(all, func(prompt *mcp.Prompt) string { return prompt.Name })
		if err != nil {
			return err
		}
		return lacks("prompt", names, []string{
			"test_simple_prompt", "test_prompt_with_arguments",
			"test_prompt_with_embedded_resource", "test_prompt_with_image"})
	})
	messages := func(name, expected string, arguments map[string]string) func(
		context.Context) error {
		return func(ctx context.Context) error {
			result, err := get(name, arguments)(ctx)
			if err != nil {
				return err
			}
			return same(result.Messages, expected)
		}
	}
	r.check("gets a prompt", messages("test_simple_prompt", `[{"role": "user",
		"content": {"type": "text", "text": "This is a simple prompt for testing."}}]`, nil))
	r.check("gets a prompt with arguments", messages("test_prompt_with_arguments",
		`[{"role": "user", "content": {"type": "text",
		   "text": "Prompt with arguments: arg1='one', arg2='two'"}}]`,
		map[string]string{"arg1": "one", "arg2": "two"}))
	r.check("gets a prompt with an image", messages("test_prompt_with_image",
		`[{"role": "user", "content": {"type": "image", "data": "`+png+`",
		   "mimeType": "image/png"}},
		  {"role": "user", "content": {"type": "text",
		   "text": "Please analyze the image above."}}]`, nil))
	for name, title := range map[string]string{
		"no_such_prompt":             "is refused an unknown prompt with -32602",
		"test_prompt_with_arguments": "is refused a prompt without its arguments with -32602",
	} {
		r.check(title, func(ctx context.Context) error {
			_, err := get(name, nil)(ctx)
			_, err = refused(-32602, err)
			return err
		})
	}
	r.check("completes a prompt's argument", func(ctx context.Context) error {
		result, err := p.Complete(ctx, &mcp.CompleteParams{
			Ref:      &mcp.CompleteReference{Type: "ref/prompt", Name: "test_prompt_with_arguments"},
			Argument: mcp.CompleteParamsArgument{Name: "arg1", Value: "te"},
		})
		if err != nil {
			return err
		}
		return same(result.Completion.Values, `["test", "testing"]`)
	})
}

func (p *peer) notifications(r *report) {
	r.check("gets log messages while a call runs", func(ctx context.Context) error {
		params := &mcp.CallToolParams{Name: "test_tool_with_logging"}
		if p.modern() {
			params.Meta = mcp.Meta{"io.modelcontextprotocol/logLevel": "info"}
		} else if err := p.SetLoggingLevel(
			ctx, &mcp.SetLoggingLevelParams{Level: "info"}); err != nil {
			return err
		}
		if _, err := p.CallTool(ctx, params); err != nil {
			return err
		}
		for _, text := range []string{
			"Tool execution started", "Tool processing data", "Tool execution completed",
		} {
			message, err := within(ctx, "log message", p.logged)
			if err != nil {
				return err
			}
			if message.Data != text || message.Level != "info" {
				return fmt.Errorf("got %v", wire(message))
			}
		}
		return nil
	})
	for kind, tool := range map[string]string{
		"tools": "test_trigger_tool_change", "prompts": "test_trigger_prompt_change",
	} {
		r.check("hears that the list of "+kind+" changed", func(ctx context.Context) error {
			if _, err := p.call(ctx, tool, nil); err != nil {
				return err
			}
			for {
				heard, err := within(ctx, "notification", p.changed)
				if err != nil || heard == kind {
					return err
				}
			}
		})
	}
	uri := "test://watched-resource"
	r.check("hears that a resource it watches changed", func(ctx context.Context) error {
		for len(p.listening) > 0 {
			<-p.listening
		}
		if err := p.Subscribe(ctx, &mcp.SubscribeParams{URI: uri}); err != nil {
			return err
		}
		if p.modern() {
			if _, err := within(ctx, "acknowledgement", p.listening); err != nil {
				return err
			}
		}
		if _, err := p.call(ctx, "touch_watched", nil); err != nil {
			return err
		}
		heard, err := within(ctx, "notification", p.updated)
		if err != nil {
			return err
		}
		return equal(heard, uri)
	})
	r.check("unsubscribes", func(ctx context.Context) error {
		return p.Unsubscribe(ctx, &mcp.UnsubscribeParams{URI: uri})
	})
	// Without sessions it is the end of a stream, which the SDK does not wait for.
	if p.modern() {
		return
	}
	r.check("hears no more of it then", func(ctx context.Context) error {
		for len(p.changed) > 0 {
			<-p.changed
		}
		for _, tool := range []string{"touch_watched", "test_trigger_tool_change"} {
			if _, err := p.call(ctx, tool, nil); err != nil {
				return err
			}
		}
		// What is told later comes later, in the same stream.
		if _, err := within(ctx, "notification", p.changed); err != nil {
			return err
		}
		return holds(len(p.updated) == 0, "it heard of %d changes", len(p.updated))
	})
}

// questions are what a call asks of the client: by a request in a session, else by its result.
func (p *peer) questions(r *report) {
	r.check("answers a call's question to its model", func(ctx context.Context) error {
		return p.says(ctx, "LLM response: Hello?, in 100 tokens", "test_sampling",
			map[string]any{"prompt": "Hello?"})
	})
	r.check("answers a call's question for its roots", func(ctx context.Context) error {
		return p.says(ctx, "file:///work\n", "test_input_required_result_list_roots", nil)
	})
	if p.version < "2025-06-18" {
		return
	}
	r.check("answers a call's two forms", func(ctx context.Context) error {
		return p.says(ctx, "Ada likes green", "test_input_required_result_multi_round", nil)
	})
	r.check("declines a form", func(ctx context.Context) error {
		return p.says(ctx, "User response: action=decline, content={}", "test_elicitation",
			map[string]any{"message": "Who?"})
	})
	r.check("answers three questions of a call at once", func(ctx context.Context) error {
		return p.says(ctx, "Generate a greeting, in 50 tokens Ada of 1 roots",
			"test_input_required_result_multiple_inputs", nil)
	})
}

// apps is a tool with a view; the SDK only carries what there is to say of it.
func (p *peer) apps(r *report) {
	r.check("gets the view of a tool", func(ctx context.Context) error {
		for tool, err := range p.Tools(ctx, nil) {
			if err != nil {
				return err
			}
			if tool.Name == "clock" {
				return p.showsClock(ctx, tool)
			}
		}
		return errors.New("no tool clock")
	})
}

func (p *peer) showsClock(ctx context.Context, tool *mcp.Tool) error {
	ui, _ := tool.Meta["ui"].(map[string]any)
	uri, ok := ui["resourceUri"].(string)
	if !ok {
		return fmt.Errorf("%v", tool.Meta)
	}
	view, err := p.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
	if err != nil {
		return err
	}
	if err := equal(view.Contents[0].MIMEType, viewType); err != nil {
		return err
	}
	result, err := p.call(ctx, "clock", nil)
	if err != nil {
		return err
	}
	clock, _ := result.StructuredContent.(map[string]any)
	return equal(clock["shown"], true)
}
