//! The status document: what each database's thread and engine say, joined and judged.
//!
//! Honest before pleasant (P9): whatever keeps a table from progress is an alarm, and nothing that
//! waits for longer than the bound without a receipt is called healthy.

use std::path::{Path, PathBuf};
use std::time::Duration;

use capture::DatabaseStatus;
use serde::Serialize;
use serde_json::{Value, json};
use sync_proto::session::LinkState;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::engine::LinkView;
use crate::store::{Request, Store, StoreStatus};

/// How long a database's thread may take for an answer: below the asker's own patience, so that
/// one file on a stuck disk does not hide how the others are.
const PATIENCE: Duration = Duration::from_secs(5);
const NO_ANSWER: &str = "the database's thread does not answer; is its disk stuck?";

/// How everything is, from good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Everything progresses.
    Healthy,
    /// Something needs a look; what can flow flows.
    Degraded,
    /// Something that is pending does not progress.
    Stalled,
}

impl Health {
    /// The exit code of `rowtide status`.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Healthy => 0,
            Self::Degraded => 1,
            Self::Stalled => 2,
        }
    }
}

/// The document of `rowtide status --json`.
#[derive(Debug, Clone, Serialize)]
pub struct Document {
    /// The worst of all databases.
    pub status: Health,
    /// Every configured database.
    pub databases: Vec<Value>,
    /// Everything that is not as it should be.
    pub alarms: Vec<Alarm>,
}

/// One thing that is not as it should be.
#[derive(Debug, Clone, Serialize)]
pub struct Alarm {
    /// A stable word.
    pub code: String,
    /// The database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// The table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// What happened, where, and what to do.
    pub message: String,
}

/// One database as the observer reaches it.
#[derive(Debug, Clone)]
pub(crate) struct Observed {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) store: Store,
    pub(crate) link: watch::Receiver<LinkView>,
}

/// Asks every database how it is.
#[derive(Debug, Clone)]
pub(crate) struct Observer {
    databases: Vec<Observed>,
    stalled_after: Duration,
}

impl Observer {
    pub(crate) const fn new(databases: Vec<Observed>, stalled_after: Duration) -> Self {
        Self { databases, stalled_after }
    }

    /// The whole document.
    pub(crate) async fn status(&self) -> Document {
        let mut judge = Judge::new(self.stalled_after);
        for (database, status) in self.ask(Request::Status).await {
            let status = status.unwrap_or_else(|| StoreStatus::Closed {
                status: "busy",
                error: NO_ANSWER.to_owned(),
            });
            let link = database.link.borrow().clone();
            judge.database(&database.name, &database.path, &status, Some(&link));
        }
        judge.finish()
    }

    /// Every row that is set aside, by database.
    pub(crate) async fn quarantine(&self) -> Value {
        let mut all = Vec::new();
        for (database, rows) in self.ask(Request::Quarantine).await {
            all.push(match rows.unwrap_or_else(|| Err(NO_ANSWER.to_owned())) {
                Ok(rows) => json!({ "database": database.name, "rows": rows }),
                Err(error) => json!({ "database": database.name, "error": error }),
            });
        }
        json!({ "databases": all })
    }

    /// Asks every database at once; `None`: its thread did not answer in time.
    async fn ask<T>(
        &self,
        request: impl Fn(oneshot::Sender<T>) -> Request,
    ) -> Vec<(&Observed, Option<T>)> {
        let deadline = Instant::now() + PATIENCE;
        let mut asked = Vec::with_capacity(self.databases.len());
        for database in &self.databases {
            let (reply, answer) = oneshot::channel();
            // A request that finds no place drops its reply, which ends the wait for it.
            database.store.ask(request(reply));
            asked.push((database, answer));
        }
        let mut answers = Vec::with_capacity(asked.len());
        for (database, answer) in asked {
            let answer = tokio::time::timeout_at(deadline, answer).await;
            answers.push((database, answer.ok().and_then(Result::ok)));
        }
        answers
    }
}

/// Builds a document, database by database.
#[derive(Debug)]
pub(crate) struct Judge {
    stalled_after: Duration,
    document: Document,
}

