//! The requests of a connection, but for the tools' own work.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::*;
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::{ErrorData, Peer, RoleServer, ServerHandler};
use serde_json::json;

use crate::catalogue::{COUNTER, Change, Shelf};
use crate::tools;

/// What is known of a session of an older revision.
#[derive(Clone)]
pub struct Session {
    pub peer: Peer<RoleServer>,
    pub uris: Arc<Mutex<HashSet<String>>>,
}

#[derive(Clone)]
pub struct Server {
    pub shelf: Arc<Shelf>,
    pub level: Arc<Mutex<LoggingLevel>>,
    uris: Arc<Mutex<HashSet<String>>>,
}

pub type Context = RequestContext<RoleServer>;

fn page<T: Clone>(
    all: &[T], size: usize, request: Option<PaginatedRequestParams>,
) -> (Vec<T>, Option<String>) {
    let from = request
        .and_then(|params| params.cursor)
        .and_then(|cursor| cursor.parse().ok())
        .unwrap_or(0);
    let more = (all.len() > from + size).then(|| (from + size).to_string());
    (all.iter().skip(from).take(size).cloned().collect(), more)
}

macro_rules! listing {
    ($result:ident, $field:ident, $all:expr, $size:expr, $request:expr) => {{
        let (definitions, more) = page($all, $size, $request);
        let mut result = $result::default();
        result.$field = definitions;
        result.next_cursor = more;
        Ok(result)
    }};
}

impl Server {
    pub fn new(shelf: Arc<Shelf>) -> Self {
        let level = Arc::new(Mutex::new(LoggingLevel::Debug));
        Self { shelf, level, uris: Default::default() }
    }

    pub async fn tell(&self, change: Change) {
        // Nobody may be listening; that is no failure.
        let _ = self.shelf.changes.send(change);
        let sessions = self.shelf.sessions.lock().unwrap().clone();
        for session in sessions {
            // A session that has ended is not told, and that is no failure either.
            let _ = match change {
                Change::Tools => session.peer.notify_tool_list_changed().await,
                Change::Counter if session.uris.lock().unwrap().contains(COUNTER) => {
                    let params = ResourceUpdatedNotificationParam::new(COUNTER);
                    session.peer.notify_resource_updated(params).await
                }
                Change::Counter => Ok(()),
            };
        }
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_completions()
            .enable_logging()
            .enable_prompts()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_tools()
            .enable_tool_list_changed()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(self.shelf.catalogue.server.clone())
            .with_instructions(self.shelf.catalogue.instructions.clone())
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        let session = Session { peer: context.peer, uris: self.uris.clone() };
        self.shelf.sessions.lock().unwrap().push(session);
    }

    async fn list_tools(
        &self, request: Option<PaginatedRequestParams>, _: Context,
    ) -> Result<ListToolsResult, ErrorData> {
        let catalogue = &self.shelf.catalogue;
        let mut tools = catalogue.tools.clone();
        if self.shelf.added.load(Ordering::SeqCst) {
            tools.push(catalogue.added.clone());
        }
        listing!(ListToolsResult, tools, &tools, catalogue.page_size, request)
    }

    async fn call_tool(
        &self, request: CallToolRequestParams, context: Context,
    ) -> Result<CallToolResponse, ErrorData> {
        tools::call(self, request, context).await
    }

