//! One range of a lane in one transaction: rows, history, outbox, orphans, counters, watermark.
//!
//! Outcomes come from [`crate::rules`], progress from `sync_proto::range`. Rows that were stale or
//! there already leave no trace but a count. The epoch is checked here again, under the write
//! lock: a Hello that closed it meanwhile wins.

use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use sync_proto::message::{LanePosition, Outcome, Reason};
use sync_proto::range::{LaneProgress, Offer};
use sync_proto::{Lane, NaturalKey, Seq, Stamp, Token, Value, Version};

use super::columns::{Sql, object_text, unsigned};
use super::database::DbError;
use super::epoch::{self, EpochRow};
use super::row_table::{self, NewRow};
use super::{term, write};
use crate::clock::UnixMillis;
use crate::plane::{Author, UpCommit, UpCommitted, UpRange, UpReceipt, UpRow, UpTable};
use crate::rules;

/// `source_type` of rows that devices send.
const SOURCE_DEVICE: &str = "device";

/// Receipts kept for each lane: far more than a window of batches on their way.
const RANGES_KEPT: i64 = 256;

/// Decides and writes a range.
pub(super) fn commit(tx: &Transaction<'_>, commit: &UpCommit) -> Result<UpCommitted, DbError> {
    let Some(epoch) = epoch::find(tx, commit.device, &commit.database, commit.epoch)? else {
        return Ok(UpCommitted::UnknownEpoch);
    };
    if !epoch.is_open {
        return Ok(UpCommitted::EpochClosed);
    }
    let range = &commit.range;
    if let Some(receipt) = repeat(tx, &epoch, range)? {
        return Ok(UpCommitted::Receipt(receipt));
    }
    let mut progress = load_progress(tx, epoch.number, range.lane)?;
    let offer = progress.offer(range.prev, range.last, range.token);
    match offer {
        Offer::Full => return Ok(UpCommitted::RangesFull),
        Offer::Invalid => return Ok(UpCommitted::RangeInvalid),
        Offer::Extended { .. } | Offer::Pending | Offer::Duplicate => {}
    }
    let mut batch = Batch::new(tx, &epoch);
    let mut fed = false;
    for table in &commit.tables {
        fed |= batch.write_table(table, &commit.author)?;
    }
    for row in &commit.settled {
        batch.settle(&row.table, &row.key, row.version, row.seq, &row.outcome, &row.values)?;
    }
    if let Some(highest) = batch.highest {
        epoch::raise_ceiling(tx, &epoch, highest)?;
    }
    let settled = batch.settled;
    let counts = count(&settled);
    store_progress(tx, epoch.number, range, &progress, &counts)?;
    let mut outcomes = settled;
    outcomes.retain(|(_, outcome)| *outcome != Outcome::Applied);
    outcomes.sort_by_key(|(seq, _)| *seq);
    let watermark = progress.watermark().seq;
    let term = term::newest(tx)?;
    if offer != Offer::Duplicate {
        store_range(tx, epoch.number, range, term, counts.iter().sum(), &outcomes)?;
    }
    seen(tx, commit.device)?;
    Ok(UpCommitted::Receipt(UpReceipt { watermark, term: unsigned(term)?, outcomes, fed }))
}

/// One range while it is written.
struct Batch<'a> {
    tx: &'a Transaction<'a>,
    epoch: &'a EpochRow,
    at: UnixMillis,
    settled: Vec<(Seq, Outcome)>,
    /// The highest version of this epoch's numbering that was stored.
    highest: Option<Version>,
}

impl<'a> Batch<'a> {
    fn new(tx: &'a Transaction<'a>, epoch: &'a EpochRow) -> Self {
        Self { tx, epoch, at: UnixMillis::now(), settled: Vec::new(), highest: None }
    }

    /// Decides and writes the rows of one table; true when the feed grew.
    fn write_table(&mut self, table: &UpTable, author: &Author) -> Result<bool, DbError> {
        let mut fed = false;
        for row in &table.rows {
            let stored = row_table::stamp(self.tx, &table.dataspace, row.source_id, &row.key)?;
            let (outcome, version) = judge(stored, row);
            if outcome == Outcome::Applied {
                let new = NewRow {
                    source_type: SOURCE_DEVICE,
                    source_id: row.source_id,
                    key: &row.key,
                    stamp: Stamp { version, hash: row.hash },
                    deleted: row.deleted,
                    values: if row.deleted { &[] } else { &row.values },
                    at: self.at,
                };
                fed |= write::record(self.tx, &table.dataspace, &new, author, row.base)?;
                if row.base.is_none() {
                    self.highest = self.highest.max(Some(version));
                }
            }
            self.settle(&table.table, &row.key, row.version, row.seq, &outcome, &row.values)?;
        }
        Ok(fed)
    }

