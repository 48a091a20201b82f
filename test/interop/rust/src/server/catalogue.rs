//! What is served, and what changes: shared by all connections.

use std::collections::VecDeque;
use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};

use rmcp::model::{Implementation, Prompt, Resource, ResourceTemplate, Tool};
use serde::Deserialize;
use tokio::sync::broadcast;

pub const COUNTER: &str = "note://counter";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Catalogue {
    pub server: Implementation,
    pub instructions: String,
    pub page_size: usize,
    pub tools: Vec<Tool>,
    pub added: Tool,
    pub resources: Vec<Resource>,
    pub resource_templates: Vec<ResourceTemplate>,
    pub prompts: Vec<Prompt>,
    pub names: Vec<String>,
    pub text: String,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Change {
    Tools,
    Counter,
}

pub struct Shelf {
    pub catalogue: Catalogue,
    pub counter: AtomicU64,
    pub added: AtomicBool,
    pub changes: broadcast::Sender<Change>,
    /// Of subscriptions that are accepted and do not listen yet.
    pub accepted: Mutex<VecDeque<broadcast::Receiver<Change>>>,
    /// The sessions of older revisions: they are told of changes by their own connection.
    pub sessions: Mutex<Vec<crate::handler::Session>>,
}

impl Shelf {
    pub fn read() -> Result<Self, Box<dyn Error>> {
        let path = std::env::var("CATALOGUE")?;
        Ok(Self {
            catalogue: serde_json::from_reader(BufReader::new(File::open(path)?))?,
            counter: AtomicU64::new(0),
            added: AtomicBool::new(false),
            changes: broadcast::channel(100).0,
            accepted: Mutex::default(),
            sessions: Mutex::new(Vec::new()),
        })
    }
}
