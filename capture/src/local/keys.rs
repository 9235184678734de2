//! One logged key of a cloud-authoritative table: compare the row with what is recorded, then drop
//! the entries or put the row back, in one transaction.
//!
//! The comparison and the write see the same row, because both happen under the write lock. Which
//! keys are looked at, and how often, is decided by [`super::LocalCheck`].

use rusqlite::Connection;
use sync_proto::key::KeyError;
use sync_proto::message::{Outcome, Reason};
use sync_proto::{NaturalKey, RowHash, Value, Version};

use crate::apply::{self, Change, RowError, Rows, Stands, Step, Target, Targets};
use crate::error::{CaptureError, Result};
use crate::fill::forget;
use crate::log::{self, LoggedKey};
use crate::parked::{self, Direction, Parking, Payload};
use crate::registry::{self, Phase, Table};
use crate::row::{Found, Shape};
use crate::shadow;

/// A key to check.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct CheckedKey {
    /// What is logged of it.
    pub(super) logged: LoggedKey,
    /// The key's parts.
    pub(super) parts: Vec<Value>,
}

/// Keys to check in one piece of work.
#[derive(Debug)]
pub(super) struct LocalKeys(Vec<CheckedKey>);

impl LocalKeys {
    /// These keys.
    pub(super) const fn new(keys: Vec<CheckedKey>) -> Self {
        Self(keys)
    }

    /// The keys.
    pub(super) fn keys(&self) -> &[CheckedKey] {
        &self.0
    }
}

impl Rows for LocalKeys {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn write(
        &self,
        conn: &Connection,
        targets: &mut Targets<'_>,
        at: usize,
    ) -> Result<Step, RowError> {
        let key = &self.0[at];
        let target = targets.get(conn, key.logged.table)?;
        if target.table.phase == Phase::New {
            // Attaching takes the rows as they stand then.
            forget(conn, &key.logged)?;
            return Ok(Step::Left(Outcome::Duplicate));
        }
        let row = apply::read(conn, &target.shape, &key.parts)?;
        let stands = hash_of(&target.shape, row.as_deref());
        let known = shadow::known(conn, key.logged.table, &key.logged.key)?;
        let recorded = known.map_or(RowHash::TOMBSTONE, |known| known.stored);
        let own = known.is_none_or(|known| known.version == Version::NONE);
        if stands == recorded {
            forget(conn, &key.logged)?;
            if own {
                offer_again(conn, target.table, key)?;
            }
            return Ok(Step::Left(Outcome::Duplicate));
        }
        if own && target.table.phase == Phase::Attaching {
            take(conn, target, key, row)?;
            return Ok(Step::Left(Outcome::Duplicate));
        }
        let change = apply::in_savepoint(conn, || put_back(conn, target, key))?;
        Ok(Step::Written(key.logged.table, change))
    }

    /// A row that cannot be put back waits in quarantine, at the version that it should have.
    fn give_up(&self, conn: &Connection, at: usize, reason: &Reason) -> Result<()> {
        let CheckedKey { logged, parts } = &self.0[at];
        let known = shadow::known(conn, logged.table, &logged.key)?;
        let number = known.map_or(0, |known| known.version.0);
        let parked = parked::entry(conn, logged.table, logged.key.as_str(), Direction::Down)?;
        // A newer version waits already; it will settle the row.
        if parked.is_none_or(|(parked, _)| parked <= number) {
            let row = shadow::copy(conn, logged.table, &logged.key)?.map(|copy| copy.row);
            let payload = match row.filter(|row| !row.is_empty()) {
                Some(row) => {
                    let (columns, values) = row.into_iter().unzip();
                    Payload { deleted: false, columns, values }
                }
                None => Payload { deleted: true, columns: Vec::new(), values: parts.clone() },
            };
            let parking = Parking {
                table: logged.table,
                key: logged.key.as_str(),
                direction: Direction::Down,
                number,
                reason,
                payload: Some(&payload),
            };
            parked::park(conn, &parking)?;
        }
        forget(conn, logged)
    }

