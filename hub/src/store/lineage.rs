//! Lineages on `hub.db`: bindings, attachments of tables, and what devices report.
//!
//! The trait's calls each become one transaction here; epochs are in `epoch`, terms in `term`,
//! pages for people in `devices`. A table that is not announced any more keeps its line as
//! `detached`, so its orphans and its pause outlive it.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use sync_proto::message::{DownReceipt, Outcome, Report, TableState, UpBatch};
use sync_proto::schema::Authority;
use sync_proto::{Cursor, Epoch, Incarnation, SourceId, Version};

use super::columns::{Sql, signed};
use super::database::DbError;
use super::state::StateStore;
use super::{catalog, commit, devices, epoch, term};
use crate::catalog::ProjectId;
use crate::clock::UnixMillis;
use crate::error::StoreError;
use crate::lineage::{
    Attachment, Binding, DeviceCredential, DeviceInfo, EpochRequest, EpochState, HubLife, Lineages,
};
use crate::plane::{UpRange, UpReceipt};

/// Rows of the feed that a device did not apply and that are kept visible, a database.
const DOWN_OUTCOMES_MAX: usize = 1_000;

/// The status of a table that the last Hello did not name.
const DETACHED: &str = "detached";

#[async_trait]
impl Lineages for StateStore {
    async fn life(&self) -> Result<HubLife, StoreError> {
        self.db.read("reading the store's life", |tx| term::life(tx)).await
    }

    async fn knows(&self, position: Cursor) -> Result<bool, StoreError> {
        self.db.read("checking a cursor", move |tx| term::knows(tx, position)).await
    }

    async fn renew_incarnation(&self, seen: Incarnation) -> Result<Incarnation, StoreError> {
        self.db.write("starting an incarnation", move |tx| term::renew(tx, seen)).await
    }

    async fn bind(
        &self,
        credential: &DeviceCredential,
        device: SourceId,
    ) -> Result<Binding, StoreError> {
        let credential = credential.clone();
        self.db.write("binding a device", move |tx| bind(tx, &credential, device)).await
    }

    async fn bound(&self, credential: &DeviceCredential) -> Result<Option<SourceId>, StoreError> {
        let DeviceCredential { project, name, .. } = credential.clone();
        self.db.read("looking for a device", move |tx| bound(tx, &project, &name)).await
    }

    async fn open_epoch(&self, request: EpochRequest) -> Result<EpochState, StoreError> {
        self.db.write("opening an epoch", move |tx| epoch::open(tx, &request)).await
    }

    async fn epoch(
        &self,
        device: SourceId,
        database: &str,
        epoch: Epoch,
    ) -> Result<EpochState, StoreError> {
        let database = database.to_owned();
        let work = move |tx: &Transaction<'_>| epoch::state(tx, device, &database, epoch);
        self.db.read("reading an epoch", work).await
    }

    async fn reserve(
        &self,
        device: SourceId,
        database: &str,
        epoch: Epoch,
        version: Version,
    ) -> Result<EpochState, StoreError> {
        let database = database.to_owned();
        let work =
            move |tx: &Transaction<'_>| epoch::reserve(tx, device, &database, epoch, version);
        self.db.write("reserving versions", work).await
    }

    async fn attach(
        &self,
        device: SourceId,
        database: &str,
        tables: Vec<Attachment>,
        cursor: Cursor,
    ) -> Result<Vec<Attachment>, StoreError> {
        let database = database.to_owned();
        let work = move |tx: &Transaction<'_>| attach(tx, device, &database, tables, cursor);
        self.db.write("attaching tables", work).await
    }

    async fn attachments(
        &self,
        device: SourceId,
        database: &str,
    ) -> Result<Vec<Attachment>, StoreError> {
        let database = database.to_owned();
        let work = move |tx: &Transaction<'_>| attachments(tx, device, &database);
        self.db.read("reading attachments", work).await
    }

