//! What the tools do.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::*;
use serde_json::{Value, json};

use crate::catalogue::Change;
use crate::handler::{Context, Server};

type Answer = Result<CallToolResponse, ErrorData>;

fn say(text: impl Into<String>) -> Answer {
    Ok(CallToolResult::success(vec![ContentBlock::text(text.into())]).into())
}

fn internal(error: impl ToString) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

/// In 2026-07-28 a question is a result, and its answer comes with the next try; a session's client
/// is asked while the call waits.
async fn ask(
    request: &CallToolRequestParams, context: &Context, question: Value,
    answer: impl Fn(&Value) -> Option<String>,
) -> Answer {
    let question: InputRequest = serde_json::from_value(question).map_err(internal)?;
    let response = if context.protocol_version() >= Some(ProtocolVersion::V_2026_07_28) {
        let responses = request.input_responses.as_ref();
        let Some(response) = responses.and_then(|responses| responses.get("it")) else {
            let requests = InputRequests::from([("it".to_string(), question)]);
            return Ok(InputRequiredResult::from_input_requests(requests).into());
        };
        response.clone()
    } else {
        let peer = &context.peer;
        match question {
            InputRequest::Elicitation(question) => {
                let result = peer.create_elicitation(question.params).await;
                serde_json::to_value(result.map_err(internal)?)
            }
            InputRequest::CreateMessage(question) => {
                let result = peer.create_message(question.params).await;
                serde_json::to_value(result.map_err(internal)?)
            }
            _ => serde_json::to_value(peer.list_roots().await.map_err(internal)?),
        }
        .map_err(internal)?
    };
    say(answer(&response).ok_or_else(|| internal(format!("answered with {response}")))?)
}

fn elicited(response: &Value) -> Option<String> {
    match (response["action"].as_str()?, response["content"]["name"].as_str()) {
        ("accept", Some(name)) => Some(format!("Hello, {name}")),
        (action, _) => Some(action.to_string()),
    }
}

fn sampled(response: &Value) -> Option<String> {
    let content = &response["content"];
    let block = content.as_array().and_then(|blocks| blocks.first()).unwrap_or(content);
    Some(block["text"].as_str()?.to_string())
}

fn listed(response: &Value) -> Option<String> {
    let uris = response["roots"].as_array()?.iter().map(|root| root["uri"].as_str());
    Some(uris.collect::<Option<Vec<_>>>()?.join(" "))
}

async fn logs(server: &Server, context: &Context) -> Answer {
    let modern = context.protocol_version() >= Some(ProtocolVersion::V_2026_07_28);
    let least = if modern { context.meta.log_level() } else { Some(*server.level.lock().unwrap()) };
    for level in [LoggingLevel::Debug, LoggingLevel::Info, LoggingLevel::Error] {
        if least.is_some_and(|least| rank(level) >= rank(least)) {
            let data = json!(format!("at {}", name(level)));
            let params = LoggingMessageNotificationParam::new(level, data)
                .with_logger("catalogue");
            context.peer.notify_logging_message(params).await.map_err(internal)?;
        }
    }
    say("logged")
}

fn name(level: LoggingLevel) -> String {
    json!(level).as_str().unwrap_or_default().to_string()
}

fn rank(level: LoggingLevel) -> usize {
    const LEVELS: [&str; 8] =
        ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
    LEVELS.iter().position(|known| *known == name(level)).unwrap_or(0)
}

async fn slow(steps: u64, context: &Context) -> Answer {
    for step in 1..=steps {
        tokio::select! {
            () = context.ct.cancelled() => return Err(internal("cancelled")),
            () = tokio::time::sleep(Duration::from_millis(50)) => (),
        }
        if let Some(token) = context.meta.get_progress_token() {
            let params = ProgressNotificationParam::new(token, step as f64)
                .with_total(steps as f64);
            context.peer.notify_progress(params).await.map_err(internal)?;
        }
    }
    say(format!("{steps} steps"))
}

pub async fn call(server: &Server, request: CallToolRequestParams, context: Context) -> Answer {
    let arguments = Value::Object(request.arguments.clone().unwrap_or_default());
    let text = |name: &str| arguments[name].as_str().unwrap_or_default().to_string();
    match request.name.as_ref() {
        "add" => {
            let number = |name: &str| arguments[name].as_f64().unwrap_or_default();
            let sum = number("a") + number("b");
            Ok(CallToolResult::structured(json!({"sum": sum})).into())
        }
        "added" => say("here"),
        "ask" => {
            let question = json!({"method": "elicitation/create", "params": {
                "mode": "form", "message": "Who is there?", "requestedSchema": {
                    "type": "object", "properties": {"name": {"type": "string"}},
                    "required": ["name"]}}});
            ask(&request, &context, question, elicited).await
        }
        "ask_url" => {
            let question = json!({"method": "elicitation/create", "params": {
                "mode": "url", "message": "Look there", "url": "https://example.com/page",
                "elicitationId": "page"}});
            ask(&request, &context, question, elicited).await
        }
        "change" => {
            let was = server.shelf.added.fetch_xor(true, Ordering::SeqCst);
            server.tell(Change::Tools).await;
            say(if was { "removed" } else { "added" })
        }
        "echo" => say(text("text")),
        "fail" => Ok(CallToolResult::error(vec![ContentBlock::text("It failed.")]).into()),
        "logs" => logs(server, &context).await,
        "region" => say(text("region")),
        "roots" => ask(&request, &context, json!({"method": "roots/list"}), listed).await,
        "sample" => {
            let question = json!({"method": "sampling/createMessage", "params": {
                "maxTokens": 100, "messages": [
                    {"role": "user", "content": {"type": "text", "text": "Say something"}}]}});
            ask(&request, &context, question, sampled).await
        }
        "slow" => slow(arguments["steps"].as_u64().unwrap_or(1), &context).await,
        "touch" => {
            let counter = server.shelf.counter.fetch_add(1, Ordering::SeqCst) + 1;
            server.tell(Change::Counter).await;
            say(counter.to_string())
        }
        name => Err(ErrorData::invalid_params(format!("no tool {name}"), None)),
    }
}
