//! What this client answers to the server, and where what it hears goes.

#![expect(deprecated, reason = "sampling, roots and logging are so in the newest revision")]

use rmcp::model::*;
use rmcp::service::{NotificationContext, RequestContext, RoleClient};
use rmcp::{ClientHandler, ErrorData};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::report::of;

pub const VIEW_TYPE: &str = "text/html;profile=mcp-app";

/// The two ends of a queue in one.
pub struct Queue<T>(UnboundedSender<T>, Mutex<UnboundedReceiver<T>>);

impl<T> Queue<T> {
    fn new() -> Self {
        let (sender, receiver) = unbounded_channel();
        Queue(sender, Mutex::new(receiver))
    }

    fn put(&self, value: T) {
        let _ = self.0.send(value);
    }

    pub async fn next(&self) -> T {
        self.1.lock().await.recv().await.expect("the sender is in self")
    }

    /// What came and was not taken.
    pub async fn drain(&self) -> usize {
        let mut receiver = self.1.lock().await;
        std::iter::from_fn(|| receiver.try_recv().ok()).count()
    }
}

pub struct Client {
    pub version: ProtocolVersion,
    pub progress: Queue<ProgressNotificationParam>,
    pub logged: Queue<LoggingMessageNotificationParam>,
    pub changed: Queue<&'static str>,
    pub updated: Queue<String>,
}

impl Client {
    pub fn new(version: ProtocolVersion) -> Self {
        Client {
            version,
            progress: Queue::new(),
            logged: Queue::new(),
            changed: Queue::new(),
            updated: Queue::new(),
        }
    }
}

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        of(json!({
            "protocolVersion": self.version,
            "clientInfo": {"name": "erlmcp-interop", "version": "1.0.0"},
            "capabilities": {
                "sampling": {}, "elicitation": {}, "roots": {"listChanged": true},
                "extensions": {
                    TASKS_EXTENSION_ID: {},
                    "io.modelcontextprotocol/ui": {"mimeTypes": [VIEW_TYPE]},
                },
            },
        }))
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let asked = serde_json::to_value(&params.messages).unwrap_or_default();
        let text = asked[0]["content"]["text"].as_str().unwrap_or("no text").to_owned();
        Ok(of(json!({
            "role": "assistant", "model": "none",
            "content": {
                "type": "text", "text": format!("{text}, in {} tokens", params.max_tokens),
            },
        })))
    }

    async fn list_roots(
        &self,
        _: RequestContext<RoleClient>,
    ) -> Result<ListRootsResult, ErrorData> {
        Ok(of(json!({"roots": [{"uri": "file:///work", "name": "work"}]})))
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let asked: Value = serde_json::to_value(&params).unwrap_or_default();
        let message = asked["message"].as_str().unwrap_or_default();
        Ok(of(if message.starts_with("Step 2") {
            json!({"action": "accept", "content": {"color": "green"}})
        } else if message.contains("name?") {
            json!({"action": "accept", "content": {"name": "Ada"}})
        } else {
            json!({"action": "decline"})
        }))
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.progress.put(params);
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.logged.put(params);
    }

    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.updated.put(params.uri);
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed.put("tools");
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed.put("prompts");
    }
}
