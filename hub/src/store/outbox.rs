//! The outbox: which rows changed, in commit order, for everyone who follows.
//!
//! Ids are given inside write transactions, and SQLite lets one transaction write at a time, in
//! whichever process; so an id that becomes visible later is always higher, and a reader that has
//! passed a position missed nothing below it. Entries name rows, their content is read when they
//! are sent. The newest entry of a row stays for ever: the feed from its start is a snapshot.

use rusqlite::{Connection, Transaction, params};
use sync_proto::{Cursor, NaturalKey, SourceId, Version};

use super::columns::{Sql, signed, unsigned};
use super::database::DbError;
use super::term;
use crate::clock::UnixMillis;
use crate::plane::{FeedEntry, FeedPage, FeedRequest};

/// What changed: rows. Later kinds share the order.
const KIND_ROW: &str = "row";

/// Rows given up in one transaction: some tens of milliseconds of the writer's time.
const REAP_ROWS: usize = 5_000;

/// One change to announce.
pub(super) struct Change<'a> {
    pub(super) dataspace: i64,
    pub(super) source_id: SourceId,
    pub(super) key: &'a NaturalKey,
    pub(super) version: Version,
    pub(super) at: UnixMillis,
}

/// Adds an entry, which supersedes the row's entry before. The term is read in the same
/// transaction, so (term, id) rises in commit order even when two processes serve from the store.
pub(super) fn append(tx: &Transaction<'_>, change: &Change<'_>) -> Result<(), DbError> {
    let Change { dataspace, source_id, key, version, at } = *change;
    tx.prepare_cached(
        "UPDATE outbox SET superseded = 1 WHERE container = ?1 AND source_id = ?2
         AND natural_key = ?3 AND superseded = 0",
    )?
    .execute(params![dataspace, Sql(source_id), Sql(key)])?;
    tx.prepare_cached(
        "INSERT INTO outbox (term, kind, container, source_id, natural_key, version, at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute(params![
        term::newest(tx)?,
        KIND_ROW,
        dataspace,
        Sql(source_id),
        Sql(key),
        Sql(version),
        Sql(at),
    ])?;
    Ok(())
}

/// Whether the outbox has announced this version of a row or a newer one.
pub(super) fn has_announced(tx: &Transaction<'_>, change: &Change<'_>) -> Result<bool, DbError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM outbox WHERE container = ?1 AND source_id = ?2
        AND natural_key = ?3 AND superseded = 0 AND version >= ?4)";
    let Change { dataspace, source_id, key, version, .. } = *change;
    let params = params![dataspace, Sql(source_id), Sql(key), Sql(version)];
    Ok(tx.prepare_cached(sql)?.query_row(params, |row| row.get(0))?)
}

/// Reads entries after a position. Ids rise over all terms of one store, so the id alone finds
/// them; that the position is one of this store has to be known.
pub(super) fn feed(db: &Connection, request: &FeedRequest) -> Result<FeedPage, DbError> {
    let sql = "SELECT id, term, natural_key, version FROM outbox
        WHERE container = ?1 AND source_id = ?2 AND superseded = 0 AND id > ?3
        ORDER BY id LIMIT ?4";
    let mut statement = db.prepare_cached(sql)?;
    let after = signed(request.after.hi)?;
    let limit = i64::try_from(request.entries_max).unwrap_or(i64::MAX);
    let mut entries = Vec::new();
    for (dataspace, source) in &request.dataspaces {
        let mut rows = statement.query(params![dataspace, Sql(*source), after, limit])?;
        while let Some(row) = rows.next()? {
            let (id, term): (i64, i64) = (row.get(0)?, row.get(1)?);
            let (Sql(key), Sql(version)) = (row.get(2)?, row.get(3)?);
            let position = Cursor { term: unsigned(term)?, hi: unsigned(id)?, lo: 0 };
            let (dataspace, source_id) = (*dataspace, *source);
            entries.push(FeedEntry { position, dataspace, source_id, key, version });
        }
    }
    entries.sort_unstable_by_key(|entry| entry.position.hi);
    entries.truncate(request.entries_max);
    let end = entries.last().map_or(request.after, |entry| entry.position);
    Ok(FeedPage { entries, end })
}

/// Deletes superseded entries from before `before`.
pub(super) fn reap(tx: &Transaction<'_>, before: UnixMillis) -> Result<usize, DbError> {
    let sql = format!(
        "DELETE FROM outbox WHERE id IN (
            SELECT id FROM outbox WHERE superseded = 1 AND at < ?1 LIMIT {REAP_ROWS})"
    );
    Ok(tx.execute(&sql, [Sql(before)])?)
}

/// Deletes lines of a table with an `at` column and a rowid, from before `before`.
pub(super) fn reap_aged(
    tx: &Transaction<'_>,
    table: &'static str,
    before: UnixMillis,
) -> Result<usize, DbError> {
    let sql = format!(
        "DELETE FROM {table} WHERE rowid IN (
            SELECT rowid FROM {table} WHERE at < ?1 LIMIT {REAP_ROWS})"
    );
    Ok(tx.execute(&sql, [Sql(before)])?)
}
