//! Typed access to `_rowtide_meta`: one function per fact, read and written where it is used.
//!
//! Nothing is cached, so a transaction that is rolled back leaves no wrong copy in memory. What
//! the facts mean for continuity is decided by [`crate::continuity`].

use rusqlite::types::{FromSql, ToSql};
use rusqlite::{Connection, OptionalExtension as _};
use sync_proto::{Cursor, Epoch, Incarnation, InstanceId, Seq, Version};
use uuid::Uuid;

use crate::error::{CaptureError, Result};

/// 16 random bytes that every barrier replaces: equal inside and outside the file, or a crash or a
/// restore came between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp(pub(crate) [u8; 16]);

impl Stamp {
    /// A stamp that no other file has.
    pub(crate) fn random() -> Self {
        Self(*Uuid::new_v4().as_bytes())
    }
}

/// Who this file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Life {
    /// The installation inside the file.
    pub(crate) instance: InstanceId,
    /// Its current epoch.
    pub(crate) epoch: Epoch,
    /// The stamp of the last barrier.
    pub(crate) stamp: Stamp,
    /// The stamp before it.
    pub(crate) stamp_prev: Option<Stamp>,
}

/// The layout's number, if the file has one.
///
/// # Errors
/// SQLite's.
pub(crate) fn format(conn: &Connection) -> Result<Option<i64>> {
    get(conn, "format")
}

/// Writes the layout's number, unless it stands there already.
///
/// # Errors
/// SQLite's.
pub(crate) fn set_format_once(conn: &Connection, number: i64) -> Result<()> {
    if format(conn)? == Some(number) { Ok(()) } else { set(conn, "format", &number) }
}

/// Who the file is, if it was ever told.
///
/// # Errors
/// SQLite's, and [`CaptureError::Corrupt`] for facts of a wrong size.
pub(crate) fn life(conn: &Connection) -> Result<Option<Life>> {
    let (Some(instance), Some(epoch), Some(stamp)) =
        (bytes16(conn, "instance")?, bytes16(conn, "epoch")?, bytes16(conn, "stamp")?)
    else {
        return Ok(None);
    };
    Ok(Some(Life {
        instance: InstanceId(Uuid::from_bytes(instance)),
        epoch: Epoch(Uuid::from_bytes(epoch)),
        stamp: Stamp(stamp),
        stamp_prev: bytes16(conn, "stamp_prev")?.map(Stamp),
    }))
}

/// Writes who the file is.
///
/// # Errors
/// SQLite's.
pub(crate) fn set_life(conn: &Connection, life: &Life) -> Result<()> {
    set(conn, "instance", life.instance.0.as_bytes())?;
    set(conn, "epoch", life.epoch.0.as_bytes())?;
    set(conn, "stamp", &life.stamp.0)?;
    match life.stamp_prev {
        Some(stamp) => set(conn, "stamp_prev", &stamp.0),
        None => unset(conn, "stamp_prev"),
    }
}

/// The base of the epoch, once the hub gave one.
///
/// # Errors
/// SQLite's.
pub(crate) fn base(conn: &Connection) -> Result<Option<Version>> {
    Ok(get(conn, "base")?.map(Version))
}

/// Writes the base of the epoch; `None` after an epoch began.
///
/// # Errors
/// SQLite's.
pub(crate) fn set_base(conn: &Connection, base: Option<Version>) -> Result<()> {
    match base {
        Some(base) => set(conn, "base", &base.0),
        None => unset(conn, "base"),
    }
}

/// The hub's life that was last heard of.
///
/// # Errors
/// SQLite's.
pub(crate) fn incarnation(conn: &Connection) -> Result<Option<Incarnation>> {
    Ok(bytes16(conn, "incarnation")?.map(|bytes| Incarnation(Uuid::from_bytes(bytes))))
}

/// Writes the hub's life.
///
/// # Errors
/// SQLite's.
pub(crate) fn set_incarnation(conn: &Connection, incarnation: Incarnation) -> Result<()> {
    set(conn, "incarnation", incarnation.0.as_bytes())
}

/// The authority generation that was last heard of; 0 at first.
///
/// # Errors
/// SQLite's.
pub(crate) fn generation(conn: &Connection) -> Result<u64> {
    Ok(get(conn, "generation")?.map_or(0, unsigned))
}

/// Writes the authority generation.
///
/// # Errors
/// SQLite's.
pub(crate) fn set_generation(conn: &Connection, generation: u64) -> Result<()> {
    set(conn, "generation", &signed(generation))
}

