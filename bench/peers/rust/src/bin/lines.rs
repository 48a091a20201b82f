//! Asks a server on lines (stdio, or TCP) for `tools/call echo` and says what it answers.
//!
//!     lines WINDOW WARMUP_S SECONDS PAYLOAD_BYTES stdio PROGRAM ARGUMENT...
//!     lines WINDOW WARMUP_S SECONDS PAYLOAD_BYTES tcp HOST:PORT PID
//!
//! WINDOW requests are in flight at all times, in the revision 2026-07-28: for each reply that was
//! read one is written, those of one read in one write. The first reply is parsed, the others have
//! to be of a request in flight and to have its text. What is printed is one JSON object: the
//! number of replies after the warm-up and the seconds they took, percentiles of their latencies,
//! and the CPU time of the server's processes (user and system) and of this one meanwhile.

use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Requests may overtake each other by so many.
const PLACES: usize = 65_536;

struct Wire {
    reader: Box<dyn Read>,
    writer: Box<dyn Write>,
    pid: u32,
    child: Option<Child>,
}

fn open(arguments: &[String]) -> Result<Wire, Box<dyn Error>> {
    match arguments {
        [kind, program, rest @ ..] if kind == "stdio" => {
            let mut child = Command::new(program)
                .args(rest)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let reader = Box::new(child.stdout.take().ok_or("no stdout")?);
            let writer = Box::new(child.stdin.take().ok_or("no stdin")?);
            Ok(Wire { reader, writer, pid: child.id(), child: Some(child) })
        }
        [kind, address, pid] if kind == "tcp" => {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            let reader = Box::new(stream.try_clone()?);
            Ok(Wire { reader, writer: Box::new(stream), pid: pid.parse()?, child: None })
        }
        _ => Err("usage: lines WINDOW WARMUP_S SECONDS PAYLOAD_BYTES stdio|tcp ...".into()),
    }
}

/// Hundredths of a second that a process and all below it have used.
fn spent(root: u32) -> u64 {
    let mut processes: HashMap<u32, (u32, u64)> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process may have ended meanwhile.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((_, after)) = stat.rsplit_once(')') else { continue };
        let fields: Vec<&str> = after.split_whitespace().collect();
        let number = |index: usize| -> Option<u64> { fields.get(index)?.parse().ok() };
        if let (Some(parent), Some(user), Some(system)) = (number(1), number(11), number(12)) {
            processes.insert(pid, (parent as u32, user + system));
        }
    }
    let is_below = |mut pid: u32| {
        while pid != root {
            match processes.get(&pid) {
                Some((parent, _)) if *parent != 0 => pid = *parent,
                _ => return false,
            }
        }
        true
    };
    processes.iter().filter(|(pid, _)| is_below(**pid)).map(|(_, (_, ticks))| ticks).sum()
}

struct Requests {
    before: String,
    after: String,
    /// When those in flight were sent; None where none is.
    sent: Vec<Option<Instant>>,
    next: usize,
}

impl Requests {
    fn new(text: &str) -> Self {
        let after = format!(
            concat!(
                r#","method":"tools/call","params":{{"name":"echo","arguments":{{"text":"{}"}},"#,
                r#""_meta":{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
                r#""io.modelcontextprotocol/clientInfo":{{"name":"lines","version":"1.0.0"}},"#,
                r#""io.modelcontextprotocol/clientCapabilities":{{}}}}}}}}"#
            ),
            text
        ) + "\n";
        let before = r#"{"jsonrpc":"2.0","id":"#.to_string();
        Self { before, after, sent: vec![None; PLACES], next: 1 }
    }

    fn write(&mut self, count: usize, into: &mut Vec<u8>) -> Result<(), Box<dyn Error>> {
        let now = Instant::now();
        for _ in 0..count {
            let place = &mut self.sent[self.next % PLACES];
            if place.is_some() {
                return Err("a request was not answered".into());
            }
            *place = Some(now);
            into.extend_from_slice(self.before.as_bytes());
            into.extend_from_slice(self.next.to_string().as_bytes());
            into.extend_from_slice(self.after.as_bytes());
            self.next += 1;
        }
        Ok(())
    }

