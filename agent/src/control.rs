//! The control socket: one line of JSON in, one line out. For `rowtide` commands on this machine.
//!
//! It answers questions and changes nothing. Only the daemon's own user may connect.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use crate::status::Observer;

/// Bytes of a question.
const QUESTION_BYTES_MAX: u64 = 1 << 10;
/// Questions at a time: a person and a few scripts.
const QUESTIONS_MAX: usize = 8;
/// How long a question and its answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What can be asked.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// The status document.
    Status,
    /// The rows that are set aside.
    Quarantine,
}

/// Where the socket is.
#[must_use]
pub fn socket(state_dir: &Path) -> PathBuf {
    state_dir.join("control.sock")
}

/// Opens the socket; a stale one of a killed daemon is replaced (the lock says it is ours).
///
/// # Errors
/// When the folder takes no socket.
pub(crate) fn listen(state_dir: &Path) -> Result<UnixListener> {
    let path = socket(state_dir);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("{}: cannot be replaced", path.display()));
        }
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&path)
        .with_context(|| format!("{}: the control socket cannot be opened", path.display()))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
        .with_context(|| format!("{}: its mode cannot be set", path.display()))?;
    Ok(listener)
}

/// Answers until dropped.
pub(crate) async fn serve(listener: UnixListener, observer: Observer) {
    let places = std::sync::Arc::new(Semaphore::new(QUESTIONS_MAX));
    loop {
        let Ok(place) = std::sync::Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let observer = observer.clone();
                tokio::spawn(async move {
                    let answered = tokio::time::timeout(PATIENCE, answer(stream, &observer)).await;
                    match answered {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => tracing::debug!("control: {error:#}"),
                        Err(_elapsed) => tracing::debug!("control: a question took too long"),
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("control socket: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn answer(stream: UnixStream, observer: &Observer) -> Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    BufReader::new(reader.take(QUESTION_BYTES_MAX)).read_line(&mut line).await?;
    let reply = match serde_json::from_str(&line) {
        Ok(Question::Status) => serde_json::to_value(observer.status().await)?,
        Ok(Question::Quarantine) => observer.quarantine().await,
        Err(error) => serde_json::json!({ "error": format!("unknown question: {error}") }),
    };
    writer.write_all(format!("{reply}\n").as_bytes()).await?;
    Ok(())
}

/// Asks the daemon; `None`: none runs here.
///
/// # Errors
/// When a daemon runs but does not answer, or this user may not ask it.
pub fn ask(state_dir: &Path, question: Question) -> Result<Option<Value>> {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    use std::io::{BufRead as _, Write as _};
    let path = socket(state_dir);
    let mut stream = match std::os::unix::net::UnixStream::connect(&path) {
        Ok(stream) => stream,
        // No socket, or one that a killed daemon left behind.
        Err(error) if matches!(error.kind(), NotFound | ConnectionRefused) => return Ok(None),
        Err(error) => {
            return Err(error).with_context(|| {
                format!("{}: the agent cannot be asked; do it as its own user", path.display())
            });
        }
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    writeln!(stream, "{}", serde_json::to_string(&question)?)?;
    let mut line = String::new();
    std::io::BufReader::new(stream)
        .read_line(&mut line)
        .with_context(|| format!("{}: the running agent does not answer", path.display()))?;
    Ok(Some(serde_json::from_str(&line).context("the running agent's answer is no JSON")?))
}
