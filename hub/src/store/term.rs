//! Terms and the incarnation: how a store that was put back to an earlier state is noticed.
//!
//! Each time the store is opened to serve it gets a term: an ordinal that rises, and 32 random
//! bits, so that two lives that start from one copy never share a term. A position is known only
//! where its term is, and where the term reached that far.

use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use sync_proto::{Cursor, Incarnation};
use uuid::Uuid;

use super::columns::{Sql, signed, unsigned};
use super::database::DbError;
use crate::clock::UnixMillis;
use crate::lineage::HubLife;

/// Bits of a term that are random.
const RANDOM_BITS: u32 = 32;

/// What starting a term brought to light.
pub(super) enum Start {
    /// The mutable store is the one that was used last, or both are new.
    Continued,
    /// The mutable store was replaced or restored: what receipts were given for may be gone.
    MutableReplaced {
        /// The new incarnation.
        incarnation: Incarnation,
    },
}

/// Marks of the mutable store: the newest, and whether an older one is among them.
pub(super) struct Marks {
    pub(super) newest: Uuid,
    pub(super) all: Vec<Uuid>,
}

/// Writes a term for this life of the store.
pub(super) fn start(tx: &Transaction<'_>, marks: &Marks) -> Result<Start, DbError> {
    let last: i64 =
        tx.query_row("SELECT coalesce(max(ordinal), 0) FROM terms", [], |row| row.get(0))?;
    let mut random = [0; 4];
    getrandom::fill(&mut random)
        .map_err(|error| DbError::Content(format!("no random numbers: {error}")))?;
    let ordinal = last + 1;
    let term = (ordinal << RANDOM_BITS) | i64::from(u32::from_le_bytes(random));
    tx.execute(
        "INSERT INTO terms (ordinal, term, outbox_before, opened_at) VALUES (?1, ?2, ?3, ?4)",
        params![ordinal, term, outbox_newest(tx)?, Sql(UnixMillis::now())],
    )?;
    if last == 0 {
        put_state(tx, "incarnation", Sql(Uuid::now_v7()))?;
        put_state(tx, "generation", 1_i64)?;
    }
    let seen: Option<Sql<Uuid>> = tx
        .query_row("SELECT v FROM hub_state WHERE k = 'mutable_mark'", [], |row| row.get(0))
        .optional()?;
    put_state(tx, "mutable_mark", Sql(marks.newest))?;
    match seen {
        Some(Sql(seen)) if !marks.all.contains(&seen) => {
            let incarnation = Incarnation(Uuid::now_v7());
            put_state(tx, "incarnation", Sql(incarnation))?;
            Ok(Start::MutableReplaced { incarnation })
        }
        Some(_) | None => Ok(Start::Continued),
    }
}

fn put_state(tx: &Transaction<'_>, name: &str, value: impl rusqlite::ToSql) -> Result<(), DbError> {
    tx.execute(
        "INSERT INTO hub_state (k, v) VALUES (?1, ?2) ON CONFLICT (k) DO UPDATE SET v = excluded.v",
        params![name, value],
    )?;
    Ok(())
}

/// The store's life as it is recorded.
pub(super) fn life(db: &Connection) -> Result<HubLife, DbError> {
    let read = "SELECT v FROM hub_state WHERE k = ?1";
    let Sql(incarnation) = db.prepare_cached(read)?.query_row(["incarnation"], |row| row.get(0))?;
    let generation = db.prepare_cached(read)?.query_row(["generation"], |row| row.get(0))?;
    let (term, generation) = (unsigned(newest(db)?)?, unsigned(generation)?);
    Ok(HubLife { incarnation, term, generation })
}

/// The newest term of the store, also when another process started it.
pub(super) fn newest(db: &Connection) -> Result<i64, DbError> {
    let sql = "SELECT term FROM terms ORDER BY ordinal DESC LIMIT 1";
    Ok(db.prepare_cached(sql)?.query_row([], |row| row.get(0))?)
}

/// Whether this store wrote the position.
pub(super) fn knows(db: &Connection, position: Cursor) -> Result<bool, DbError> {
    if position == Cursor::ZERO {
        return Ok(true);
    }
    let (Ok(term), Ok(hi)) = (signed(position.term), signed(position.hi)) else {
        return Ok(false);
    };
    let sql = "SELECT outbox_before,
        (SELECT n.outbox_before FROM terms AS n WHERE n.ordinal = t.ordinal + 1)
        FROM terms AS t WHERE term = ?1";
    let reach: Option<(i64, Option<i64>)> = db
        .prepare_cached(sql)?
        .query_row([term], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((before, end)) = reach else {
        return Ok(false);
    };
    let end = match end {
        Some(end) => end,
        None => outbox_newest(db)?,
    };
    Ok(position.lo == 0 && hi > before && hi <= end)
}

/// The highest id that the outbox ever gave out.
fn outbox_newest(db: &Connection) -> Result<i64, DbError> {
    let sql = "SELECT seq FROM sqlite_sequence WHERE name = 'outbox'";
    Ok(db.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?.unwrap_or(0))
}

/// Starts a new incarnation in place of `seen`, unless another one did that already.
pub(super) fn renew(tx: &Transaction<'_>, seen: Incarnation) -> Result<Incarnation, DbError> {
    let current = life(tx)?.incarnation;
    if current != seen {
        return Ok(current);
    }
    let renewed = Incarnation(Uuid::now_v7());
    put_state(tx, "incarnation", Sql(renewed))?;
    Ok(renewed)
}