    /// How long the request of this reply took.
    fn answered(&mut self, line: &[u8], text: &[u8], now: Instant)
        -> Result<Duration, Box<dyn Error>> {
        let wrong = || format!("not an answer: {}", String::from_utf8_lossy(line));
        let id = find(line, br#""id":"#).ok_or_else(wrong)? + 5;
        let digits = line[id..].iter().take_while(|byte| byte.is_ascii_digit());
        let id = digits.fold(0usize, |id, digit| id * 10 + usize::from(digit - b'0'));
        find(line, text).ok_or_else(wrong)?;
        let sent = self.sent[id % PLACES].take().ok_or_else(wrong)?;
        Ok(now - sent)
    }
}

fn find(line: &[u8], wanted: &[u8]) -> Option<usize> {
    let first = *wanted.first()?;
    let mut from = 0;
    while let Some(at) = line[from..].iter().position(|byte| *byte == first) {
        if line[from + at..].starts_with(wanted) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

/// The first answer, whole.
fn verify(line: &[u8], text: &str) -> Result<(), Box<dyn Error>> {
    let answer: serde_json::Value = serde_json::from_slice(line)?;
    let result = &answer["result"];
    let right = answer["jsonrpc"] == "2.0"
        && answer["id"] == 1
        && result["resultType"] == "complete"
        && result["isError"] != true
        && result["content"].as_array().is_some_and(|content| content.len() == 1)
        && result["content"][0]["type"] == "text"
        && result["content"][0]["text"] == text;
    if right { Ok(()) } else { Err(format!("not the right answer: {answer}").into()) }
}

fn percentile(sorted: &[u32], part: f64) -> f64 {
    let at = ((sorted.len() as f64 * part).ceil() as usize).clamp(1, sorted.len());
    f64::from(sorted[at - 1]) / 1000.0
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.len() < 6 {
        return Err("usage: lines WINDOW WARMUP_S SECONDS PAYLOAD_BYTES stdio|tcp ...".into());
    }
    let window: usize = arguments[0].parse()?;
    let warmup = Duration::from_secs_f64(arguments[1].parse()?);
    let seconds = Duration::from_secs_f64(arguments[2].parse()?);
    let text = "x".repeat(arguments[3].parse()?);
    let mut wire = open(&arguments[4..])?;
    let mut requests = Requests::new(&text);
    let mut output = Vec::new();
    let mut input: Vec<u8> = Vec::new();
    let mut chunk = vec![0; 262_144];
    let mut latencies: Vec<u32> = Vec::with_capacity(4_000_000);
    let mut verified = false;
    let mut measured: Option<(Instant, u64, u64)> = None;
    let mut begun: Option<Instant> = None;

    requests.write(1, &mut output)?;
    let (ended, server, own) = loop {
        wire.writer.write_all(&output)?;
        wire.writer.flush()?;
        output.clear();
        let size = wire.reader.read(&mut chunk)?;
        if size == 0 {
            return Err("the server has ended".into());
        }
        let now = Instant::now();
        input.extend_from_slice(&chunk[..size]);
        let mut from = 0;
        let mut count = 0;
        while let Some(at) = input[from..].iter().position(|byte| *byte == b'\n') {
            let line = &input[from..from + at];
            if !verified {
                verify(line, &text)?;
                verified = true;
                begun = Some(now);
                // From here on the window is full.
                count += window - 1;
            }
            let took = requests.answered(line, text.as_bytes(), now)?;
            if measured.is_some() {
                latencies.push(took.as_nanos().min(u128::from(u32::MAX)) as u32);
            }
            count += 1;
            from += at + 1;
        }
        input.drain(..from);
        match (begun, measured) {
            (Some(begun), None) if now - begun >= warmup => {
                measured = Some((Instant::now(), spent(wire.pid), spent(std::process::id())));
            }
            (_, Some((start, server, own))) if now - start >= seconds => {
                // The program under test is a child of this one.
                let both = spent(std::process::id());
                let of_server = spent(wire.pid) - server;
                let of_own = both - own - if wire.child.is_some() { of_server } else { 0 };
                break (now - start, of_server, of_own);
            }
            _ => {}
        }
        requests.write(count, &mut output)?;
    };
    if let Some(mut child) = wire.child.take() {
        drop(wire);
        child.kill()?;
        child.wait()?;
    }
    latencies.sort_unstable();
    if latencies.is_empty() {
        return Err("nothing was answered".into());
    }
    let answered = latencies.len() as f64;
    println!(
        "{}",
        serde_json::json!({
            "sample_count": latencies.len(),
            "duration_s": ended.as_secs_f64(),
            "cpu_us_per_msg": server as f64 * 10_000.0 / answered,
            "generator_cpu_us_per_msg": own as f64 * 10_000.0 / answered,
            "latency_p50_us": percentile(&latencies, 0.5),
            "latency_p99_us": percentile(&latencies, 0.99),
        })
    );
    Ok(())
}
