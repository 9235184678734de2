//! Rows of the hub, each under the version guard.
//!
//! The guard is the shared rule ([`sync_proto::decide`]) over what is known of the row; a version
//! that waits parked counts as seen, so nothing older overtakes it. A row that is parked at
//! exactly the version that comes is not in the file as it should be, and is written again.

use std::cell::Cell;

use rusqlite::Connection;
use sync_proto::message::{Outcome, Reason};
use sync_proto::{Cursor, NaturalKey, RowHash, Stamp, Value, Verdict, Version, decide};

use crate::error::Result;
use crate::meta;
use crate::parked::{self, Direction, Parking, Payload};
use crate::registry::TableId;
use crate::row::Shape;
use crate::shadow::{self, Copy, Known, Record};

use super::refusal::{RowError, in_savepoint, reason};
use super::slices::{Rows, Step};
use super::target::Targets;
use super::write::{self, Change};

/// A row of the hub for an enrolled cloud-authoritative table.
#[derive(Clone, Debug)]
pub(crate) struct DownRow<'a> {
    /// Its table.
    pub(crate) table: TableId,
    /// Its key.
    pub(crate) key: NaturalKey,
    /// The key's parts.
    pub(crate) key_values: Vec<Value>,
    /// Its version.
    pub(crate) version: Version,
    /// Whether it is a delete.
    pub(crate) deleted: bool,
    /// Names of the columns that came.
    pub(crate) columns: &'a [String],
    /// One value for each.
    pub(crate) values: &'a [Value],
}

impl DownRow<'_> {
    /// The hash of the row as it came: what an equal version is compared by.
    pub(crate) fn sent(&self) -> RowHash {
        if self.deleted {
            RowHash::TOMBSTONE
        } else {
            RowHash::of(self.columns.iter().map(String::as_str).zip(self.values))
        }
    }

    fn payload(&self) -> Payload {
        Payload {
            deleted: self.deleted,
            columns: self.columns.to_vec(),
            values: self.values.to_vec(),
        }
    }
}

/// Rows of the hub to write in one piece of work.
#[derive(Debug)]
pub(crate) struct DownRows<'a> {
    rows: Vec<DownRow<'a>>,
    /// The cursor that is held once all of them are settled; `None` for a retry.
    next: Option<Cursor>,
    /// The highest version that the guard let pass.
    highest: Cell<Version>,
}

impl<'a> DownRows<'a> {
    /// Rows of a batch that ends at `next`, or of a retry.
    pub(crate) fn new(rows: Vec<DownRow<'a>>, next: Option<Cursor>) -> Self {
        Self { rows, next, highest: Cell::new(Version::NONE) }
    }

    /// The rows.
    pub(crate) fn rows(&self) -> &[DownRow<'a>] {
        &self.rows
    }
}

impl Rows for DownRows<'_> {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn write(
        &self,
        conn: &Connection,
        targets: &mut Targets<'_>,
        at: usize,
    ) -> Result<Step, RowError> {
        let row = &self.rows[at];
        let known = shadow::known(conn, row.table, &row.key)?;
        let held = known.map_or(Version::NONE, |known| known.version);
        let parked = parked::entry(conn, row.table, row.key.as_str(), Direction::Down)?;
        let parked = parked.map(|(number, _reason)| Version(number));
        let again = parked == Some(row.version) && held == row.version;
        if !again {
            let outcome = guard(conn, row, known, parked)?;
            if !matches!(outcome, Some(Outcome::Rejected(_))) {
                self.highest.set(self.highest.get().max(row.version));
            }
            if let Some(outcome) = outcome {
                return Ok(Step::Left(outcome));
            }
        }
        let copy = if again { shadow::copy(conn, row.table, &row.key)? } else { None };
        let change = in_savepoint(conn, || put(conn, targets, row, copy.as_ref()))?;
        if known.is_some() && held == Version::NONE && row.version > Version::NONE {
            shadow::add_surplus(conn, row.table, -1)?;
        }
        Ok(Step::Written(row.table, change))
    }

    fn give_up(&self, conn: &Connection, at: usize, reason: &Reason) -> Result<()> {
        let row = &self.rows[at];
        parked::park(
            conn,
            &Parking {
                table: row.table,
                key: row.key.as_str(),
                direction: Direction::Down,
                number: row.version.0,
                reason,
                payload: Some(&row.payload()),
            },
        )
    }

    fn finish(&self, conn: &Connection) -> Result<()> {
        let Some(next) = self.next else { return Ok(()) };
        meta::raise_floor(conn, self.highest.get())?;
        meta::set_cursor(conn, next)
    }
}