    async fn set_paused(
        &self,
        device: SourceId,
        database: &str,
        table: &str,
        paused: bool,
    ) -> Result<(), StoreError> {
        let (database, table) = (database.to_owned(), table.to_owned());
        // A table that flows again missed what the feed passed meanwhile.
        let sql = "UPDATE lineages SET paused = ?4, snapshot = snapshot OR (paused AND NOT ?4
                    AND EXISTS (SELECT 1 FROM dataspaces AS s
                        WHERE s.number = dataspace AND s.authority = 'cloud')),
                status = CASE WHEN status IN ('flowing', 'paused')
                    THEN CASE WHEN ?4 THEN 'paused' ELSE 'flowing' END ELSE status END
            WHERE table_name = ?3 AND database =
                (SELECT number FROM databases WHERE device = ?1 AND name = ?2)";
        let work = move |tx: &Transaction<'_>| {
            tx.execute(sql, params![Sql(device), database, table, paused])?;
            Ok(())
        };
        self.db.write("pausing a table", work).await
    }

    async fn needs_snapshot(
        &self,
        device: SourceId,
        database: &str,
        cursor: Cursor,
    ) -> Result<bool, StoreError> {
        let name = database.to_owned();
        let sql = "SELECT EXISTS (SELECT 1 FROM lineages AS l JOIN databases AS d
            ON l.database = d.number WHERE d.device = ?1 AND d.name = ?2 AND l.snapshot)";
        let look = move |tx: &Transaction<'_>| {
            Ok(tx.prepare_cached(sql)?.query_row(params![Sql(device), name], |row| row.get(0))?)
        };
        let asked: bool = self.db.read("looking for tables to snapshot", look).await?;
        if !asked || cursor != Cursor::ZERO {
            return Ok(asked);
        }
        let name = database.to_owned();
        let sql = "UPDATE lineages SET snapshot = 0 WHERE database =
            (SELECT number FROM databases WHERE device = ?1 AND name = ?2)";
        let work = move |tx: &Transaction<'_>| Ok(tx.execute(sql, params![Sql(device), name])?);
        self.db.write("starting a snapshot", work).await?;
        Ok(false)
    }

    async fn receipt(
        &self,
        device: SourceId,
        batch: &UpBatch,
    ) -> Result<Option<UpReceipt>, StoreError> {
        let (database, epoch) = (batch.database.clone(), batch.epoch);
        let range = UpRange {
            lane: batch.lane,
            prev: batch.prev,
            last: batch.last,
            token: batch.token,
            head: batch.head,
            digest: batch.rows.digest,
        };
        let name = database.clone();
        let look = move |tx: &Transaction<'_>| match epoch::find(tx, device, &name, epoch)? {
            Some(row) => commit::is_stored(tx, &row, &range),
            None => Ok(false),
        };
        if !self.db.read("looking for a receipt", look).await? {
            return Ok(None);
        }
        let work = move |tx: &Transaction<'_>| {
            let epoch = epoch::find(tx, device, &database, epoch)?.filter(|row| row.is_open);
            match epoch {
                Some(row) => commit::repeat(tx, &row, &range),
                None => Ok(None),
            }
        };
        self.db.write("repeating a receipt", work).await
    }

    async fn note_down(&self, device: SourceId, receipt: DownReceipt) -> Result<(), StoreError> {
        self.db.write("noting what was applied", move |tx| note_down(tx, device, &receipt)).await
    }

    async fn note_report(&self, device: SourceId, report: Report) -> Result<(), StoreError> {
        self.db.write("noting a report", move |tx| note_report(tx, device, &report)).await
    }

    async fn devices(&self, project: &ProjectId) -> Result<Vec<DeviceInfo>, StoreError> {
        let project = project.clone();
        self.db.read("listing devices", move |tx| devices::all(tx, &project)).await
    }

    async fn device(
        &self,
        project: &ProjectId,
        name: &str,
    ) -> Result<Option<DeviceInfo>, StoreError> {
        let (project, name) = (project.clone(), name.to_owned());
        self.db.read("reading a device", move |tx| devices::one(tx, &project, &name)).await
    }
}