/// Up to where the hub's rows are applied.
///
/// # Errors
/// SQLite's.
pub(crate) fn cursor(conn: &Connection) -> Result<Cursor> {
    Ok(Cursor {
        term: get(conn, "cursor_term")?.map_or(0, unsigned),
        hi: get(conn, "cursor_hi")?.map_or(0, unsigned),
        lo: get(conn, "cursor_lo")?.map_or(0, unsigned),
    })
}

/// Writes up to where the hub's rows are applied.
///
/// # Errors
/// SQLite's.
pub(crate) fn set_cursor(conn: &Connection, cursor: Cursor) -> Result<()> {
    set(conn, "cursor_term", &signed(cursor.term))?;
    set(conn, "cursor_hi", &signed(cursor.hi))?;
    set(conn, "cursor_lo", &signed(cursor.lo))
}

/// The highest version that is known to have been given out before this epoch, or that came down.
///
/// # Errors
/// SQLite's.
pub(crate) fn floor(conn: &Connection) -> Result<Version> {
    Ok(get(conn, "floor")?.map_or(Version::NONE, Version))
}

/// Raises the floor; a lower version leaves it.
///
/// # Errors
/// SQLite's.
pub(crate) fn raise_floor(conn: &Connection, version: Version) -> Result<()> {
    if version > floor(conn)? { set(conn, "floor", &version.0) } else { Ok(()) }
}

/// Raw bytes of a batch that the hub takes; `None` before the first Welcome.
///
/// # Errors
/// SQLite's.
pub(crate) fn batch_bytes_max(conn: &Connection) -> Result<Option<usize>> {
    Ok(get::<i64>(conn, "batch_bytes_max")?.and_then(|bytes| usize::try_from(bytes).ok()))
}

/// Writes the raw bytes of a batch that the hub takes.
///
/// # Errors
/// SQLite's.
pub(crate) fn set_batch_bytes_max(conn: &Connection, bytes: u32) -> Result<()> {
    set(conn, "batch_bytes_max", &bytes)
}

/// Rises with every change to the registry that another process makes.
///
/// # Errors
/// SQLite's.
pub(crate) fn revision(conn: &Connection) -> Result<i64> {
    Ok(get(conn, "revision")?.unwrap_or(0))
}

/// Tells every process that the registry changed.
///
/// # Errors
/// SQLite's.
pub(crate) fn raise_revision(conn: &Connection) -> Result<()> {
    let next = revision(conn)?.wrapping_add(1);
    set(conn, "revision", &next)
}

/// The greatest commit_seq that was given to a change.
///
/// # Errors
/// SQLite's.
pub(crate) fn newest_seq(conn: &Connection) -> Result<Seq> {
    let newest: Option<i64> = conn
        .prepare_cached("SELECT max(seq) FROM _rowtide_log")?
        .query_row([], |row| row.get(0))?;
    Ok(newest.map_or(Seq::ZERO, Seq))
}

fn get<T: FromSql>(conn: &Connection, key: &str) -> Result<Option<T>> {
    Ok(conn
        .prepare_cached("SELECT v FROM _rowtide_meta WHERE k = ?1")?
        .query_row([key], |row| row.get(0))
        .optional()?)
}

fn set(conn: &Connection, key: &str, value: &dyn ToSql) -> Result<()> {
    conn.prepare_cached("INSERT OR REPLACE INTO _rowtide_meta(k, v) VALUES(?1, ?2)")?
        .execute([&key as &dyn ToSql, value])?;
    Ok(())
}

fn unset(conn: &Connection, key: &str) -> Result<()> {
    conn.prepare_cached("DELETE FROM _rowtide_meta WHERE k = ?1")?.execute([key])?;
    Ok(())
}

fn bytes16(conn: &Connection, key: &str) -> Result<Option<[u8; 16]>> {
    let Some(bytes) = get::<Vec<u8>>(conn, key)? else {
        return Ok(None);
    };
    match <[u8; 16]>::try_from(bytes) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(bytes) => {
            let message = format!("{key} has {} bytes where 16 belong", bytes.len());
            Err(CaptureError::corrupt(message))
        }
    }
}

/// SQLite's integers are signed; the bits are kept.
pub(crate) const fn signed(n: u64) -> i64 {
    i64::from_ne_bytes(n.to_ne_bytes())
}

/// The number whose bits [`signed`] kept.
pub(crate) const fn unsigned(n: i64) -> u64 {
    u64::from_ne_bytes(n.to_ne_bytes())
}
