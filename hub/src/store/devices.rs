//! Devices and their lineages as people see them: progress, quarantine, status, consistency.
//!
//! Reads only. What a number means is said at `crate::lineage::LineageInfo`; this file only
//! gathers it from where the protocol's transactions left it.

use rusqlite::{Connection, params};
use sync_proto::schema::{Authority, Modality};
use sync_proto::{Cursor, Epoch, Lane, Seq, SourceId};

use super::catalog::of_word;
use super::columns::{Sql, unsigned};
use super::database::DbError;
use super::epoch::lane_named;
use crate::catalog::ProjectId;
use crate::clock::UnixMillis;
use crate::lineage::{DeviceInfo, DownOutcomeInfo, LaneInfo, LineageInfo};

/// Rows that a lineage's page names of those that its device did not apply.
const DOWN_OUTCOMES_NAMED: i64 = 100;

/// Every device of a project, by name.
pub(super) fn all(db: &Connection, project: &ProjectId) -> Result<Vec<DeviceInfo>, DbError> {
    let sql = "SELECT name, source_id, last_seen FROM devices WHERE project = ?1 ORDER BY name";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query([&project.0])?;
    let mut devices = Vec::new();
    while let Some(row) = rows.next()? {
        let source: Option<Sql<SourceId>> = row.get(1)?;
        let last_seen: Option<Sql<UnixMillis>> = row.get(2)?;
        let source_id = source.map(|Sql(id)| id);
        devices.push(DeviceInfo {
            name: row.get(0)?,
            source_id,
            last_seen: last_seen.map(|Sql(at)| at),
            lineages: match source_id {
                Some(device) => lineages(db, device)?,
                None => Vec::new(),
            },
        });
    }
    Ok(devices)
}

/// One device.
pub(super) fn one(
    db: &Connection,
    project: &ProjectId,
    name: &str,
) -> Result<Option<DeviceInfo>, DbError> {
    Ok(all(db, project)?.into_iter().find(|device| device.name == name))
}

/// What all lineages of one database share.
struct DatabaseInfo {
    number: i64,
    name: String,
    epoch: Epoch,
    lanes: Vec<LaneInfo>,
    applied_cursor: Cursor,
}

fn lineages(db: &Connection, device: SourceId) -> Result<Vec<LineageInfo>, DbError> {
    let mut found = Vec::new();
    for database in databases(db, device)? {
        found.extend(lineages_of(db, &database)?);
    }
    Ok(found)
}

fn databases(db: &Connection, device: SourceId) -> Result<Vec<DatabaseInfo>, DbError> {
    let sql = "SELECT d.number, d.name, e.number, e.epoch, d.applied_term, d.applied_hi,
            d.applied_lo FROM databases AS d JOIN epochs AS e ON e.database = d.number
        WHERE d.device = ?1 AND e.closed_at IS NULL ORDER BY d.name";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query([Sql(device)])?;
    let mut databases = Vec::new();
    while let Some(row) = rows.next()? {
        let Sql(epoch) = row.get(3)?;
        databases.push(DatabaseInfo {
            number: row.get(0)?,
            name: row.get(1)?,
            epoch,
            lanes: lanes(db, row.get(2)?)?,
            applied_cursor: Cursor {
                term: unsigned(row.get(4)?)?,
                hi: unsigned(row.get(5)?)?,
                lo: unsigned(row.get(6)?)?,
            },
        });
    }
    Ok(databases)
}

fn lanes(db: &Connection, epoch: i64) -> Result<Vec<LaneInfo>, DbError> {
    let sql = "SELECT lane, watermark, head, last_receipt, applied, duplicate, stale, diverged,
        conflict, rejected FROM lanes WHERE epoch = ?1";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query([epoch])?;
    let mut lanes = Vec::new();
    while let Some(row) = rows.next()? {
        let (watermark, head) = (Seq(row.get(1)?), Seq(row.get(2)?));
        let Sql(last_receipt) = row.get(3)?;
        let names = ["applied", "duplicate", "stale", "diverged", "conflict", "rejected"];
        let mut counters = Vec::with_capacity(names.len());
        for (index, name) in names.into_iter().enumerate() {
            counters.push((name, unsigned(row.get(4 + index)?)?));
        }
        lanes.push(LaneInfo {
            lane: lane_named(&row.get::<_, String>(0)?)?,
            watermark,
            head,
            consistent: watermark >= head,
            last_receipt: Some(last_receipt),
            counters,
        });
    }
    lanes.sort_by_key(|lane| lane.lane);
    Ok(lanes)
}

fn lineages_of(db: &Connection, database: &DatabaseInfo) -> Result<Vec<LineageInfo>, DbError> {
    let sql = "SELECT l.table_name, coalesce(s.name, json_extract(l.spec, '$.dataspace')),
            json_extract(l.spec, '$.modality'), json_extract(l.spec, '$.authority'),
            l.status, l.message, l.device_status, l.pending, l.quarantine, l.fingerprint,
            (SELECT count(*) FROM orphans AS o
                WHERE o.database = l.database AND o.table_name = l.table_name)
        FROM lineages AS l LEFT JOIN dataspaces AS s ON s.number = l.dataspace
        WHERE l.database = ?1 ORDER BY l.table_name";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query([database.number])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let table: String = row.get(0)?;
        let modality: Modality = of_word(row.get(2)?)?;
        let authority: Authority = of_word(row.get(3)?)?;
        let pending: Option<i64> = row.get(7)?;
        let live = match modality {
            Modality::State => Lane::State,
            Modality::Mutable => Lane::Mutable,
        };
        let own = |lane: &&LaneInfo| lane.lane == live || lane.lane == Lane::Backfill;
        let lanes = &database.lanes;
        let watermark = lanes.iter().find(|lane| lane.lane == live).map(|lane| lane.watermark);
        found.push(LineageInfo {
            database: database.name.clone(),
            dataspace: row.get(1)?,
            modality,
            authority,
            status: row.get(4)?,
            message: row.get(5)?,
            device_status: row.get(6)?,
            pending: pending.map(unsigned).transpose()?,
            device_quarantine: unsigned(row.get(8)?)?,
            orphans: unsigned(row.get(10)?)?,
            fingerprint: row.get(9)?,
            epoch: database.epoch,
            watermark: watermark.unwrap_or(Seq::ZERO),
            last_receipt: lanes.iter().filter(own).filter_map(|lane| lane.last_receipt).max(),
            consistent: lanes.iter().filter(own).all(|lane| lane.consistent),
            lanes: lanes.clone(),
            applied_cursor: database.applied_cursor,
            down_outcomes: down_outcomes(db, database.number, &table)?,
            table,
        });
    }
    Ok(found)
}

fn down_outcomes(
    db: &Connection,
    database: i64,
    table: &str,
) -> Result<Vec<DownOutcomeInfo>, DbError> {
    let sql = "SELECT natural_key, version, outcome, message, at FROM down_outcomes
        WHERE database = ?1 AND table_name = ?2 ORDER BY natural_key LIMIT ?3";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query(params![database, table, DOWN_OUTCOMES_NAMED])?;
    let mut outcomes = Vec::new();
    while let Some(row) = rows.next()? {
        let (Sql(version), Sql(at)) = (row.get(1)?, row.get(4)?);
        outcomes.push(DownOutcomeInfo {
            key: row.get(0)?,
            version,
            outcome: row.get(2)?,
            message: row.get(3)?,
            at,
        });
    }
    Ok(outcomes)
}
