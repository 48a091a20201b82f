//! One line per check, and their number.

use std::error::Error;
use std::time::Duration;

use rmcp::ServiceError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub const LIMIT: Duration = Duration::from_secs(15);

pub type Held = Result<(), Box<dyn Error>>;

#[derive(Default)]
pub struct Report {
    pub label: String,
    pub passed: u32,
    pub failed: u32,
}

impl Report {
    /// Says whether the body held within the limit.
    pub async fn check(&mut self, name: &str, body: impl Future<Output = Held>) -> bool {
        let why = match tokio::time::timeout(LIMIT, body).await {
            Ok(Ok(())) => {
                self.passed += 1;
                println!("ok - {}: {name}", self.label);
                return true;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no end after {LIMIT:?}"),
        };
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        let why: String = why.chars().take(600).collect();
        println!("not ok - {}: {name}: {why}", self.label);
        self.failed += 1;
        false
    }
}

pub fn holds(condition: bool, why: impl Into<String>) -> Held {
    if condition { Ok(()) } else { Err(why.into().into()) }
}

/// Compares values as they are on the wire.
pub fn same(actual: impl Serialize, expected: Value) -> Held {
    let actual = serde_json::to_value(actual)?;
    let why = format!("got {actual:.300}, expected {expected:.300}");
    holds(actual == expected, why)
}

pub fn lacks_none(have: &[String], wanted: &[&str]) -> Held {
    match wanted.iter().find(|&&name| !have.iter().any(|one| one == name)) {
        None => Ok(()),
        Some(name) => Err(format!("no {name} among {have:?}").into()),
    }
}

/// Parameters of a request from their form on the wire.
pub fn of<T: DeserializeOwned>(params: Value) -> T {
    serde_json::from_value(params).expect("parameters of this type")
}

/// Holds when the outcome is a JSON-RPC error of this code; gives its data.
pub fn refused<T>(code: i32, outcome: Result<T, ServiceError>) -> Result<Value, Box<dyn Error>> {
    match outcome {
        Err(ServiceError::McpError(error)) if error.code.0 == code => {
            Ok(error.data.unwrap_or_default())
        }
        Err(error) => Err(format!("expected error {code}, got {error}").into()),
        Ok(_) => Err(format!("expected error {code}, got a result").into()),
    }
}
