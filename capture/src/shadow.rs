//! What is known of each cloud-authoritative row: `_rowtide_rows`.
//!
//! Per key: the version that the hub gave the row (0: a local row that the hub has not written),
//! the hash of the row as it stood after it was applied, and a shadow copy that can be put back.
//! Version and hash answer "is this newer?" and "is this ours?"; acting on the answers is left to
//! [`crate::apply`] and [`crate::local`]. Written only inside the caller's transaction.

use rusqlite::{Connection, OptionalExtension as _, params};
use serde::{Deserialize, Serialize};
use sync_proto::{NaturalKey, RowHash, Value, Version};

use crate::error::{CaptureError, Result};
use crate::registry::{self, TableId, decode, encode};

/// What is known of one row without looking at its copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Known {
    /// The hub's version, or [`Version::NONE`] for a local row that the hub has not written.
    pub(crate) version: Version,
    /// The hash of the row as it stood in the file afterwards; a tombstone's for a deleted row.
    pub(crate) stored: RowHash,
}

/// The copy of a row.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub(crate) struct Copy {
    /// The hash of the row as the hub sent it: what an equal version is compared by. It differs
    /// from the stored hash where the table converts values or triggers change them.
    pub(crate) sent: RowHash,
    /// The local row is offered to the hub; only at version 0.
    pub(crate) adopted: bool,
    /// The row as it stood in the file, by column name. Empty for a deleted row.
    pub(crate) row: Vec<(String, Value)>,
}

/// What is known of a row, if anything is.
///
/// # Errors
/// SQLite's, and [`CaptureError::Corrupt`] for a hash of a wrong size.
pub(crate) fn known(conn: &Connection, table: TableId, key: &NaturalKey) -> Result<Option<Known>> {
    let row: Option<(i64, Vec<u8>)> = conn
        .prepare_cached("SELECT version, stored FROM _rowtide_rows WHERE t = ?1 AND key = ?2")?
        .query_row(params![table.0, key.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    row.map(|(version, stored)| {
        let stored = <[u8; 16]>::try_from(stored).map_err(|bytes| {
            CaptureError::corrupt(format!("a row's hash has {} bytes where 16 belong", bytes.len()))
        })?;
        Ok(Known { version: Version(version), stored: RowHash(stored) })
    })
    .transpose()
}

/// The copy of a row, if there is one.
///
/// # Errors
/// SQLite's, and [`CaptureError::Corrupt`] for a copy that cannot be read.
pub(crate) fn copy(conn: &Connection, table: TableId, key: &NaturalKey) -> Result<Option<Copy>> {
    let bytes: Option<Vec<u8>> = conn
        .prepare_cached("SELECT shadow FROM _rowtide_rows WHERE t = ?1 AND key = ?2")?
        .query_row(params![table.0, key.as_str()], |row| row.get(0))
        .optional()?;
    bytes.map(|bytes| decode(&bytes, "a row's shadow copy")).transpose()
}

/// Keys of a table's rows above `after` (`None`: from the first), in the order of their text, at
/// most `limit`.
///
/// # Errors
/// SQLite's, and [`CaptureError::Corrupt`] for a key that cannot be read.
pub(crate) fn after(
    conn: &Connection,
    table: TableId,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<NaturalKey>> {
    // A document table's key is the empty text, so "above nothing" is not "above the empty text".
    let mut statement = conn.prepare_cached(match after {
        Some(_) => "SELECT key FROM _rowtide_rows WHERE t = ?1 AND key > ?2 ORDER BY key LIMIT ?3",
        None => "SELECT key FROM _rowtide_rows WHERE t = ?1 AND ?2 IS NULL ORDER BY key LIMIT ?3",
    })?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![table.0, after, limit])?;
    let mut keys = Vec::new();
    while let Some(row) = rows.next()? {
        let text: String = row.get(0)?;
        let key = NaturalKey::from_canonical(&text);
        keys.push(key.map_err(|error| CaptureError::corrupt(format!("a row's key: {error}")))?);
    }
    Ok(keys)
}

/// A row to record; the copy's parts are borrowed, because rows may be large.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    /// The hub's version.
    pub(crate) version: Version,
    /// The hash of the row as it stands in the file.
    pub(crate) stored: RowHash,
    /// See [`Copy::sent`].
    pub(crate) sent: RowHash,
    /// See [`Copy::adopted`].
    pub(crate) adopted: bool,
    /// See [`Copy::row`].
    pub(crate) row: Vec<(&'a str, &'a Value)>,
}

/// The encoding of [`struct@Copy`], from borrowed parts.
#[derive(Serialize)]
struct CopyOf<'a> {
    sent: RowHash,
    adopted: bool,
    row: &'a [(&'a str, &'a Value)],
}

/// Records a row as it stands.
///
/// # Errors
/// SQLite's.
pub(crate) fn record(
    conn: &Connection,
    table: TableId,
    key: &NaturalKey,
    record: &Record<'_>,
) -> Result<()> {
    let copy = CopyOf { sent: record.sent, adopted: record.adopted, row: &record.row };
    conn.prepare_cached(
        "INSERT INTO _rowtide_rows(t, key, version, deleted, stored, shadow) \
         VALUES(?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT(t, key) DO UPDATE SET \
         version = excluded.version, deleted = excluded.deleted, stored = excluded.stored, \
         shadow = excluded.shadow",
    )?
    .execute(params![
        table.0,
        key.as_str(),
        record.version.0,
        record.stored == RowHash::TOMBSTONE,
        record.stored.0,
        encode(&copy)?,
    ])?;
    Ok(())
}

/// Accepts how a row stands without changing its copy.
///
/// # Errors
/// SQLite's.
pub(crate) fn accept(
    conn: &Connection,
    table: TableId,
    key: &NaturalKey,
    stored: RowHash,
) -> Result<()> {
    conn.prepare_cached("UPDATE _rowtide_rows SET stored = ?3 WHERE t = ?1 AND key = ?2")?
        .execute(params![table.0, key.as_str(), stored.0])?;
    Ok(())
}

/// Makes a row one that the hub has not written, offered to it or not. How it stands is kept.
///
/// # Errors
/// SQLite's, and [`CaptureError::Corrupt`] for a copy that cannot be read.
pub(crate) fn reset(
    conn: &Connection,
    table: TableId,
    key: &NaturalKey,
    adopted: bool,
) -> Result<()> {
    let (Some(known), Some(copy)) = (known(conn, table, key)?, copy(conn, table, key)?) else {
        return Ok(());
    };
    let row = copy.row.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let Known { stored, .. } = known;
    let reset = Record { version: Version::NONE, stored, sent: copy.sent, adopted, row };
    record(conn, table, key, &reset)
}

/// Forgets a row.
///
/// # Errors
/// SQLite's.
pub(crate) fn forget(conn: &Connection, table: TableId, key: &NaturalKey) -> Result<()> {
    conn.prepare_cached("DELETE FROM _rowtide_rows WHERE t = ?1 AND key = ?2")?
        .execute(params![table.0, key.as_str()])?;
    Ok(())
}

/// Counts rows into, or out of, those that the hub does not have.
///
/// # Errors
/// SQLite's.
pub(crate) fn add_surplus(conn: &Connection, table: TableId, change: i64) -> Result<()> {
    if change == 0 {
        return Ok(());
    }
    let counted = registry::counters(conn, table)?.surplus;
    registry::set_surplus(conn, table, counted.saturating_add_signed(change))
}
