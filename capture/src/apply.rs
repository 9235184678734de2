//! Applies rows of the hub to the application's cloud-authoritative tables.
//!
//! A batch applies only at the cursor it starts from; one that was applied before is answered the
//! same and writes nothing. Every row is written under its version, and the cursor moves in the
//! same transaction as the last of them, never before. A row that the file refuses is parked and
//! reported, and the others go on. Triggers of the application do fire.

mod down;
mod foreign;
mod refusal;
mod retry;
mod slices;
mod target;
mod write;

use std::collections::HashMap;

use rusqlite::Connection;
use sync_proto::message::{DownBatch, DownOutcome, DownReceipt, Outcome};
use sync_proto::rows::{Row, TableRows, unpack};
use sync_proto::{Cursor, Epoch, NaturalKey, Stamp, Value, Version, decide};

use crate::connection::Connections;
use crate::error::{CaptureError, Result};
use crate::meta;
use crate::parked::{self, Direction};
use crate::registry::{Registry, Table, TableId};

pub(crate) use down::{DownRow, DownRows, Stands, record};
pub(crate) use refusal::{RowError, in_savepoint, reason};
pub(crate) use retry::retry_down;
pub(crate) use slices::{Rows, Settled, Step, run};
pub(crate) use target::{Target, Targets, shape_of};
pub(crate) use write::{Change, delete, put, read};

/// What became of a batch of the hub.
#[derive(Clone, PartialEq, Debug)]
pub enum ApplyOutcome {
    /// Its rows are settled and the cursor stands at its end, now or since before.
    Applied(DownReceipt),
    /// It does not start at the cursor that the file holds, which is this one.
    Misplaced(Cursor),
}

/// Where the file stands.
struct Place {
    cursor: Cursor,
    generation: u64,
    epoch: Epoch,
}

/// Applies a batch.
///
/// # Errors
/// [`CaptureError::Message`] for a batch of another generation or one that cannot be read, and
/// SQLite's. After an error the batch may be applied again.
pub(crate) fn apply(
    conns: &mut Connections,
    registry: &Registry,
    batch: &DownBatch,
) -> Result<ApplyOutcome> {
    let place = conns.read(|tx| place(tx))?;
    if batch.generation != place.generation {
        return Err(message(format!(
            "the batch has authority generation {}, this file {}; greet the hub again",
            batch.generation, place.generation
        )));
    }
    let known = batch.next <= place.cursor;
    if batch.prev != place.cursor && !known {
        return Ok(ApplyOutcome::Misplaced(place.cursor));
    }
    if batch.next < batch.prev {
        return Err(message("the batch ends before it starts".to_owned()));
    }
    let tables = unpack(&batch.rows).map_err(|error| message(error.to_string()))?;
    let sorted = Sorted::of(registry, &tables);
    let mut outcomes = sorted.outcomes;
    let rows = DownRows::new(sorted.rows, Some(batch.next));
    if known {
        outcomes.extend(refused_before(conns, registry, rows.rows())?);
    } else {
        let settled = run(conns, registry, &rows, 0..rows.len())?;
        let applied = settled.iter().any(|row| row.outcome == Outcome::Applied);
        outcomes.extend(reported(registry, rows.rows(), settled));
        if applied {
            retry::retry_blocked(conns, registry)?;
        }
    }
    let highest = conns.read(|tx| meta::floor(tx))?;
    Ok(ApplyOutcome::Applied(DownReceipt {
        database: batch.database.clone(),
        epoch: place.epoch,
        cursor: batch.next.max(place.cursor),
        outcomes,
        highest,
    }))
}

fn place(conn: &Connection) -> Result<Place> {
    let life = meta::life(conn)?.ok_or_else(|| CaptureError::corrupt("the file has no epoch"))?;
    Ok(Place {
        cursor: meta::cursor(conn)?,
        generation: meta::generation(conn)?,
        epoch: life.epoch,
    })
}

fn message(reason: String) -> CaptureError {
    CaptureError::Message { reason }
}

/// A batch's rows, sorted into those to write and those whose outcome is known at once.
struct Sorted<'a> {
    rows: Vec<DownRow<'a>>,
    outcomes: Vec<DownOutcome>,
}