fn bound(db: &Connection, project: &ProjectId, name: &str) -> Result<Option<SourceId>, DbError> {
    let sql = "SELECT source_id FROM devices WHERE project = ?1 AND name = ?2";
    let found: Option<Option<Sql<SourceId>>> =
        db.prepare_cached(sql)?.query_row(params![project.0, name], |row| row.get(0)).optional()?;
    Ok(found.flatten().map(|Sql(id)| id))
}

fn bind(
    tx: &Transaction<'_>,
    credential: &DeviceCredential,
    device: SourceId,
) -> Result<Binding, DbError> {
    let DeviceCredential { project, name, .. } = credential;
    match bound(tx, project, name)? {
        Some(by) if by != device => return Ok(Binding::NameTaken { by }),
        Some(_) => {
            commit::seen(tx, device)?;
            return Ok(Binding::Bound);
        }
        None => {}
    }
    let holder: Option<String> = tx
        .query_row("SELECT name FROM devices WHERE source_id = ?1", [Sql(device)], |row| row.get(0))
        .optional()?;
    if let Some(by) = holder {
        return Ok(Binding::IdTaken { by });
    }
    tx.execute(
        "INSERT INTO devices (project, name, source_id, last_seen) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (project, name) DO UPDATE SET
            source_id = excluded.source_id, last_seen = excluded.last_seen",
        params![project.0, name, Sql(device), Sql(UnixMillis::now())],
    )?;
    Ok(Binding::Bound)
}

fn database_number(
    db: &Connection,
    device: SourceId,
    database: &str,
) -> Result<Option<i64>, DbError> {
    let sql = "SELECT number FROM databases WHERE device = ?1 AND name = ?2";
    let params = params![Sql(device), database];
    Ok(db.prepare_cached(sql)?.query_row(params, |row| row.get(0)).optional()?)
}

fn attach(
    tx: &Transaction<'_>,
    device: SourceId,
    database: &str,
    mut tables: Vec<Attachment>,
    cursor: Cursor,
) -> Result<Vec<Attachment>, DbError> {
    let number = database_number(tx, device, database)?
        .ok_or_else(|| DbError::Content(format!("database {database:?} has no epoch")))?;
    let flowed = flowing_down(tx, number)?;
    let announced: Vec<&str> = tables.iter().map(|table| table.spec.name.as_str()).collect();
    tx.execute(
        "UPDATE lineages SET status = ?3, message = NULL WHERE database = ?1
         AND table_name NOT IN (SELECT value FROM json_each(?2))",
        params![number, serde_json::to_string(&announced)?, DETACHED],
    )?;
    for table in &mut tables {
        if table.state == TableState::Flowing {
            if let Some(message) = rival(tx, device, number, table)? {
                table.state = TableState::Refused { message };
            } else if is_paused(tx, number, &table.spec.name)? {
                table.state = TableState::Paused;
            }
        }
        let dataspace = table.dataspace.as_ref().map(|dataspace| dataspace.number);
        let flows_down =
            table.state == TableState::Flowing && table.spec.authority == Authority::Cloud;
        let flowed_before = flowed.contains(&(table.spec.name.clone(), dataspace));
        let starts_late = flows_down && !flowed_before && cursor != Cursor::ZERO;
        let (status, message) = status_of(&table.state);
        tx.prepare_cached(
            "INSERT INTO lineages (database, table_name, dataspace, spec, fingerprint, status,
                message, snapshot) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
             ON CONFLICT (database, table_name) DO UPDATE SET
                dataspace = excluded.dataspace, spec = excluded.spec,
                fingerprint = excluded.fingerprint, status = excluded.status,
                message = excluded.message, snapshot = snapshot OR excluded.snapshot",
        )?
        .execute(params![
            number,
            table.spec.name,
            dataspace,
            serde_json::to_string(&table.spec)?,
            table.spec.fingerprint(),
            status,
            message,
            starts_late,
        ])?;
    }
    Ok(tables)
}

