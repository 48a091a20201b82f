//! The checks, by feature.

#![expect(deprecated, reason = "sessions, roots and logging are so in the newest revision")]

use std::time::{Duration, Instant};

use futures::future::join_all;
use rmcp::model::*;
use rmcp::service::{RoleClient, RunningService};
use rmcp::ServiceError;
use serde_json::{Value, json};

use crate::client::Client;
use crate::report::{Held, Report, holds, lacks_none, of, refused, same};

const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAA\
                   AABJRU5ErkJggg==";
const WAV: &str = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=";
const WATCHED: &str = "test://watched-resource";

pub struct Peer(pub RunningService<RoleClient, Client>);

impl Peer {
    pub fn version(&self) -> &str {
        self.0.service().version.as_str()
    }

    pub fn modern(&self) -> bool {
        self.version() >= "2026-07-28"
    }

    pub async fn call(&self, name: &str, arguments: Value) -> Result<CallToolResult, ServiceError> {
        self.0.call_tool(of(json!({"name": name, "arguments": arguments}))).await
    }

    async fn content(&self, name: &str, expected: Value) -> Held {
        same(self.call(name, json!({})).await?.content, expected)
    }

    async fn says(&self, expected: &str, name: &str, arguments: Value) -> Held {
        let content = self.call(name, arguments).await?.content;
        same(content, json!([{"type": "text", "text": expected}]))
    }

    async fn echoes(&self, text: &str) -> Held {
        self.says(text, "echo", json!({"text": text})).await
    }

    pub async fn greeted(&self, report: &mut Report) {
        let info = self.0.peer_info();
        let info = serde_json::to_value(info.as_deref()).unwrap_or_default();
        let version = format!("negotiates {}", self.version());
        report.check(&version, async {
            same(&info["protocolVersion"], json!(self.version()))
        }).await;
        report.check("learns who the server is", async {
            same(&info["serverInfo"]["name"], json!("everything"))?;
            holds(info["serverInfo"]["version"].is_string(), info.to_string())
        }).await;
        report.check("learns what the server offers", async {
            let offered = &info["capabilities"];
            for pointer in ["/tools/listChanged", "/prompts/listChanged", "/resources/subscribe"] {
                holds(offered.pointer(pointer) == Some(&json!(true)), offered.to_string())?;
            }
            // It is not in the types of a revision that has no name for it.
            holds(self.version() < "2025-03-26" || offered["completions"].is_object(),
                  offered.to_string())
        }).await;
    }

