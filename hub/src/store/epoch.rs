//! Epochs: the base that each gets once, and the ceiling that keeps versions from meeting.
//!
//! A database has at most one open epoch (a unique index says so). Opening another closes it and
//! takes a base that no version given so far reaches. The ceiling is raised in blocks before rows
//! go to another store, so a range that is cut off halfway cannot pass a later epoch's base.

use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use sync_proto::message::LanePosition;
use sync_proto::{Epoch, Lane, SourceId, Version};

use super::columns::Sql;
use super::database::DbError;
use crate::clock::UnixMillis;
use crate::lineage::{EpochRequest, EpochState, OpenEpoch};

/// Versions that are set aside at a time: a write of the ceiling for every so many changes, and
/// the distance of two epochs' bases. 2^47 epochs fit above.
const BLOCK: i64 = 1 << 16;

/// How far above its own ceiling the hub lets a device's floor push a base. Half of the largest
/// step, so that rows which the hub never saw still fit under [`Version::STEP_MAX`].
const FLOOR_STEP_MAX: i64 = Version::STEP_MAX / 2;

/// An epoch's line.
pub(super) struct EpochRow {
    pub(super) number: i64,
    pub(super) database: i64,
    pub(super) base: Version,
    pub(super) ceiling: Version,
    pub(super) is_open: bool,
}

/// Finds an epoch of a device's database.
pub(super) fn find(
    db: &Connection,
    device: SourceId,
    database: &str,
    epoch: Epoch,
) -> Result<Option<EpochRow>, DbError> {
    let sql = "SELECT e.number, d.number, e.base, d.ceiling, e.closed_at IS NULL
        FROM databases AS d JOIN epochs AS e ON e.database = d.number
        WHERE d.device = ?1 AND d.name = ?2 AND e.epoch = ?3";
    let row = db
        .prepare_cached(sql)?
        .query_row(params![Sql(device), database, Sql(epoch)], |row| {
            Ok(EpochRow {
                number: row.get(0)?,
                database: row.get(1)?,
                base: Version(row.get(2)?),
                ceiling: Version(row.get(3)?),
                is_open: row.get(4)?,
            })
        })
        .optional()?;
    Ok(row)
}

/// What holds for an epoch.
pub(super) fn state(
    db: &Connection,
    device: SourceId,
    database: &str,
    epoch: Epoch,
) -> Result<EpochState, DbError> {
    let Some(row) = find(db, device, database, epoch)? else {
        return Ok(EpochState::Unknown);
    };
    if !row.is_open {
        return Ok(EpochState::Closed);
    }
    let lanes = positions(db, row.number)?;
    Ok(EpochState::Open(OpenEpoch { base: row.base, ceiling: row.ceiling, lanes }))
}

fn positions(db: &Connection, epoch: i64) -> Result<Vec<LanePosition>, DbError> {
    let mut statement =
        db.prepare_cached("SELECT lane, watermark, token FROM lanes WHERE epoch = ?1")?;
    let mut rows = statement.query([epoch])?;
    let mut positions = Vec::new();
    while let Some(row) = rows.next()? {
        let (seq, Sql(token)) = (sync_proto::Seq(row.get(1)?), row.get(2)?);
        positions.push(LanePosition { lane: lane_named(&row.get::<_, String>(0)?)?, seq, token });
    }
    positions.sort_by_key(|position| position.lane);
    Ok(positions)
}

/// The lane of a stored name.
pub(super) fn lane_named(name: &str) -> Result<Lane, DbError> {
    Lane::from_name(name).ok_or_else(|| DbError::Content(format!("there is no lane {name:?}")))
}

/// Opens an epoch, or answers again what it got.
pub(super) fn open(tx: &Transaction<'_>, request: &EpochRequest) -> Result<EpochState, DbError> {
    let EpochRequest { device, database, instance, epoch, floor } = request;
    let known = state(tx, *device, database, *epoch)?;
    if known != EpochState::Unknown {
        return Ok(known);
    }
    tx.execute(
        "INSERT INTO databases (device, name, ceiling) VALUES (?1, ?2, 0)
         ON CONFLICT (device, name) DO NOTHING",
        params![Sql(*device), database],
    )?;
    let (number, ceiling): (i64, i64) = tx.query_row(
        "SELECT number, ceiling FROM databases WHERE device = ?1 AND name = ?2",
        params![Sql(*device), database],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    let base = ceiling.max(floor.0.min(ceiling.saturating_add(FLOOR_STEP_MAX)));
    let ceiling = base
        .checked_add(BLOCK)
        .ok_or_else(|| DbError::Content(format!("no versions are left above {base}")))?;
    close_open(tx, number)?;
    tx.execute(
        "INSERT INTO epochs (database, epoch, instance, base, opened_at)
         VALUES (?1, ?2, ?3, ?4, ?5)",
        params![number, Sql(*epoch), Sql(instance.0), base, Sql(UnixMillis::now())],
    )?;
    tx.execute("UPDATE databases SET ceiling = ?2 WHERE number = ?1", [number, ceiling])?;
    state(tx, *device, database, *epoch)
}

/// Closes the open epoch of a database. Its ranges are of no use any more: a late batch is refused
/// whatever it holds.
fn close_open(tx: &Transaction<'_>, database: i64) -> Result<(), DbError> {
    let closed = "SELECT number FROM epochs WHERE database = ?1 AND closed_at IS NULL";
    for table in ["ranges", "waiting_ranges"] {
        tx.execute(&format!("DELETE FROM {table} WHERE epoch IN ({closed})"), [database])?;
    }
    tx.execute(
        "UPDATE epochs SET closed_at = ?2 WHERE database = ?1 AND closed_at IS NULL",
        params![database, Sql(UnixMillis::now())],
    )?;
    Ok(())
}

/// Raises the ceiling over `version` where it is not above it yet.
pub(super) fn raise_ceiling(
    tx: &Transaction<'_>,
    epoch: &EpochRow,
    version: Version,
) -> Result<(), DbError> {
    if version <= epoch.ceiling {
        return Ok(());
    }
    tx.execute(
        "UPDATE databases SET ceiling = max(ceiling, ?2) WHERE number = ?1",
        [epoch.database, version.0.saturating_add(BLOCK)],
    )?;
    Ok(())
}

/// Raises the ceiling for rows that go to another store, while the epoch is open.
pub(super) fn reserve(
    tx: &Transaction<'_>,
    device: SourceId,
    database: &str,
    epoch: Epoch,
    version: Version,
) -> Result<EpochState, DbError> {
    if let Some(row) = find(tx, device, database, epoch)?.filter(|row| row.is_open) {
        raise_ceiling(tx, &row, version)?;
    }
    state(tx, device, database, epoch)
}
