//! The tools of `tools.json`, served by the official Rust SDK.
//!
//!     rmcp                        on stdio: where both are pipes, as those of a host are, they are
//!                                 read and written as sockets are, without a thread that blocks
//!     rmcp --http                 over HTTP on a free port, whose URL is the first line of stdout
//!     rmcp --http --sessionless   the same, without sessions in the older revisions
//!
//! TOOLS names the file of the tools.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rmcp::model::*;
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt};
use tokio::net::unix::pipe::{Receiver, Sender};

#[derive(Clone)]
struct Server {
    tools: Arc<Vec<Tool>>,
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        ServerConfig::new(capabilities).with_server_info(Implementation::new("rmcp", "3.9.0"))
    }

    async fn list_tools(
        &self, _: Option<PaginatedRequestParams>, _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut result = ListToolsResult::default();
        result.tools = self.tools.to_vec();
        Ok(result)
    }

    async fn call_tool(
        &self, request: CallToolRequestParams, _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let mut arguments = request.arguments.unwrap_or_default();
        let text = match (&*request.name, arguments.remove("text"), arguments.get("ms")) {
            ("echo", Some(serde_json::Value::String(text)), _) => text,
            ("sleep", _, Some(ms)) if ms.is_u64() => {
                tokio::time::sleep(Duration::from_millis(ms.as_u64().unwrap_or(0))).await;
                "done".to_string()
            }
            _ => return Err(ErrorData::invalid_params("no such tool, or not its arguments", None)),
        };
        Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
    }

    // As the SDK's own macros have it: a call's headers are compared with the tool's schema.
    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tools.iter().find(|tool| tool.name == name).cloned()
    }
}

async fn http(server: Server, sessions: bool) -> Result<(), Box<dyn Error>> {
    let mut config = StreamableHttpServerConfig::default();
    config.legacy_session_mode = sessions;
    config.json_response = true;
    let service: StreamableHttpService<Server, LocalSessionManager> =
        StreamableHttpService::new(move || Ok(server.clone()), Default::default(), config);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}/mcp", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let service = TowerToHyperService::new(service.clone());
        tokio::spawn(async move {
            // A connection that breaks is its client's loss alone.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// What tokio has for pipes, which its own stdin and stdout are several times slower than. None
/// where one of the two is something else.
fn pipes() -> io::Result<Option<(Receiver, Sender)>> {
    let read = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let write = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    if !read.metadata()?.file_type().is_fifo() || !write.metadata()?.file_type().is_fifo() {
        return Ok(None);
    }
    Ok(Some((Receiver::from_file(read)?, Sender::from_file(write)?)))
}

#[tokio::main]
pub async fn main() -> Result<(), Box<dyn Error>> {
    let tools = serde_json::from_reader(BufReader::new(File::open(std::env::var("TOOLS")?)?))?;
    let server = Server { tools: Arc::new(tools) };
    let has = |wanted: &str| std::env::args().any(|argument| argument == wanted);
    if has("--http") {
        return http(server, !has("--sessionless")).await;
    }
    match pipes()? {
        Some(pipes) => server.serve(pipes).await?.waiting().await?,
        None => server.serve(rmcp::transport::stdio()).await?.waiting().await?,
    };
    Ok(())
}
