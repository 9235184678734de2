//! The key log: reading its tail, appending, and removing what is settled.
//!
//! An entry says "look at this key", no more. Entries of table 0 are anchors: they say nothing and
//! stand for the rule that the newest entry is never deleted, so that its number is never given
//! again. What is folded away lives in [`crate::pending`].

use std::collections::HashMap;

use rusqlite::{Connection, ErrorCode, Row, params_from_iter};
use sync_proto::{NaturalKey, Seq, Token, Value};

use crate::error::Result;
use crate::meta;
use crate::registry::{Registry, Table, TableId};
use crate::row::{self, Bound};

/// The table number of anchors.
const ANCHOR: TableId = TableId(0);

/// Columns before the key columns in every read of the log.
const KEY_AT: usize = 4;

/// One entry.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Entry {
    /// Its commit_seq.
    pub(crate) seq: Seq,
    /// The table.
    pub(crate) table: TableId,
    /// Whether it was seeded; else the application changed the key.
    pub(crate) seed: bool,
    /// Its token.
    pub(crate) token: Token,
    /// The key's parts.
    pub(crate) key: Vec<Value>,
}

impl Entry {
    /// Whether it says nothing.
    pub(crate) fn is_anchor(&self) -> bool {
        self.table == ANCHOR
    }
}

/// One key of one table, with all that is logged of it up to its label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LoggedKey {
    /// The table.
    pub(crate) table: TableId,
    /// The key.
    pub(crate) key: NaturalKey,
    /// The greatest commit_seq of the key in the snapshot.
    pub(crate) label: Seq,
    /// Its entries in the unfolded tail of that snapshot.
    pub(crate) tail: Vec<Seq>,
}

/// What the tail says of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TailKey {
    /// The greatest commit_seq.
    pub(crate) label: Seq,
    /// The token of that entry.
    pub(crate) token: Token,
    /// Whether every entry is a seed.
    pub(crate) seeds_only: bool,
    /// Every entry.
    pub(crate) seqs: Vec<Seq>,
}

/// The unfolded tail, by key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tail {
    /// The keys.
    pub(crate) keys: HashMap<(TableId, NaturalKey), TailKey>,
    /// Anchors that are not the newest entry any more.
    pub(crate) anchors: Vec<Seq>,
    /// The newest entry, whatever it is.
    pub(crate) newest: Seq,
}

/// The tail, if it fits the bounds.
#[derive(Clone, Debug)]
pub(crate) enum LoadedTail {
    /// All of it.
    Whole(Tail),
    /// More than the bounds allow: fold first. So many entries did fit.
    TooLong {
        /// Entries that were read before a bound was met.
        entries: usize,
    },
}

impl Tail {
    /// Reads the whole tail, or finds out that it is longer than the bounds.
    ///
    /// # Errors
    /// SQLite's.
    pub(crate) fn load(
        conn: &Connection,
        registry: &Registry,
        entries_max: usize,
        bytes_max: usize,
    ) -> Result<LoadedTail> {
        let mut tail = Self::default();
        let (mut entries, mut bytes) = (0, 0);
        let mut anchors = Vec::new();
        let mut statement = conn.prepare_cached(&select(registry, "ORDER BY seq"))?;
        let mut rows = statement.query([])?;
        loop {
            let row = match rows.next() {
                Ok(Some(row)) => row,
                Ok(None) => break,
                // A key above the connection's limit: folding sets it aside.
                Err(error) if error.sqlite_error_code() == Some(ErrorCode::TooBig) => {
                    return Ok(LoadedTail::TooLong { entries: 0 });
                }
                Err(error) => return Err(error.into()),
            };
            let entry = read(row, registry)?;
            if entries == entries_max || bytes > bytes_max {
                return Ok(LoadedTail::TooLong { entries });
            }
            entries += 1;
            bytes += entry.key.iter().map(Value::len_bytes).sum::<usize>();
            tail.newest = entry.seq;
            if entry.is_anchor() {
                anchors.push(entry.seq);
            } else {
                tail.add(&entry);
            }
        }
        anchors.retain(|seq| *seq < tail.newest);
        tail.anchors = anchors;
        Ok(LoadedTail::Whole(tail))
    }

    fn add(&mut self, entry: &Entry) {
        let key =
            self.keys.entry((entry.table, NaturalKey::of(&entry.key))).or_insert_with(|| TailKey {
                label: entry.seq,
                token: entry.token,
                seeds_only: true,
                seqs: Vec::with_capacity(1),
            });
        // Entries come in rising order, so the last one is the label.
        key.label = entry.seq;
        key.token = entry.token;
        key.seeds_only &= entry.seed;
        key.seqs.push(entry.seq);
    }
}

