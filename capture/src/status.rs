//! What status says of one database: its tables, and what a person should look at.
//!
//! Only reads, in one short transaction: counts are exact while they are small and lower bounds
//! beyond. How the link to the hub is, is the agent's to add. Nothing counts as healthy here while
//! a table does not progress.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde::Serialize;
use sync_proto::message::TableState;
use sync_proto::schema::{Authority, Modality};
use sync_proto::{Epoch, Seq};

use crate::ages::Ages;
use crate::config::DatabaseConfig;
use crate::connection;
use crate::error::{CaptureError, Result};
use crate::handle::Capture;
use crate::inspect::{self, Skipped, Weight};
use crate::local::LastRevert;
use crate::log::{LoadedTail, Tail};
use crate::meta;
use crate::outcomes::Outcomes;
use crate::parked;
use crate::pending;
use crate::progress;
use crate::registry::{self, Phase, Registry, Table, TableId};
use crate::schema;
use crate::snapshot::TailBounds;

/// Keys and entries that one status counts over all tables, at most.
const COUNT_MAX: usize = 10_000;

/// One database.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DatabaseStatus {
    /// Its name on the device.
    pub name: String,
    /// The application's file.
    pub path: String,
    /// `healthy` or `degraded`: whether there is an alarm.
    pub status: &'static str,
    /// Its epoch; none while nothing is installed.
    pub epoch: Option<String>,
    /// Its tables.
    pub tables: Vec<TableStatus>,
    /// The tables that are not enrolled.
    pub skipped: Vec<SkippedTable>,
    /// What a person should look at.
    pub alarms: Vec<Alarm>,
    /// The last local write to a cloud-authoritative table that was put back.
    pub last_revert: Option<LastRevert>,
}

/// One enrolled table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TableStatus {
    /// Its name in the file.
    pub name: String,
    /// State or mutable.
    pub modality: Modality,
    /// Device or cloud.
    pub authority: Authority,
    /// `seeding`, `live`, `new`, `attaching`, `attached`, `paused`, `authority_mismatch`,
    /// `refused` or `gone`.
    pub status: &'static str,
    /// Up to where its lane of live changes is received.
    pub watermark: i64,
    /// Keys that wait for their receipt.
    pub pending: u64,
    /// There are more than `pending`: counting went no further.
    pub pending_more: bool,
    /// How long the oldest of them waits, in seconds, as far as this process saw it.
    pub oldest_pending_s: Option<u64>,
    /// When the last receipt for one of its rows came (RFC 3339, UTC).
    pub last_receipt: Option<String>,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// Rows that are set aside.
    pub quarantine: u64,
    /// Local writes that were put back.
    pub reverted: u64,
    /// Local rows that the hub does not have.
    pub surplus: u64,
    /// Rows that receipts named as not applied, by outcome, since the start.
    pub outcomes: BTreeMap<&'static str, u64>,
}

/// One table that is not enrolled.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SkippedTable {
    /// Its name.
    pub table: String,
    /// Why, and what to do where it was asked for.
    pub reason: String,
    /// Whether it was asked for.
    pub refused: bool,
}

/// Something that a person should look at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Alarm {
    /// A stable word.
    pub code: String,
    /// The table that it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// What happened and what to do.
    pub message: String,
}

impl Capture {
    /// What status says now.
    ///
    /// # Errors
    /// SQLite's.
    pub fn status(&mut self) -> Result<DatabaseStatus> {
        let (registry, ages, outcomes) = (&self.registry, &self.ages, &self.outcomes);
        let view = View { registry, seen: Some((ages, outcomes)), now: Instant::now() };
        let tables = self.connections.read(|tx| view.tables(tx))?;
        let mut alarms: Vec<Alarm> = self
            .events
            .iter()
            .map(|event| Alarm {
                code: event.code.clone(),
                table: None,
                message: event.message.clone(),
            })
            .collect();
        alarms.extend(skipped_alarms(&self.skipped));
        alarms.extend(tables.iter().filter_map(alarm_of));
        Ok(status(
            &self.config,
            Some(self.life.epoch),
            tables,
            &self.skipped,
            alarms,
            self.local.last_revert().cloned(),
        ))
    }
}

/// What can be said of a database without its agent: read from the file, changing nothing.
///
/// # Errors
/// Every [`CaptureError`] that makes the file unusable.
pub fn offline_status(config: &DatabaseConfig) -> Result<DatabaseStatus> {
    read_offline(config).map_err(|error| error.at(&config.path))
}