    pub async fn tools(&self, report: &mut Report) {
        report.check("lists the fixture tools, page by page", async {
            let first = self.0.list_tools(None).await?;
            holds(first.next_cursor.is_some(), "the first page is the last one")?;
            let all = self.0.list_all_tools().await?;
            let names: Vec<_> = all.iter().map(|tool| tool.name.to_string()).collect();
            lacks_none(&names, &[
                "echo", "slow_tool", "test_simple_text", "test_image_content",
                "test_audio_content", "test_embedded_resource", "test_multiple_content_types",
                "test_error_handling", "test_tool_with_progress", "test_sampling",
                "test_elicitation",
            ])
        }).await;
        let text = "This is a simple text response for testing.";
        report.check("calls a tool without arguments", async {
            let result = self.0.call_tool(of(json!({"name": "test_simple_text"}))).await?;
            same(result.content, json!([{"type": "text", "text": text}]))
        }).await;
        let image = json!({"type": "image", "data": PNG, "mimeType": "image/png"});
        report.check("gets an image",
            self.content("test_image_content", json!([image]))).await;
        if self.version() >= "2025-03-26" {
            report.check("gets audio", self.content("test_audio_content",
                json!([{"type": "audio", "data": WAV, "mimeType": "audio/wav"}]))).await;
        } else {
            let text = "[audio content, which this protocol version does not have]";
            report.check("gets text in place of audio",
                self.says(text, "test_audio_content", json!({}))).await;
        }
        report.check("gets an embedded resource", self.content("test_embedded_resource", json!([{
            "type": "resource",
            "resource": {
                "uri": "test://embedded-resource", "mimeType": "text/plain",
                "text": "This is an embedded resource content.",
            },
        }]))).await;
        if self.version() >= "2025-06-18" {
            report.check("gets a link to a resource", self.content("resource_link", json!([{
                "type": "resource_link", "uri": "test://static-text", "name": "static-text",
                "mimeType": "text/plain",
            }]))).await;
            report.check("gets structured content", async {
                let result = self.call("system_info", json!({})).await?;
                about_the_node(&result.structured_content.unwrap_or_default())
            }).await;
        } else {
            report.check("gets text in place of a link",
                self.says("static-text: test://static-text", "resource_link", json!({}))).await;
            report.check("gets text in place of structured content", async {
                let result = self.call("system_info", json!({})).await?;
                holds(result.structured_content.is_none(), "it is structured")?;
                let content = serde_json::to_value(result.content)?;
                about_the_node(&serde_json::from_str(
                    content[0]["text"].as_str().unwrap_or_default())?)
            }).await;
        }
        report.check("gets several kinds of content in order",
            self.content("test_multiple_content_types", json!([
                {"type": "text", "text": "Multiple content types test:"},
                image,
                {"type": "resource", "resource": {
                    "uri": "test://mixed-content-resource", "mimeType": "application/json",
                    "text": "{\"test\":\"data\",\"value\":123}",
                }},
            ]))).await;
        report.check("gets the error of a tool as a result", async {
            let result = self.call("test_error_handling", json!({})).await?;
            holds(result.is_error == Some(true), "isError is not true")?;
            let text = "This tool intentionally returns an error for testing";
            same(result.content, json!([{"type": "text", "text": text}]))
        }).await;
        report.check("is refused an unknown tool with -32602", async {
            refused(-32602, self.call("no_such_tool", json!({})).await).map(drop)
        }).await;
        report.check("sees progress before the result", self.sees_progress()).await;
        report.check("gets back every character it sent",
            self.echoes("a\"\\/\n\t\u{1}\u{7f} é 漢字 \u{1f40e} </script> \u{2028}")).await;
        report.check("gets back 300,000 characters", async {
            self.echoes(&"x".repeat(300_000)).await
        }).await;
        report.check("makes 20 calls at once, each with its own answer", async {
            let texts: Vec<_> = (0..20).map(|n| format!("text {n}")).collect();
            let calls = texts.iter().map(|text| self.echoes(text));
            join_all(calls).await.into_iter().collect::<Held>()
        }).await;
        report.check("cancels a slow call and goes on", async {
            let start = Instant::now();
            let slow = self.call("slow_tool", json!({"ms": 10_000}));
            // The SDK cancels a call that is let go of.
            let outcome = tokio::time::timeout(Duration::from_millis(300), slow).await;
            holds(outcome.is_err(), format!("the call ended: {outcome:?}"))?;
            self.echoes("after").await?;
            holds(start.elapsed() < Duration::from_secs(8), "the next call was slow")
        }).await;
        report.check("learns what is wrong with its arguments", async {
            let outcome = self.call("add", json!({"a": 1, "b": "two"})).await;
            // Before 2025-11-25 it is an error of the protocol.
            if self.version() < "2025-11-25" {
                return refused(-32602, outcome).map(drop);
            }
            let result = outcome?;
            holds(result.is_error == Some(true), "isError is not true")?;
            let content = serde_json::to_string(&result.content)?;
            holds(content.contains("/b must be a number"), content)
        }).await;
    }

    async fn sees_progress(&self) -> Held {
        let call = self.call("test_tool_with_progress", json!({}));
        tokio::pin!(call);
        let next = || self.0.service().progress.next();
        // It is sent 150 ms before the result: it must not be held back.
        let first = tokio::select! {
            biased;
            outcome = &mut call => return Err(format!("at first came {outcome:?}").into()),
            first = next() => first,
        };
        call.await?;
        for (got, expected) in [(first, 0.0), (next().await, 50.0), (next().await, 100.0)] {
            let fits = got.progress == expected && got.total == Some(100.0);
            holds(fits, format!("got {got:?}, expected {expected} of 100"))?;
        }
        Ok(())
    }