    /// Notes an outcome. A rejected row becomes an orphan; a row that was taken ends the orphan of
    /// its older versions.
    fn settle(
        &mut self,
        table: &str,
        key: &NaturalKey,
        version: Version,
        seq: Seq,
        outcome: &Outcome,
        values: &[(String, Value)],
    ) -> Result<(), DbError> {
        match outcome {
            Outcome::Rejected(reason) => self.set_aside(table, key, version, reason, values)?,
            Outcome::Applied => {
                let sql = "DELETE FROM orphans WHERE database = ?1 AND table_name = ?2
                    AND natural_key = ?3 AND version < ?4";
                self.tx.prepare_cached(sql)?.execute(params![
                    self.epoch.database,
                    table,
                    Sql(key),
                    Sql(version)
                ])?;
            }
            Outcome::Duplicate | Outcome::Stale | Outcome::Diverged | Outcome::Conflict => {}
        }
        self.settled.push((seq, outcome.clone()));
        Ok(())
    }

    fn set_aside(
        &self,
        table: &str,
        key: &NaturalKey,
        version: Version,
        reason: &Reason,
        values: &[(String, Value)],
    ) -> Result<(), DbError> {
        // Rows without an identity are set aside one by one: none of them replaces another.
        let no_identity = key.parts().map_or(true, |parts| NaturalKey::has_null(&parts));
        let identity =
            if no_identity { format!("{key}#{version}") } else { key.as_str().to_owned() };
        let sql = "INSERT INTO orphans
                (database, table_name, natural_key, version, code, message, value, at)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
            ON CONFLICT (database, table_name, natural_key) DO UPDATE SET
                version = excluded.version, code = excluded.code, message = excluded.message,
                value = excluded.value, at = excluded.at
            WHERE excluded.version > version";
        self.tx.prepare_cached(sql)?.execute(params![
            self.epoch.database,
            table,
            identity,
            Sql(version),
            reason.code,
            reason.message,
            object_text(values)?,
            Sql(self.at),
        ])?;
        Ok(())
    }
}

fn judge(stored: Option<Stamp>, row: &UpRow) -> (Outcome, Version) {
    match row.base {
        None => {
            let incoming = Stamp { version: row.version, hash: row.hash };
            (rules::judge(stored, incoming), row.version)
        }
        Some(base) => match rules::swap(stored, base, row.hash) {
            Ok(version) => (Outcome::Applied, version),
            Err(outcome) => (outcome, base),
        },
    }
}

const COUNTED: [&str; 6] = ["applied", "duplicate", "stale", "diverged", "conflict", "rejected"];

/// How many rows had each of the [`COUNTED`] outcomes.
fn count(settled: &[(Seq, Outcome)]) -> [i64; COUNTED.len()] {
    COUNTED.map(|name| {
        let count = settled.iter().filter(|(_, outcome)| outcome.name() == name).count();
        i64::try_from(count).unwrap_or(i64::MAX)
    })
}

fn load_progress(tx: &Transaction<'_>, epoch: i64, lane: Lane) -> Result<LaneProgress, DbError> {
    let watermark = tx
        .prepare_cached("SELECT watermark, token FROM lanes WHERE epoch = ?1 AND lane = ?2")?
        .query_row(params![epoch, lane.name()], |row| {
            let (seq, Sql(token)) = (Seq(row.get(0)?), row.get(1)?);
            Ok(LanePosition { lane, seq, token })
        })
        .optional()?
        .unwrap_or_else(|| LanePosition { lane, seq: Seq::ZERO, token: Token::default() });
    let waiting: Vec<(Seq, Seq, Token)> = tx
        .prepare_cached(
            "SELECT prev, last, token FROM waiting_ranges WHERE epoch = ?1 AND lane = ?2",
        )?
        .query_map(params![epoch, lane.name()], |row| {
            let Sql(token) = row.get(2)?;
            Ok((Seq(row.get(0)?), Seq(row.get(1)?), token))
        })?
        .collect::<rusqlite::Result<_>>()?;
    Ok(LaneProgress::new(watermark, waiting))
}