/// What becomes of a row that is not to be written; `None`: it is.
fn guard(
    conn: &Connection,
    row: &DownRow<'_>,
    known: Option<Known>,
    parked: Option<Version>,
) -> Result<Option<Outcome>, RowError> {
    if parked.is_some_and(|parked| row.version < parked) {
        return Ok(Some(Outcome::Stale));
    }
    let stored = match known.filter(|known| known.version > Version::NONE) {
        Some(known) if known.version == row.version => {
            // Only now does it matter what was sent; copies are large.
            let copy = shadow::copy(conn, row.table, &row.key)?;
            Some(Stamp {
                version: known.version,
                hash: copy.map_or(known.stored, |copy| copy.sent),
            })
        }
        Some(known) => Some(Stamp { version: known.version, hash: known.stored }),
        None => None,
    };
    Ok(verdict(decide(stored, Stamp { version: row.version, hash: row.sent() })))
}

/// The outcome of a verdict; `None` for a row to write.
pub(crate) fn verdict(verdict: Verdict) -> Option<Outcome> {
    match verdict {
        Verdict::Apply => None,
        Verdict::Duplicate => Some(Outcome::Duplicate),
        Verdict::Stale => Some(Outcome::Stale),
        Verdict::Diverged => Some(Outcome::Diverged),
        Verdict::OutOfRange => Some(Outcome::Rejected(reason(
            "version_range",
            "the version is not above zero or too far above the row's; it comes from no honest hub",
        ))),
    }
}

/// Writes the row and what is known of it.
fn put(
    conn: &Connection,
    targets: &mut Targets<'_>,
    row: &DownRow<'_>,
    again: Option<&Copy>,
) -> Result<Change, RowError> {
    let target = targets.get(conn, row.table)?;
    if !target.table.flows() {
        let message =
            format!("table {} does not flow now; it is applied once it does", target.table.name());
        return Err(RowError::refused("held", message));
    }
    let (shape, change) = if row.deleted {
        let change = write::delete(conn, &target.shape, &row.key_values)?;
        (&target.shape, change)
    } else {
        let (shape, mapping) = target.mapping(row.columns).map_err(RowError::Refused)?;
        let values: Vec<&Value> = mapping.values.iter().map(|at| &row.values[*at]).collect();
        (shape, write::put(conn, shape, &mapping.sql, &row.key_values, &values)?)
    };
    let sent = again.map_or_else(|| row.sent(), |copy| copy.sent);
    let adopted = again.is_some_and(|copy| copy.adopted);
    let stands = Stands { version: row.version, sent, adopted };
    record(conn, row.table, &row.key, shape, &change, &stands)?;
    parked::clear(conn, row.table, row.key.as_str(), Direction::Down, row.version.0)?;
    Ok(change)
}

/// What is recorded of a row besides how it stands in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stands {
    /// See [`Known::version`].
    pub(crate) version: Version,
    /// See [`Copy::sent`].
    pub(crate) sent: RowHash,
    /// See [`Copy::adopted`].
    pub(crate) adopted: bool,
}

/// Records a row as it stands after a change. Of a row that the hub never wrote and that is gone,
/// nothing is kept.
pub(crate) fn record(
    conn: &Connection,
    table: TableId,
    key: &NaturalKey,
    shape: &Shape,
    change: &Change,
    stands: &Stands,
) -> Result<()> {
    let Some(after) = &change.after else {
        if stands.version == Version::NONE {
            return shadow::forget(conn, table, key);
        }
        let record = Record {
            version: stands.version,
            stored: RowHash::TOMBSTONE,
            sent: stands.sent,
            adopted: false,
            row: Vec::new(),
        };
        return shadow::record(conn, table, key, &record);
    };
    let record = Record {
        version: stands.version,
        stored: shape.hash_of(after),
        sent: stands.sent,
        adopted: stands.adopted,
        row: shape.columns().iter().map(String::as_str).zip(after).collect(),
    };
    shadow::record(conn, table, key, &record)
}