    fn finish(&self, _conn: &Connection) -> Result<()> {
        Ok(())
    }
}

/// Whether a row differs from what is recorded of it.
///
/// # Errors
/// SQLite's.
pub(super) fn differs(
    conn: &Connection,
    table: &Table,
    key: &NaturalKey,
    parts: &[Value],
) -> Result<bool> {
    let shape = match apply::shape_of(conn, table) {
        Ok(shape) => shape,
        Err(RowError::Failed(error)) => return Err(error),
        // The check itself says what is wrong with the table.
        Err(RowError::Refused(_) | RowError::Lost(_)) => return Ok(false),
    };
    let stands = match shape.read(conn, parts)? {
        Found::None => RowHash::TOMBSTONE,
        Found::One(row) => shape.hash_of(&row),
        Found::Many => return Ok(false),
    };
    let known = shadow::known(conn, table.id, key)?;
    Ok(stands != known.map_or(RowHash::TOMBSTONE, |known| known.stored))
}

/// The error for a key text that this crate wrote and cannot read.
#[expect(clippy::needless_pass_by_value, reason = "it stands where map_err hands the error over")]
pub(super) fn unreadable(error: KeyError) -> CaptureError {
    CaptureError::corrupt(format!("a logged key: {error}"))
}

/// Puts the copy back, and accepts the row as it stands then.
fn put_back(
    conn: &Connection,
    target: &mut Target<'_>,
    key: &CheckedKey,
) -> Result<Change, RowError> {
    let CheckedKey { logged, parts } = key;
    let copy = shadow::copy(conn, logged.table, &logged.key)?;
    let (columns, values): (Vec<String>, Vec<Value>) =
        copy.map(|copy| copy.row).unwrap_or_default().into_iter().unzip();
    let change = if columns.is_empty() {
        apply::delete(conn, &target.shape, parts)?
    } else {
        let (shape, mapping) = target.mapping(&columns).map_err(RowError::Refused)?;
        let values: Vec<&Value> = mapping.values.iter().map(|at| &values[*at]).collect();
        apply::put(conn, shape, &mapping.sql, parts, &values)?
    };
    let stands = hash_of(&target.shape, change.after.as_deref());
    shadow::accept(conn, logged.table, &logged.key, stands)?;
    registry::add_reverted(conn, logged.table, 1)?;
    forget(conn, &key.logged)?;
    Ok(change)
}

/// Takes a row that the hub never wrote as it stands: until the table is attached, the application
/// is right about it.
fn take(
    conn: &Connection,
    target: &Target<'_>,
    key: &CheckedKey,
    row: Option<Vec<Value>>,
) -> Result<()> {
    forget(conn, &key.logged)?;
    let sent = hash_of(&target.shape, row.as_deref());
    let adopted = target.table.hub.as_ref().is_some_and(|hub| hub.adopt);
    let stands = Stands { version: Version::NONE, sent, adopted };
    let change = Change { before: None, after: row };
    let (table, natural) = (key.logged.table, &key.logged.key);
    let was_known = shadow::known(conn, table, natural)?.is_some();
    shadow::add_surplus(conn, table, i64::from(change.after.is_some()) - i64::from(was_known))?;
    apply::record(conn, table, natural, &target.shape, &change, &stands)?;
    offer_again(conn, target.table, key)
}

/// Logs a row anew that is offered to the hub: its entries, which were dropped, offered it too.
fn offer_again(conn: &Connection, table: &Table, key: &CheckedKey) -> Result<()> {
    let copy = shadow::copy(conn, table.id, &key.logged.key)?;
    if copy.is_some_and(|copy| copy.adopted) {
        log::append(conn, table, &key.parts, true)?;
    }
    Ok(())
}

fn hash_of(shape: &Shape, row: Option<&[Value]>) -> RowHash {
    row.map_or(RowHash::TOMBSTONE, |row| shape.hash_of(row))
}