fn store_progress(
    tx: &Transaction<'_>,
    epoch: i64,
    range: &UpRange,
    progress: &LaneProgress,
    counts: &[i64; COUNTED.len()],
) -> Result<(), DbError> {
    let LanePosition { lane, seq, token } = progress.watermark();
    let [applied, duplicate, stale, diverged, conflict, rejected] = counts;
    let sql = "INSERT INTO lanes (epoch, lane, watermark, token, head, last_receipt,
            applied, duplicate, stale, diverged, conflict, rejected)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
        ON CONFLICT (epoch, lane) DO UPDATE SET
            watermark = excluded.watermark, token = excluded.token,
            head = max(head, excluded.head), last_receipt = excluded.last_receipt,
            applied = applied + excluded.applied, duplicate = duplicate + excluded.duplicate,
            stale = stale + excluded.stale, diverged = diverged + excluded.diverged,
            conflict = conflict + excluded.conflict, rejected = rejected + excluded.rejected";
    tx.prepare_cached(sql)?.execute(params![
        epoch,
        lane.name(),
        seq.0,
        Sql(token),
        range.head.max(range.last).0,
        Sql(UnixMillis::now()),
        applied,
        duplicate,
        stale,
        diverged,
        conflict,
        rejected,
    ])?;
    tx.prepare_cached("DELETE FROM waiting_ranges WHERE epoch = ?1 AND lane = ?2")?
        .execute(params![epoch, lane.name()])?;
    for (prev, last, token) in progress.pending() {
        tx.prepare_cached("INSERT INTO waiting_ranges VALUES (?1, ?2, ?3, ?4, ?5)")?
            .execute(params![epoch, lane.name(), prev.0, last.0, Sql(token)])?;
    }
    Ok(())
}

fn store_range(
    tx: &Transaction<'_>,
    epoch: i64,
    range: &UpRange,
    term: i64,
    row_count: i64,
    outcomes: &[(Seq, Outcome)],
) -> Result<(), DbError> {
    let lane = range.lane.name();
    tx.prepare_cached(
        "INSERT INTO ranges (epoch, lane, prev, last, digest, term, row_count, outcomes)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?
    .execute(params![
        epoch,
        lane,
        range.prev.0,
        range.last.0,
        range.digest.0,
        term,
        row_count,
        serde_json::to_string(outcomes)?,
    ])?;
    tx.prepare_cached(
        "DELETE FROM ranges WHERE id IN (SELECT id FROM ranges WHERE epoch = ?1 AND lane = ?2
         ORDER BY id DESC LIMIT -1 OFFSET ?3)",
    )?
    .execute(params![epoch, lane, RANGES_KEPT])?;
    Ok(())
}

/// Whether a range is durable with exactly these rows.
pub(super) fn is_stored(
    db: &Connection,
    epoch: &EpochRow,
    range: &UpRange,
) -> Result<bool, DbError> {
    Ok(find_receipt(db, epoch.number, range)?.is_some())
}

/// The receipt of a range that is durable with exactly these rows; counts its rows as duplicates.
pub(super) fn repeat(
    tx: &Transaction<'_>,
    epoch: &EpochRow,
    range: &UpRange,
) -> Result<Option<UpReceipt>, DbError> {
    let Some((receipt, row_count)) = find_receipt(tx, epoch.number, range)? else {
        return Ok(None);
    };
    tx.prepare_cached(
        "UPDATE lanes SET duplicate = duplicate + ?3, last_receipt = ?4
         WHERE epoch = ?1 AND lane = ?2",
    )?
    .execute(params![epoch.number, range.lane.name(), row_count, Sql(UnixMillis::now())])?;
    Ok(Some(receipt))
}

fn find_receipt(
    db: &Connection,
    epoch: i64,
    range: &UpRange,
) -> Result<Option<(UpReceipt, i64)>, DbError> {
    let sql = "SELECT l.watermark, r.term, r.outcomes, r.row_count
        FROM ranges AS r JOIN lanes AS l ON l.epoch = r.epoch AND l.lane = r.lane
        WHERE r.epoch = ?1 AND r.lane = ?2 AND r.prev = ?3 AND r.last = ?4 AND r.digest = ?5";
    let UpRange { lane, prev, last, digest, .. } = range;
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query(params![epoch, lane.name(), prev.0, last.0, digest.0])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let receipt = UpReceipt {
        watermark: Seq(row.get(0)?),
        term: unsigned(row.get(1)?)?,
        outcomes: serde_json::from_str(&row.get::<_, String>(2)?)?,
        fed: false,
    };
    Ok(Some((receipt, row.get(3)?)))
}

/// Notes that a device was heard.
pub(super) fn seen(tx: &Transaction<'_>, device: sync_proto::SourceId) -> Result<(), DbError> {
    tx.prepare_cached("UPDATE devices SET last_seen = ?2 WHERE source_id = ?1")?
        .execute(params![Sql(device), Sql(UnixMillis::now())])?;
    Ok(())
}