    pub async fn resources(&self, report: &mut Report) {
        let read = async |uri: &str| self.0.read_resource(of(json!({"uri": uri}))).await;
        report.check("lists the fixture resources", async {
            let all = self.0.list_all_resources().await?;
            let uris: Vec<_> = all.iter().map(|resource| resource.uri.clone()).collect();
            lacks_none(&uris, &["test://static-text", "test://static-binary", WATCHED])
        }).await;
        report.check("lists the resource template", async {
            let all = self.0.list_all_resource_templates().await?;
            let uris: Vec<_> = all.iter().map(|template| template.uri_template.clone()).collect();
            lacks_none(&uris, &["test://template/{id}/data"])
        }).await;
        report.check("reads text", async {
            same(read("test://static-text").await?.contents, json!([{
                "uri": "test://static-text", "mimeType": "text/plain",
                "text": "This is the content of the static text resource.",
            }]))
        }).await;
        report.check("reads bytes", async {
            same(read("test://static-binary").await?.contents, json!([
                {"uri": "test://static-binary", "mimeType": "image/png", "blob": PNG},
            ]))
        }).await;
        report.check("reads what a template describes", async {
            let uri = "test://template/123/data";
            let contents = serde_json::to_value(read(uri).await?.contents)?;
            same(&contents[0]["uri"], json!(uri))?;
            let text = contents[0]["text"].as_str().unwrap_or_default();
            same(serde_json::from_str::<Value>(text)?,
                 json!({"id": "123", "templateTest": true, "data": "Data for ID: 123"}))
        }).await;
        report.check("is refused an unknown resource with its URI", async {
            let uri = "test://no-such-resource";
            let code = if self.modern() { -32602 } else { -32002 };
            same(&refused(code, read(uri).await)?["uri"], json!(uri))
        }).await;
    }

    pub async fn prompts(&self, report: &mut Report) {
        let get = async |name: &str, arguments: Value| {
            self.0.get_prompt(of(json!({"name": name, "arguments": arguments}))).await
        };
        let text = |text: &str| json!({"role": "user", "content": {"type": "text", "text": text}});
        report.check("lists the fixture prompts", async {
            let all = self.0.list_all_prompts().await?;
            let names: Vec<_> = all.iter().map(|prompt| prompt.name.clone()).collect();
            lacks_none(&names, &[
                "test_simple_prompt", "test_prompt_with_arguments",
                "test_prompt_with_embedded_resource", "test_prompt_with_image",
            ])
        }).await;
        report.check("gets a prompt", async {
            same(get("test_simple_prompt", json!({})).await?.messages,
                 json!([text("This is a simple prompt for testing.")]))
        }).await;
        report.check("gets a prompt with arguments", async {
            let arguments = json!({"arg1": "one", "arg2": "two"});
            same(get("test_prompt_with_arguments", arguments).await?.messages,
                 json!([text("Prompt with arguments: arg1='one', arg2='two'")]))
        }).await;
        report.check("gets a prompt with an image", async {
            same(get("test_prompt_with_image", json!({})).await?.messages, json!([
                {"role": "user",
                 "content": {"type": "image", "data": PNG, "mimeType": "image/png"}},
                text("Please analyze the image above."),
            ]))
        }).await;
        report.check("is refused an unknown prompt with -32602", async {
            refused(-32602, get("no_such_prompt", json!({})).await).map(drop)
        }).await;
        report.check("is refused a prompt without its arguments with -32602", async {
            refused(-32602, get("test_prompt_with_arguments", json!({})).await).map(drop)
        }).await;
        report.check("completes a prompt's argument", async {
            let found = self.0
                .complete_prompt_argument("test_prompt_with_arguments", "arg1", "te", None).await?;
            same(found.values, json!(["test", "testing"]))
        }).await;
    }

    pub async fn notifications(&self, report: &mut Report) {
        report.check("gets log messages while a call runs", async {
            let mut params = json!({"name": "test_tool_with_logging"});
            if self.modern() {
                params["_meta"] = json!({"io.modelcontextprotocol/logLevel": "info"});
            } else {
                self.0.set_level(of(json!({"level": "info"}))).await?;
            }
            self.0.call_tool(of(params)).await?;
            for text in
                ["Tool execution started", "Tool processing data", "Tool execution completed"]
            {
                let message = self.0.service().logged.next().await;
                same(message, json!({"level": "info", "data": text}))?;
            }
            Ok(())
        }).await;
        if self.modern() {
            self.listens(report).await;
        } else {
            self.subscribes(report).await;
        }
    }