impl<'a> Sorted<'a> {
    /// Takes of each key only the greatest version: what it overtook is never written, so no
    /// trigger sees it.
    fn of(registry: &Registry, tables: &'a [TableRows]) -> Self {
        let mut sorted = Self { rows: Vec::new(), outcomes: Vec::new() };
        let mut winners: HashMap<(TableId, NaturalKey), usize> = HashMap::new();
        for group in tables {
            let table = match destination(registry, group) {
                Ok(table) => table,
                Err(outcome) => {
                    let refused =
                        group.rows.iter().map(|row| outcome_of(group, row, outcome.clone()));
                    sorted.outcomes.extend(refused);
                    continue;
                }
            };
            for row in &group.rows {
                let key_values: Vec<Value> =
                    group.key.iter().map(|at| row.values[usize::from(*at)].clone()).collect();
                if NaturalKey::has_null(&key_values) {
                    let reason = reason("null_key", "a part of the row's key is NULL");
                    sorted.outcomes.push(outcome_of(group, row, Outcome::Rejected(reason)));
                    continue;
                }
                let incoming = DownRow {
                    table: table.id,
                    key: NaturalKey::of(&key_values),
                    key_values,
                    version: Version(row.number),
                    deleted: row.deleted,
                    columns: &group.columns,
                    values: &row.values,
                };
                sorted.add(&mut winners, group, incoming);
            }
        }
        sorted
    }

    fn add(
        &mut self,
        winners: &mut HashMap<(TableId, NaturalKey), usize>,
        group: &TableRows,
        row: DownRow<'a>,
    ) {
        let place = (row.table, row.key.clone());
        let Some(at) = winners.get(&place).copied() else {
            winners.insert(place, self.rows.len());
            self.rows.push(row);
            return;
        };
        let stamp = |row: &DownRow<'_>| Stamp { version: row.version, hash: row.sent() };
        let (held, other) = (&self.rows[at], row);
        let loser = if other.version > held.version {
            std::mem::replace(&mut self.rows[at], other)
        } else {
            other
        };
        let winner = stamp(&self.rows[at]);
        let outcome = down::verdict(decide(Some(winner), stamp(&loser))).unwrap_or(Outcome::Stale);
        self.outcomes.push(DownOutcome {
            table: group.table.clone(),
            key: loser.key.as_str().to_owned(),
            version: loser.version,
            outcome,
        });
    }
}

/// The table that a group of rows goes to, or what becomes of all of them.
fn destination<'a>(registry: &'a Registry, group: &TableRows) -> Result<&'a Table, Outcome> {
    let refused = |code: &str, message: String| Err(Outcome::Rejected(reason(code, message)));
    let Some(table) = registry.named(&group.table).filter(|table| table.is_cloud()) else {
        let message = format!(
            "table {} is not cloud-authoritative on this device; nothing was written",
            group.table
        );
        return refused("not_cloud", message);
    };
    let key: Vec<&str> =
        group.key.iter().map(|at| group.columns[usize::from(*at)].as_str()).collect();
    let own = table.spec.key();
    let same = key.len() == own.len()
        && key.iter().zip(&own).all(|(theirs, ours)| theirs.eq_ignore_ascii_case(ours));
    if !same {
        let message = format!(
            "table {} has the key ({}), the row has ({})",
            group.table,
            own.join(", "),
            key.join(", ")
        );
        return refused("key_mismatch", message);
    }
    Ok(table)
}

fn outcome_of(group: &TableRows, row: &Row, outcome: Outcome) -> DownOutcome {
    DownOutcome {
        table: group.table.clone(),
        key: group.key_of(row).as_str().to_owned(),
        version: Version(row.number),
        outcome,
    }
}

/// What the hub is told: every row that was not applied.
fn reported(
    registry: &Registry,
    rows: &[DownRow<'_>],
    settled: Vec<Settled>,
) -> impl Iterator<Item = DownOutcome> {
    settled
        .into_iter()
        .filter(|row| row.outcome != Outcome::Applied)
        .map(|row| named_outcome(registry, &rows[row.at], row.outcome))
}

/// The rows of a batch that was applied before and that the file refused then.
fn refused_before(
    conns: &mut Connections,
    registry: &Registry,
    rows: &[DownRow<'_>],
) -> Result<Vec<DownOutcome>> {
    let mut refused = Vec::new();
    if !conns.read(|tx| parked::any(tx, Direction::Down))? {
        return Ok(refused);
    }
    let mut looked = 0;
    while looked < rows.len() {
        let some = conns.read(|tx| {
            let mut some = Vec::new();
            for row in &rows[looked..] {
                let key = row.key.as_str();
                some.push(parked::entry(tx, row.table, key, Direction::Down)?);
                if tx.spent() {
                    break;
                }
            }
            Ok(some)
        })?;
        for (row, entry) in rows[looked..].iter().zip(&some) {
            if let Some((_, reason)) = entry.as_ref().filter(|entry| entry.0 == row.version.0) {
                let outcome = Outcome::Rejected(reason.clone());
                refused.push(named_outcome(registry, row, outcome));
            }
        }
        looked += some.len();
    }
    Ok(refused)
}

fn named_outcome(registry: &Registry, row: &DownRow<'_>, outcome: Outcome) -> DownOutcome {
    DownOutcome {
        table: registry.get(row.table).map_or_else(String::new, |table| table.name().to_owned()),
        key: row.key.as_str().to_owned(),
        version: row.version,
        outcome,
    }
}