    // The SDK compares a call's headers with what the tool's schema says.
    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.shelf.catalogue.tools.iter().find(|tool| tool.name == name).cloned()
    }

    async fn list_resources(
        &self, request: Option<PaginatedRequestParams>, _: Context,
    ) -> Result<ListResourcesResult, ErrorData> {
        let catalogue = &self.shelf.catalogue;
        let all = &catalogue.resources;
        listing!(ListResourcesResult, resources, all, catalogue.page_size, request)
    }

    async fn list_resource_templates(
        &self, request: Option<PaginatedRequestParams>, _: Context,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let catalogue = &self.shelf.catalogue;
        let all = &catalogue.resource_templates;
        let size = catalogue.page_size;
        listing!(ListResourceTemplatesResult, resource_templates, all, size, request)
    }

    async fn read_resource(
        &self, request: ReadResourceRequestParams, _: Context,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri.as_str();
        let text = |text: String| ResourceContents::text(text, uri);
        let contents = match (uri, uri.strip_prefix("note://item/")) {
            (_, Some(item)) => text(format!("item {item}")),
            ("note://text", _) => text(self.shelf.catalogue.text.clone()),
            (COUNTER, _) => text(self.shelf.counter.load(Ordering::SeqCst).to_string()),
            ("note://blob", _) => {
                let bytes: Vec<u8> = (0..=255).collect();
                ResourceContents::blob(STANDARD.encode(bytes), uri)
                    .with_mime_type("application/octet-stream")
            }
            _ => {
                let data = Some(json!({"uri": uri}));
                return Err(ErrorData::resource_not_found(format!("no resource {uri}"), data));
            }
        };
        Ok(ReadResourceResult::new(vec![contents]).into())
    }

    async fn subscribe(&self, request: SubscribeRequestParams, _: Context)
        -> Result<(), ErrorData> {
        self.uris.lock().unwrap().insert(request.uri);
        Ok(())
    }

    async fn unsubscribe(&self, request: UnsubscribeRequestParams, _: Context)
        -> Result<(), ErrorData> {
        self.uris.lock().unwrap().remove(&request.uri);
        Ok(())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter)
        -> Option<SubscriptionFilter> {
        // The SDK acknowledges before it calls `listen`: what changes between is kept from here on.
        self.shelf.accepted.lock().unwrap().push_back(self.shelf.changes.subscribe());
        Some(requested.supported_by(&self.get_info().capabilities))
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let accepted = self.shelf.accepted.lock().unwrap().pop_front();
        let mut changes = accepted.unwrap_or_else(|| self.shelf.changes.subscribe());
        loop {
            let change = tokio::select! {
                () = context.cancelled() => return Ok(()),
                change = changes.recv() => change,
            };
            // What the client did not ask for, the SDK keeps back.
            let _ = match change {
                Ok(Change::Tools) => context.sink().notify_tool_list_changed().await,
                Ok(Change::Counter) => context.sink().notify_resource_updated(COUNTER).await,
                Err(error) => {
                    return Err(ErrorData::internal_error(error.to_string(), None));
                }
            };
        }
    }

    async fn list_prompts(
        &self, request: Option<PaginatedRequestParams>, _: Context,
    ) -> Result<ListPromptsResult, ErrorData> {
        let catalogue = &self.shelf.catalogue;
        let all = &catalogue.prompts;
        listing!(ListPromptsResult, prompts, all, catalogue.page_size, request)
    }

    async fn get_prompt(
        &self, request: GetPromptRequestParams, _: Context,
    ) -> Result<GetPromptResponse, ErrorData> {
        if request.name != "greet" {
            let message = format!("no prompt {}", request.name);
            return Err(ErrorData::invalid_params(message, None));
        }
        let arguments = request.arguments.unwrap_or_default();
        let name = arguments.get("name").and_then(|name| name.as_str()).unwrap_or_default();
        let message = PromptMessage::new_text(Role::User, format!("Greet {name}."));
        Ok(GetPromptResult::new(vec![message]).into())
    }

    async fn complete(
        &self, request: CompleteRequestParams, _: Context,
    ) -> Result<CompleteResult, ErrorData> {
        let begun = request.argument.value.as_str();
        let names = self.shelf.catalogue.names.iter();
        let values = names.filter(|name| name.starts_with(begun)).cloned().collect();
        let completion = CompletionInfo::with_all_values(values)
            .map_err(|error| ErrorData::internal_error(error, None))?;
        Ok(CompleteResult::new(completion))
    }

    async fn set_level(&self, request: SetLevelRequestParams, _: Context)
        -> Result<(), ErrorData> {
        *self.level.lock().unwrap() = request.level;
        Ok(())
    }
}