/// The rows that are set aside, read from the file without its agent.
///
/// # Errors
/// Every [`CaptureError`] that makes the file unusable.
pub fn offline_quarantine(path: &Path) -> Result<Vec<parked::QuarantinedRow>> {
    let read = || {
        let conn = connection::look(path)?;
        if !schema::is_installed(&conn)? {
            return Ok(Vec::new());
        }
        parked::list(&conn, &Registry::load(&conn)?)
    };
    read().map_err(|error: CaptureError| error.at(path))
}

fn read_offline(config: &DatabaseConfig) -> Result<DatabaseStatus> {
    let conn = connection::look(&config.path)?;
    let tx = conn.unchecked_transaction()?;
    let survey = inspect::survey(&tx, config)?;
    let mut alarms = skipped_alarms(&survey.skipped);
    if !schema::is_installed(&tx)? {
        return Ok(status(config, None, Vec::new(), &survey.skipped, alarms, None));
    }
    let registry = Registry::load(&tx)?;
    let view = View { registry: &registry, seen: None, now: Instant::now() };
    let tables = view.tables(&tx)?;
    alarms.extend(tables.iter().filter_map(alarm_of));
    let epoch = meta::life(&tx)?.map(|life| life.epoch);
    Ok(status(config, epoch, tables, &survey.skipped, alarms, None))
}

fn status(
    config: &DatabaseConfig,
    epoch: Option<Epoch>,
    tables: Vec<TableStatus>,
    skipped: &[Skipped],
    alarms: Vec<Alarm>,
    last_revert: Option<LastRevert>,
) -> DatabaseStatus {
    DatabaseStatus {
        name: config.name.clone(),
        path: config.path.display().to_string(),
        status: if alarms.is_empty() { "healthy" } else { "degraded" },
        epoch: epoch.map(|epoch| epoch.to_string()),
        tables,
        skipped: skipped
            .iter()
            .map(|skipped| SkippedTable {
                table: skipped.table.clone(),
                reason: skipped.reason.clone(),
                refused: skipped.weight != Weight::Expected,
            })
            .collect(),
        alarms,
        last_revert,
    }
}

fn skipped_alarms(skipped: &[Skipped]) -> Vec<Alarm> {
    skipped
        .iter()
        .filter(|skipped| skipped.weight != Weight::Expected)
        .map(|skipped| Alarm {
            code: "table_refused".to_owned(),
            table: Some(skipped.table.clone()),
            message: skipped.reason.clone(),
        })
        .collect()
}

/// What a table's line gives reason to look at.
fn alarm_of(table: &TableStatus) -> Option<Alarm> {
    let alarm = |code: &str, message: String| {
        Some(Alarm { code: code.to_owned(), table: Some(table.name.clone()), message })
    };
    let error = || table.last_error.clone().unwrap_or_default();
    match table.status {
        "paused" => alarm("table_paused", "an operator paused it at the hub".to_owned()),
        "authority_mismatch" => alarm("authority_mismatch", error()),
        "refused" => alarm("table_refused_by_hub", error()),
        "gone" => alarm(
            "table_gone",
            format!(
                "it is not in the file or not wanted any more; {} changed keys are held until it \
                 is back",
                table.pending
            ),
        ),
        _ if table.quarantine > 0 => alarm(
            "quarantine",
            format!("{} rows are set aside; the last: {}", table.quarantine, error()),
        ),
        _ => None,
    }
}

/// A registry to be described, with what only a running agent knows.
struct View<'a> {
    registry: &'a Registry,
    seen: Option<(&'a Ages, &'a Outcomes)>,
    now: Instant,
}

/// Keys of one table that wait.
#[derive(Clone, Copy, Default)]
struct Waiting {
    count: u64,
    more: bool,
    oldest: Option<Seq>,
}