/// Entries above `after`, oldest first, at most `limit`.
///
/// # Errors
/// SQLite's.
pub(crate) fn entries(
    conn: &Connection,
    registry: &Registry,
    after: Seq,
    limit: usize,
) -> Result<Vec<Entry>> {
    let mut statement =
        conn.prepare_cached(&select(registry, "WHERE seq > ?1 ORDER BY seq LIMIT ?2"))?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut rows = statement.query([after.0, limit])?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        entries.push(read(row, registry)?);
    }
    Ok(entries)
}

/// Counts entries, but no further than `max`.
///
/// # Errors
/// SQLite's.
pub(crate) fn count_up_to(conn: &Connection, max: usize) -> Result<usize> {
    let limit = i64::try_from(max).unwrap_or(i64::MAX);
    let count: i64 = conn
        .prepare_cached("SELECT count(*) FROM (SELECT 1 FROM _rowtide_log LIMIT ?1)")?
        .query_row([limit], |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Counts entries that are not anchors, but no further than `max`.
///
/// # Errors
/// SQLite's.
pub(crate) fn count_changes_up_to(conn: &Connection, max: usize) -> Result<usize> {
    let limit = i64::try_from(max).unwrap_or(i64::MAX);
    let count: i64 = conn
        .prepare_cached("SELECT count(*) FROM (SELECT 1 FROM _rowtide_log WHERE t <> 0 LIMIT ?1)")?
        .query_row([limit], |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Logs a key: it is looked at again, under a new number.
///
/// # Errors
/// SQLite's.
pub(crate) fn append(conn: &Connection, table: &Table, key: &[Value], seed: bool) -> Result<Seq> {
    let columns: String = (1..=key.len()).map(|ordinal| format!(", k{ordinal}")).collect();
    let values: String = (1..=key.len()).map(|ordinal| format!(", ?{}", ordinal + 1)).collect();
    let seed = if seed { "1" } else { "NULL" };
    let sql = format!("INSERT INTO _rowtide_log(t, seed{columns}) VALUES(?1, {seed}{values})");
    let id = Value::Int(table.id.0);
    let params = std::iter::once(&id).chain(key).map(Bound);
    conn.prepare_cached(&sql)?.execute(params_from_iter(params))?;
    Ok(Seq(conn.last_insert_rowid()))
}

/// Removes entries inside one write transaction, keeping the newest as an anchor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remover {
    newest: Seq,
}

impl Remover {
    /// Looks up the newest entry. Make a new one after an append.
    ///
    /// # Errors
    /// SQLite's.
    pub(crate) fn new(conn: &Connection) -> Result<Self> {
        Ok(Self { newest: meta::newest_seq(conn)? })
    }

    /// Removes one entry; one that is not there is no error.
    ///
    /// # Errors
    /// SQLite's.
    pub(crate) fn remove(&self, conn: &Connection, seq: Seq) -> Result<()> {
        let sql = if seq == self.newest {
            "UPDATE _rowtide_log SET t = 0, seed = NULL WHERE seq = ?1"
        } else {
            "DELETE FROM _rowtide_log WHERE seq = ?1"
        };
        conn.prepare_cached(sql)?.execute([seq.0])?;
        Ok(())
    }
}

impl Remover {
    /// Removes every entry above `after` up to `last`.
    ///
    /// # Errors
    /// SQLite's.
    pub(crate) fn remove_between(&self, conn: &Connection, after: Seq, last: Seq) -> Result<()> {
        conn.prepare_cached("DELETE FROM _rowtide_log WHERE seq > ?1 AND seq <= ?2 AND seq < ?3")?
            .execute([after.0, last.0, self.newest.0])?;
        if last >= self.newest { self.remove(conn, self.newest) } else { Ok(()) }
    }
}

/// The statement that reads entries, with every key column that any table needs.
fn select(registry: &Registry, rest: &str) -> String {
    let keys: String = (1..=registry.key_width()).map(|n| format!(", k{n}")).collect();
    format!("SELECT seq, t, seed, token{keys} FROM _rowtide_log {rest}")
}

fn read(row: &Row<'_>, registry: &Registry) -> Result<Entry> {
    let table = TableId(row.get(1)?);
    // A number that the registry does not know is left to whoever reads the entry.
    let width = registry.get(table).map_or(0, Table::key_width);
    let key: rusqlite::Result<Vec<Value>> =
        (0..width).map(|part| Ok(row::owned(row.get_ref(KEY_AT + part)?))).collect();
    let token = row.get_ref(3)?.as_blob().ok().and_then(|bytes| bytes.try_into().ok());
    Ok(Entry {
        seq: Seq(row.get(0)?),
        table,
        seed: row.get::<_, Option<bool>>(2)?.unwrap_or(false),
        // Only somebody else's write can leave another token; it then proves nothing.
        token: token.map_or_else(Token::default, Token),
        key: key?,
    })
}