/// The tables of a database whose rows flow down, each with its dataspace.
fn flowing_down(
    tx: &Transaction<'_>,
    database: i64,
) -> Result<Vec<(String, Option<i64>)>, DbError> {
    let sql = "SELECT l.table_name, l.dataspace FROM lineages AS l
        JOIN dataspaces AS s ON s.number = l.dataspace
        WHERE l.database = ?1 AND l.status = 'flowing' AND s.authority = 'cloud'";
    let mut statement = tx.prepare_cached(sql)?;
    let rows = statement.query_map([database], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Why a table cannot flow beside another one of the device. Rows of both would be one row at the
/// hub, under versions that do not compare; down, the feed would not know which table is meant. A
/// database that was renamed (the same installation in the file) takes over.
fn rival(
    tx: &Transaction<'_>,
    device: SourceId,
    database: i64,
    table: &Attachment,
) -> Result<Option<String>, DbError> {
    let Some(dataspace) = &table.dataspace else {
        return Ok(None);
    };
    let same_database_only = dataspace.authority == Authority::Cloud;
    let sql = "SELECT l.number, l.table_name, d.name, d.number <> ?2 AND
            (SELECT instance FROM epochs WHERE database = d.number AND closed_at IS NULL) IS
            (SELECT instance FROM epochs WHERE database = ?2 AND closed_at IS NULL)
        FROM lineages AS l JOIN databases AS d ON d.number = l.database
        WHERE d.device = ?1 AND l.dataspace = ?3 AND l.status IN ('flowing', 'paused')
            AND NOT (d.number = ?2 AND l.table_name = ?4) AND (d.number = ?2 OR NOT ?5)";
    let params =
        params![Sql(device), database, dataspace.number, table.spec.name, same_database_only];
    let rivals: Vec<(i64, String, String, bool)> = tx
        .prepare_cached(sql)?
        .query_map(params, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
        .collect::<rusqlite::Result<_>>()?;
    if let Some((_, rival, database, _)) = rivals.iter().find(|(.., renamed)| !renamed) {
        return Ok(Some(format!(
            "dataspace {:?} takes this device's rows from table {rival:?} of database \
             {database:?} already: give one of the two another dataspace in the agent's \
             configuration (dataspace = \"...\")",
            dataspace.name
        )));
    }
    for (number, ..) in rivals {
        tx.prepare_cached("UPDATE lineages SET status = ?2 WHERE number = ?1")?
            .execute(params![number, DETACHED])?;
    }
    Ok(None)
}

fn is_paused(tx: &Transaction<'_>, database: i64, table: &str) -> Result<bool, DbError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM lineages
        WHERE database = ?1 AND table_name = ?2 AND paused)";
    Ok(tx.prepare_cached(sql)?.query_row(params![database, table], |row| row.get(0))?)
}

fn status_of(state: &TableState) -> (&'static str, Option<String>) {
    match state {
        TableState::Flowing => ("flowing", None),
        TableState::Paused => ("paused", None),
        TableState::AuthorityMismatch { hub } => {
            ("authority_mismatch", Some(format!("the hub has authority {hub:?}")))
        }
        TableState::Refused { message } => ("refused", Some(message.clone())),
    }
}

fn attachments(
    db: &Connection,
    device: SourceId,
    database: &str,
) -> Result<Vec<Attachment>, DbError> {
    let sql = "SELECT l.spec, l.dataspace, l.status, l.message, s.authority
        FROM lineages AS l JOIN databases AS d ON d.number = l.database
        LEFT JOIN dataspaces AS s ON s.number = l.dataspace
        WHERE d.device = ?1 AND d.name = ?2 AND l.status <> ?3 ORDER BY l.table_name";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query(params![Sql(device), database, DETACHED])?;
    let mut attachments = Vec::new();
    while let Some(row) = rows.next()? {
        let dataspace: Option<i64> = row.get(1)?;
        let (status, message): (String, Option<String>) = (row.get(2)?, row.get(3)?);
        let state = match status.as_str() {
            "flowing" => TableState::Flowing,
            "paused" => TableState::Paused,
            "authority_mismatch" => {
                let hub: Option<String> = row.get(4)?;
                TableState::AuthorityMismatch { hub: hub.unwrap_or_default() }
            }
            _ => TableState::Refused { message: message.unwrap_or_default() },
        };
        attachments.push(Attachment {
            spec: serde_json::from_str(&row.get::<_, String>(0)?)?,
            dataspace: match dataspace {
                Some(number) => Some(catalog::by_number(db, number)?.into()),
                None => None,
            },
            state,
        });
    }
    Ok(attachments)
}

fn note_down(tx: &Transaction<'_>, device: SourceId, receipt: &DownReceipt) -> Result<(), DbError> {
    let Some(database) = database_number(tx, device, &receipt.database)? else {
        return Ok(());
    };
    let Cursor { term, hi, lo } = receipt.cursor;
    let (term, hi, lo) = (signed(term)?, signed(hi)?, signed(lo)?);
    tx.execute(
        "UPDATE databases SET applied_term = ?2, applied_hi = ?3, applied_lo = ?4, highest = ?5
         WHERE number = ?1",
        params![database, term, hi, lo, Sql(receipt.highest)],
    )?;
    drop_superseded_outcomes(tx, device, database, hi)?;
    for row in receipt.outcomes.iter().take(DOWN_OUTCOMES_MAX) {
        let message = match &row.outcome {
            // The device holds that version or a newer one: nothing is missing there.
            Outcome::Applied | Outcome::Duplicate | Outcome::Stale => continue,
            Outcome::Rejected(reason) => format!("{}: {}", reason.code, reason.message),
            Outcome::Diverged => "the device holds other content under this version".to_owned(),
            Outcome::Conflict => "the device holds another version".to_owned(),
        };
        tx.prepare_cached(
            "INSERT OR REPLACE INTO down_outcomes
                (database, table_name, natural_key, version, outcome, message, at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![
            database,
            row.table,
            row.key,
            Sql(row.version),
            row.outcome.name(),
            message,
            Sql(UnixMillis::now()),
        ])?;
    }
    tx.execute(
        "DELETE FROM down_outcomes WHERE rowid IN (SELECT rowid FROM down_outcomes
         WHERE database = ?1 ORDER BY at DESC LIMIT -1 OFFSET ?2)",
        params![database, i64::try_from(DOWN_OUTCOMES_MAX).unwrap_or(i64::MAX)],
    )?;
    commit::seen(tx, device)
}

/// A row that was not applied counts until the device has passed a newer version of it.
fn drop_superseded_outcomes(
    tx: &Transaction<'_>,
    device: SourceId,
    database: i64,
    applied_hi: i64,
) -> Result<(), DbError> {
    tx.execute(
        "DELETE FROM down_outcomes WHERE database = ?1 AND EXISTS (
            SELECT 1 FROM lineages AS l JOIN dataspaces AS s ON s.number = l.dataspace
            JOIN outbox AS o ON o.container = l.dataspace AND o.source_id IN (s.id, ?2)
                AND o.natural_key = down_outcomes.natural_key AND o.superseded = 0
            WHERE l.database = ?1 AND l.table_name = down_outcomes.table_name
                AND o.id <= ?3 AND o.version > down_outcomes.version)",
        params![database, Sql(device), applied_hi],
    )?;
    Ok(())
}

fn note_report(tx: &Transaction<'_>, device: SourceId, report: &Report) -> Result<(), DbError> {
    let Some(database) = database_number(tx, device, &report.database)? else {
        return Ok(());
    };
    for table in &report.tables {
        let status: String = table.status.chars().take(200).collect();
        tx.prepare_cached(
            "UPDATE lineages SET pending = ?3, quarantine = ?4, device_status = ?5
             WHERE database = ?1 AND table_name = ?2",
        )?
        .execute(params![
            database,
            table.table,
            i64::try_from(table.pending).unwrap_or(i64::MAX),
            i64::try_from(table.quarantine).unwrap_or(i64::MAX),
            status
        ])?;
    }
    commit::seen(tx, device)
}