impl View<'_> {
    fn tables(&self, conn: &Connection) -> Result<Vec<TableStatus>> {
        let received = progress::received(&progress::known(conn)?);
        let mut waiting = tail(conn, self.registry)?;
        let mut left = COUNT_MAX;
        let mut lines = Vec::new();
        for table in self.registry.tables() {
            let waiting = waiting.entry(table.id).or_default();
            left -= folded(conn, table.id, left, waiting)?;
            // A table that is gone is of interest for what is held of it.
            if table.phase == Phase::Gone && waiting.count == 0 {
                continue;
            }
            let lane = table.live_lane();
            let position = received.iter().find(|position| position.lane == lane);
            let watermark = position.map_or(0, |position| position.seq.0);
            lines.push(self.line(conn, table, *waiting, watermark)?);
        }
        Ok(lines)
    }

    fn line(
        &self,
        conn: &Connection,
        table: &Table,
        waiting: Waiting,
        watermark: i64,
    ) -> Result<TableStatus> {
        let counters = registry::counters(conn, table.id)?;
        let quarantine = parked::count(conn, table.id)?;
        let last_error = match hub_error(table) {
            None if quarantine > 0 => parked::last_reason(conn, table.id)?,
            error => error,
        };
        let age = |seq: Seq| self.seen.map(|(ages, _)| ages.age(seq, self.now));
        Ok(TableStatus {
            name: table.name().to_owned(),
            modality: table.spec.modality,
            authority: table.spec.authority,
            status: word(table),
            watermark,
            pending: waiting.count,
            pending_more: waiting.more,
            oldest_pending_s: waiting.oldest.and_then(age).as_ref().map(Duration::as_secs),
            last_receipt: counters.last_receipt,
            last_error,
            quarantine,
            reverted: counters.reverted,
            surplus: counters.surplus,
            outcomes: self.seen.map(|(_, outcomes)| outcomes.of(table.id)).unwrap_or_default(),
        })
    }
}

/// Keys of the unfolded tail that are not folded too, by table; entries where the tail is long.
fn tail(conn: &Connection, registry: &Registry) -> Result<HashMap<TableId, Waiting>> {
    let bounds = TailBounds::default();
    let LoadedTail::Whole(tail) = Tail::load(conn, registry, bounds.entries, bounds.bytes)? else {
        return long_tail(conn);
    };
    let mut waiting: HashMap<TableId, Waiting> = HashMap::new();
    for ((id, key), logged) in &tail.keys {
        let local = registry.get(*id).is_some_and(Table::is_cloud) && !logged.seeds_only;
        if local || pending::place(conn, *id, key)?.is_some() {
            continue;
        }
        let waiting = waiting.entry(*id).or_default();
        waiting.count += 1;
        let first = logged.seqs.first().copied();
        waiting.oldest = waiting.oldest.into_iter().chain(first).min();
    }
    Ok(waiting)
}

fn long_tail(conn: &Connection) -> Result<HashMap<TableId, Waiting>> {
    let limit = i64::try_from(COUNT_MAX).unwrap_or(i64::MAX);
    let mut statement = conn.prepare_cached(
        "SELECT t, count(*), min(seq) FROM (SELECT t, seq FROM _rowtide_log ORDER BY seq LIMIT ?1) \
         WHERE t <> 0 GROUP BY t",
    )?;
    let mut rows = statement.query([limit])?;
    let mut waiting = HashMap::new();
    while let Some(row) = rows.next()? {
        let count: i64 = row.get(1)?;
        let oldest = Some(Seq(row.get(2)?));
        let count = count.unsigned_abs();
        waiting.insert(TableId(row.get(0)?), Waiting { count, more: true, oldest });
    }
    Ok(waiting)
}

/// Adds a table's folded keys, counting at most `max`; answers how many were counted.
fn folded(conn: &Connection, table: TableId, max: usize, waiting: &mut Waiting) -> Result<usize> {
    let limit = i64::try_from(max).unwrap_or(i64::MAX);
    let (count, oldest): (i64, Option<i64>) = conn
        .prepare_cached(
            "SELECT count(*), min(seq) FROM \
             (SELECT seq FROM _rowtide_pending WHERE t = ?1 AND lane >= 0 LIMIT ?2)",
        )?
        .query_row([table.0, limit], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let counted = usize::try_from(count).unwrap_or(max);
    waiting.count += count.unsigned_abs();
    waiting.more |= counted == max;
    if let Some(seq) = oldest.map(Seq) {
        // Folded numbers are below the tail's.
        waiting.oldest = Some(seq);
    }
    Ok(counted)
}

/// A table's status in one word.
fn word(table: &Table) -> &'static str {
    if table.phase == Phase::Gone {
        return table.phase.name();
    }
    match table.hub.as_ref().map(|hub| &hub.state) {
        Some(TableState::Paused) => "paused",
        Some(TableState::AuthorityMismatch { .. }) => "authority_mismatch",
        Some(TableState::Refused { .. }) => "refused",
        Some(TableState::Flowing) | None => table.phase.name(),
    }
}

/// Why the hub takes no rows of a table, if it said so.
fn hub_error(table: &Table) -> Option<String> {
    match &table.hub.as_ref()?.state {
        TableState::Flowing | TableState::Paused => None,
        TableState::AuthorityMismatch { hub } => Some(format!(
            "the configuration says authority {:?} and the hub says {hub:?}; make them agree",
            table.spec.authority
        )),
        TableState::Refused { message } => Some(message.clone()),
    }
}
