//! Talks to an MCP server as a user of the official Rust SDK would, in each revision that the SDK
//! speaks, and says what held.
//!
//!     erlmcp-interop URL                  over Streamable HTTP
//!     erlmcp-interop 'COMMAND ...'        over stdio; the command is run by sh
//!     erlmcp-interop --mode auto ...      this revision only; auto asks the server for the newest
//!
//! One line per check, `ok - NAME` or `not ok - NAME: why`; last line `N passed, N failed`; exit 1
//! when one failed. The server is to be the everything server, with lists of several pages.

mod client;
mod extensions;
mod features;
mod report;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rmcp::model::ProtocolVersion;
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use rmcp::{ClientLifecycleMode, ClientServiceExt};
use tokio::process::Command;

use client::Client;
use features::Peer;
use report::{Report, holds};

fn lifecycle(mode: &str, version: &ProtocolVersion) -> ClientLifecycleMode {
    let preferred_versions = vec![version.clone()];
    if mode == "auto" {
        let legacy_version = Some(ProtocolVersion::LATEST_WITH_INITIALIZE);
        ClientLifecycleMode::Auto { preferred_versions, legacy_version }
    } else if version.has_initialize() {
        ClientLifecycleMode::Initialize
    } else {
        ClientLifecycleMode::Discover { preferred_versions }
    }
}

async fn connect(target: &str, mode: &str) -> Result<Peer, Box<dyn Error>> {
    let known = ProtocolVersion::KNOWN_VERSIONS.iter().find(|known| known.as_str() == mode);
    let version = known.cloned().unwrap_or(ProtocolVersion::LATEST);
    let lifecycle = lifecycle(mode, &version);
    let client = Client::new(version);
    let running = if target.starts_with("http") {
        let transport = StreamableHttpClientTransport::from_uri(target);
        client.serve_with_lifecycle(transport, lifecycle).await?
    } else {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("exec {target}"));
        client.serve_with_lifecycle(TokioChildProcess::new(command)?, lifecycle).await?
    };
    Ok(Peer(running))
}

// The SDK closes stdin and waits 3 s before it signals.
const CLOSES_WITHIN: Duration = Duration::from_millis(2800);

async fn closed(peer: Peer) -> Result<Duration, Box<dyn Error>> {
    let start = Instant::now();
    peer.0.cancel().await?;
    Ok(start.elapsed())
}

async fn visit(report: &mut Report, target: &str, mode: &str) {
    let transport = if target.starts_with("http") { "http" } else { "stdio" };
    report.label = format!("rust {mode} {transport}");
    let mut connected = None;
    report
        .check("connects", async {
            connected = Some(connect(target, mode).await?);
            Ok(())
        })
        .await;
    let Some(peer) = connected else { return };
    peer.greeted(report).await;
    peer.tools(report).await;
    peer.resources(report).await;
    peer.prompts(report).await;
    peer.notifications(report).await;
    peer.questions(report).await;
    if transport == "http" {
        peer.comes_back(report).await;
    }
    peer.apps(report).await;
    peer.skills(report).await;
    peer.tasks(report).await;
    peer.pings(report).await;
    report
        .check("closes", async {
            let mut took = closed(peer).await?;
            // A busy machine may delay the end of one server, but hardly of each.
            for _ in 1..3 {
                if took >= CLOSES_WITHIN {
                    took = closed(connect(target, mode).await?).await?;
                }
            }
            holds(took < CLOSES_WITHIN, format!("after {took:?}"))
        })
        .await;
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let versions = ProtocolVersion::KNOWN_VERSIONS.iter().rev().map(|version| version.as_str());
    let mut modes: Vec<_> = std::iter::once("auto").chain(versions).map(str::to_owned).collect();
    let mut args: Vec<_> = std::env::args().skip(1).collect();
    if args.len() > 2 && args[0] == "--mode" && modes.contains(&args[1]) {
        modes = args.drain(..2).skip(1).collect();
    }
    let [target] = args.as_slice() else {
        eprintln!("erlmcp-interop [--mode {}] URL | COMMAND", modes.join("|"));
        return ExitCode::from(2);
    };
    let mut report = Report::default();
    for mode in &modes {
        visit(&mut report, target, mode).await;
    }
    println!("{} passed, {} failed", report.passed, report.failed);
    ExitCode::from(if report.failed == 0 && report.passed > 0 { 0 } else { 1 })
}