impl Judge {
    pub(crate) const fn new(stalled_after: Duration) -> Self {
        let document =
            Document { status: Health::Healthy, databases: Vec::new(), alarms: Vec::new() };
        Self { stalled_after, document }
    }

    pub(crate) fn finish(self) -> Document {
        self.document
    }

    /// Raises an alarm and makes the status at least that bad.
    pub(crate) fn alarm(
        &mut self,
        health: Health,
        code: &str,
        database: Option<&str>,
        table: Option<&str>,
        message: impl Into<String>,
    ) {
        self.document.status = self.document.status.max(health);
        self.document.alarms.push(Alarm {
            code: code.to_owned(),
            database: database.map(str::to_owned),
            table: table.map(str::to_owned),
            message: message.into(),
        });
    }

    /// Adds a database. Without a link view no agent runs on it.
    pub(crate) fn database(
        &mut self,
        name: &str,
        path: &Path,
        status: &StoreStatus,
        link: Option<&LinkView>,
    ) {
        match status {
            StoreStatus::Open(open) => self.open_database(name, open, link),
            StoreStatus::Closed { status, error } => {
                let health = match *status {
                    "waiting_for_file" | "opening" => Health::Degraded,
                    _ => Health::Stalled,
                };
                self.alarm(health, status, Some(name), None, error.clone());
                self.document.databases.push(json!({
                    "name": name, "path": path, "status": status, "epoch": null, "tables": [],
                    "error": error,
                }));
            }
        }
    }

    fn open_database(&mut self, name: &str, open: &DatabaseStatus, link: Option<&LinkView>) {
        let before = std::mem::replace(&mut self.document.status, Health::Healthy);
        for alarm in &open.alarms {
            let table = alarm.table.as_deref();
            self.alarm(Health::Degraded, &alarm.code, Some(name), table, alarm.message.clone());
        }
        let mut error = None;
        if let Some(link) = link {
            error = self.link(name, link);
        }
        for table in &open.tables {
            let waits = Duration::from_secs(table.oldest_pending_s.unwrap_or_default());
            if table.pending > 0
                && waits >= self.stalled_after
                && !receipts_come(link, self.stalled_after)
            {
                let message = format!(
                    "{} row(s) wait for {} s and no receipt came{}",
                    table.pending,
                    waits.as_secs(),
                    error.as_ref().map(|error| format!(": {error}")).unwrap_or_default(),
                );
                self.alarm(Health::Stalled, "stalled", Some(name), Some(&table.name), message);
            }
        }
        let health = self.document.status;
        self.document.status = before.max(health);
        let mut entry = serde_json::to_value(open).unwrap_or_default();
        entry["status"] = json!(health);
        entry["link"] = json!(link.map(link_word));
        entry["last_error"] = json!(error);
        self.document.databases.push(entry);
    }

    /// What the session says of the link; gives its last error.
    fn link(&mut self, name: &str, link: &LinkView) -> Option<String> {
        let session = &link.session;
        let last = session.last_error.as_ref().map(|(_, error)| error);
        let trouble = match &session.link {
            LinkState::Waiting { error, .. } => Some(error),
            // Another attempt is no success yet.
            LinkState::Greeting => last,
            LinkState::Live => None,
        };
        if let Some(error) = trouble {
            self.alarm(Health::Degraded, "hub_unreachable", Some(name), None, error.clone());
        }
        for lane in &session.lanes {
            if let Some(error) = &lane.error {
                let message = format!("lane {}: {error}", lane.lane.name());
                self.alarm(Health::Degraded, "lane_held", Some(name), None, message);
            }
        }
        if let Some(error) = &session.down_error {
            self.alarm(Health::Degraded, "down_out_of_order", Some(name), None, error.clone());
        }
        last.cloned()
    }
}

/// Whether receipts came within the bound: a long backlog drains, however old its end is.
fn receipts_come(link: Option<&LinkView>, bound: Duration) -> bool {
    link.is_some_and(|link| {
        let at = link.session.last_receipt.map(|at| link.started + at);
        at.is_some_and(|at| at.elapsed() < bound)
    })
}

fn link_word(link: &LinkView) -> &'static str {
    match link.session.link {
        LinkState::Greeting => "greeting",
        LinkState::Live => "live",
        LinkState::Waiting { .. } => "waiting",
    }
}
