//! A real hub process on a data folder that survives its kills, and a client of its API.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::binaries;
use crate::process::Process;
use crate::wait::until;

/// How long a process may take to be ready on a loaded machine.
const READY: Duration = Duration::from_secs(60);

/// A hub: its data folder, its address, and the process while it runs.
#[derive(Debug)]
pub struct Hub {
    folder: PathBuf,
    port: u16,
    api_token: String,
    process: Option<Process>,
}

/// An answer of the API: status and body.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body, `null` when it was empty.
    pub body: Value,
    /// The ETag header.
    pub etag: Option<String>,
}

impl Hub {
    /// Starts a hub with an empty data folder below `folder`, on a free loopback port.
    pub fn start(folder: &Path) -> Result<Self> {
        // The port stays the hub's across its restarts, so it is chosen here.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut hub =
            Self { folder: folder.to_path_buf(), port, api_token: String::new(), process: None };
        hub.restart()?;
        hub.api_token = hub.token(&["--api"])?;
        Ok(hub)
    }

    /// The address that agents use.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The data folder.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder.join("hub-data")
    }

    /// The API token, for a person to try things with.
    #[must_use]
    pub fn api_token(&self) -> &str {
        &self.api_token
    }

    /// Starts the process (again) and waits until it is ready.
    pub fn restart(&mut self) -> Result<()> {
        let mut command = Command::new(binaries::rowtide_hub()?);
        command.args(["serve", "--listen", &format!("127.0.0.1:{}", self.port), "--data"]);
        command.arg(self.data());
        let mut process = Process::start(&mut command, &self.folder.join("hub.log"))?;
        let url = format!("{}/readyz", self.url());
        until("the hub to be ready", READY, || {
            if let Some(status) = process.ended()? {
                bail!("the hub ended with {status}:\n{}", process.output()?);
            }
            Ok((ureq::get(&url).call()?.status() == 200).then_some(()))
        })?;
        self.process = Some(process);
        Ok(())
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().context("the hub does not run")?.kill()
    }

    /// Stops the process with SIGTERM.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.process.take().context("the hub does not run")?.terminate(READY)
    }

    /// Whether the process was started and not stopped by us.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.process.is_some()
    }

    /// What the hub has printed.
    pub fn output(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.folder.join("hub.log"))?)
    }

    /// A new device token.
    pub fn device_token(&self, device: &str) -> Result<String> {
        self.token(&["--device", device])
    }

    fn token(&self, kind: &[&str]) -> Result<String> {
        let output = Command::new(binaries::rowtide_hub()?)
            .args(["token", "new"])
            .args(kind)
            .arg("--data")
            .arg(self.data())
            .output()?;
        ensure!(
            output.status.success(),
            "rowtide-hub token new failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// One call of the API below `/projects/default`, with extra headers.
    pub fn call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<Answer> {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(30)))
            .build()
            .into();
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}/projects/default{path}", self.url()))
            .header("authorization", format!("Bearer {}", self.api_token));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let text = body.map(Value::to_string).unwrap_or_default();
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let mut response = agent.run(request.body(text)?)?;
        let etag = response.headers().get("etag");
        let etag = etag.and_then(|value| value.to_str().ok()).map(str::to_owned);
        let text = response.body_mut().with_config().limit(256 << 20).read_to_string()?;
        let body = match text.as_str() {
            "" => Value::Null,
            text => serde_json::from_str(text)
                .with_context(|| format!("{method} {path} answered no JSON: {text}"))?,
        };
        Ok(Answer { status: response.status().as_u16(), body, etag })
    }

    /// A GET that must succeed.
    pub fn get(&self, path: &str) -> Result<Value> {
        let answer = self.call("GET", path, &[], None)?;
        ensure!(answer.status == 200, "GET {path}: {} {}", answer.status, answer.body);
        Ok(answer.body)
    }

    /// Writes a row; must succeed.
    pub fn put(&self, dataspace: &str, row_key: &str, values: &Value) -> Result<Value> {
        let path = format!("/dataspaces/{dataspace}/rows/{row_key}");
        let answer = self.call("PUT", &path, &[], Some(&json!({ "values": values })))?;
        ensure!(
            matches!(answer.status, 200 | 201),
            "PUT {path}: {} {}",
            answer.status,
            answer.body
        );
        Ok(answer.body)
    }

    /// The rows of a query over the read views.
    pub fn query(&self, sql: &str) -> Result<Vec<Vec<Value>>> {
        let answer = self.call("POST", "/query", &[], Some(&json!({ "sql": sql })))?;
        ensure!(answer.status == 200, "query {sql}: {} {}", answer.status, answer.body);
        let rows = answer.body["rows"].as_array().context("the answer has no rows")?;
        rows.iter().map(|row| row.as_array().cloned().context("a row is no array")).collect()
    }

    /// Every row of a dataspace, page by page.
    pub fn rows(&self, dataspace: &str) -> Result<Vec<Value>> {
        let mut rows = Vec::new();
        let mut after = String::new();
        loop {
            let page = self.get(&format!("/dataspaces/{dataspace}/rows?limit=1000{after}"))?;
            rows.extend(page["rows"].as_array().context("no rows in the page")?.iter().cloned());
            match page["next"].as_str() {
                Some(next) => after = format!("&after={}", percent(next)),
                None => return Ok(rows),
            }
        }
    }
}

/// Percent-encodes everything that a URL's path or query could misread.
#[must_use]
pub fn percent(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}