    /// What a server sends unasked, in a subscription without a session.
    async fn listens(&self, report: &mut Report) {
        for (kind, method, tool, filter) in [
            ("the list of tools", "notifications/tools/list_changed", "test_trigger_tool_change",
             json!({"toolsListChanged": true})),
            ("the list of prompts", "notifications/prompts/list_changed",
             "test_trigger_prompt_change", json!({"promptsListChanged": true})),
            ("a resource it watches", "notifications/resources/updated", "touch_watched",
             json!({"resourceSubscriptions": [WATCHED]})),
        ] {
            report.check(&format!("hears that {kind} changed"), async {
                let mut subscription = self.0.listen(of(filter)).await?;
                self.call(tool, json!({})).await?;
                let heard = serde_json::to_value(subscription.next().await?)?;
                same(&heard["method"], json!(method))?;
                if method.ends_with("updated") {
                    same(&heard["params"]["uri"], json!(WATCHED))?;
                }
                subscription.cancel().await?;
                Ok(())
            }).await;
        }
    }

    /// The same in a session.
    async fn subscribes(&self, report: &mut Report) {
        let heard = self.0.service();
        for (kind, tool) in
            [("tools", "test_trigger_tool_change"), ("prompts", "test_trigger_prompt_change")]
        {
            report.check(&format!("hears that the list of {kind} changed"), async {
                self.call(tool, json!({})).await?;
                while heard.changed.next().await != kind {}
                Ok(())
            }).await;
        }
        report.check("hears that a resource it watches changed", async {
            self.0.subscribe(of(json!({"uri": WATCHED}))).await?;
            self.call("touch_watched", json!({})).await?;
            same(heard.updated.next().await, json!(WATCHED))
        }).await;
        report.check("hears no more of it once it has unsubscribed", async {
            self.0.unsubscribe(of(json!({"uri": WATCHED}))).await?;
            heard.changed.drain().await;
            self.call("touch_watched", json!({})).await?;
            self.call("test_trigger_tool_change", json!({})).await?;
            // What is told later comes later, in the same stream.
            heard.changed.next().await;
            holds(heard.updated.drain().await == 0, "it heard of a change")
        }).await;
    }

    /// What a call asks of the client: by a request in a session, else by its result.
    pub async fn questions(&self, report: &mut Report) {
        report.check("answers a call's question to its model",
            self.says("LLM response: Hello?, in 100 tokens", "test_sampling",
                      json!({"prompt": "Hello?"}))).await;
        report.check("answers a call's question for its roots",
            self.says("file:///work\n", "test_input_required_result_list_roots", json!({}))).await;
        if self.version() < "2025-06-18" {
            return;
        }
        report.check("answers a call's two forms",
            self.says("Ada likes green", "test_input_required_result_multi_round",
                      json!({}))).await;
        report.check("declines a form",
            self.says("User response: action=decline, content={}", "test_elicitation",
                      json!({"message": "Who?"}))).await;
        report.check("answers three questions of a call at once",
            self.says("Generate a greeting, in 50 tokens Ada of 1 roots",
                      "test_input_required_result_multiple_inputs", json!({}))).await;
    }

    /// Its stream is closed by the server, which in other revisions, and on stdio, lets none go.
    pub async fn comes_back(&self, report: &mut Report) {
        if self.version() == "2025-11-25" {
            report.check("comes back for the answer of a call",
                self.says("The client came back for this.", "test_reconnection", json!({}))).await;
        }
    }

    pub async fn pings(&self, report: &mut Report) {
        if !self.modern() {
            report.check("pings", async {
                let ping = ClientRequest::PingRequest(Default::default());
                self.0.send_request(ping).await?;
                Ok(())
            }).await;
        }
    }
}

fn about_the_node(info: &Value) -> Held {
    holds(info["otp_release"].is_string(), format!("got {info}"))
}
