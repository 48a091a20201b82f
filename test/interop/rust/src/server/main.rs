//! The catalogue, served by the official Rust SDK.
//!
//!     erlmcp-catalogue           on stdio
//!     erlmcp-catalogue --http    over HTTP on a free port, whose URL is the first line of stdout
//!
//! CATALOGUE names the file of what is served.
#![allow(deprecated)] // Logging, sampling and roots are, and are served here all the same.

mod catalogue;
mod handler;
mod tools;

use std::error::Error;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rmcp::ServiceExt;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};

use catalogue::Shelf;
use handler::Server;

async fn http(shelf: Arc<Shelf>) -> Result<(), Box<dyn Error>> {
    let service: StreamableHttpService<Server, LocalSessionManager> = StreamableHttpService::new(
        move || Ok(Server::new(shelf.clone())),
        Default::default(),
        StreamableHttpServerConfig::default(),
    );
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

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let shelf = Arc::new(Shelf::read()?);
    if std::env::args().any(|argument| argument == "--http") {
        return http(shelf).await;
    }
    Server::new(shelf).serve(rmcp::transport::stdio()).await?.waiting().await?;
    Ok(())
}
