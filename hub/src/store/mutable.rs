//! The mutable plane on `mutable.db`.
//!
//! One row a key, replaced under the version guard, so the read view is the table itself. Tables
//! are made on first use: the catalog lives in another file, and no transaction spans both. The
//! marks let the state store notice that this file was exchanged.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use rusqlite::Transaction;
use sync_proto::message::Outcome;
use sync_proto::{NaturalKey, SourceId, Stamp};
use uuid::Uuid;

use super::columns::Sql;
use super::database::{Database, DbError};
use super::row_table::{self, NewRow};
use super::term::Marks;
use crate::catalog::Dataspace;
use crate::clock::UnixMillis;
use crate::error::StoreError;
use crate::plane::{Lookup, MutablePlane, Page, PageRequest, StoredRow, UpRow};
use crate::rules;

/// `source_type` of mutable rows: their `source_id` says which producer.
const SOURCE_PRODUCER: &str = "producer";

/// The mutable store.
pub(crate) struct MutableStore {
    db: Arc<Database>,
    /// Dataspaces whose table is known to have that many declared columns. Fields are only ever
    /// added, so their number tells.
    provisioned: Mutex<BTreeSet<(i64, usize)>>,
}

impl MutableStore {
    pub(super) fn new(db: Arc<Database>) -> Self {
        Self { db, provisioned: Mutex::default() }
    }

    /// Makes sure that the table exists with every declared column.
    async fn ensure(&self, dataspace: &Dataspace) -> Result<(), StoreError> {
        let mark = (dataspace.number, dataspace.fields.len());
        if self.provisioned.lock().unwrap_or_else(PoisonError::into_inner).contains(&mark) {
            return Ok(());
        }
        let wanted = dataspace.clone();
        let work = move |tx: &Transaction<'_>| row_table::provision(tx, &wanted);
        self.db.write("making a dataspace's table", work).await?;
        self.provisioned.lock().unwrap_or_else(PoisonError::into_inner).insert(mark);
        Ok(())
    }
}

/// Marks this life of the store.
pub(super) fn mark(tx: &Transaction<'_>) -> Result<Marks, DbError> {
    let newest = Uuid::now_v7();
    tx.execute("INSERT INTO marks (mark) VALUES (?1)", [Sql(newest)])?;
    let all = tx
        .prepare("SELECT mark FROM marks")?
        .query_map([], |row| row.get(0).map(|Sql(mark)| mark))?
        .collect::<rusqlite::Result<_>>()?;
    Ok(Marks { newest, all })
}

#[async_trait]
impl MutablePlane for MutableStore {
    async fn insert(
        &self,
        dataspace: &Dataspace,
        rows: Vec<UpRow>,
    ) -> Result<Vec<Outcome>, StoreError> {
        self.ensure(dataspace).await?;
        let dataspace = dataspace.clone();
        self.db.write("storing mutable rows", move |tx| insert(tx, &dataspace, &rows)).await
    }

    async fn get(
        &self,
        dataspace: &Dataspace,
        key: &NaturalKey,
        source: Option<SourceId>,
    ) -> Result<Lookup, StoreError> {
        self.ensure(dataspace).await?;
        let (dataspace, key) = (dataspace.clone(), key.clone());
        let work = move |tx: &Transaction<'_>| row_table::lookup(tx, &dataspace, &key, source);
        self.db.read("reading a row", work).await
    }

    async fn list(&self, dataspace: &Dataspace, page: PageRequest) -> Result<Page, StoreError> {
        self.ensure(dataspace).await?;
        let dataspace = dataspace.clone();
        let work = move |tx: &Transaction<'_>| row_table::page(tx, &dataspace, &page);
        self.db.read("listing rows", work).await
    }

    async fn rows(
        &self,
        dataspace: &Dataspace,
        identities: Vec<(SourceId, NaturalKey)>,
        bytes_max: usize,
    ) -> Result<Vec<Option<StoredRow>>, StoreError> {
        self.ensure(dataspace).await?;
        let dataspace = dataspace.clone();
        let work = move |tx: &Transaction<'_>| {
            row_table::read_many(tx, &dataspace, &identities, bytes_max)
        };
        self.db.read("reading rows", work).await
    }
}

fn insert(
    tx: &Transaction<'_>,
    dataspace: &Dataspace,
    rows: &[UpRow],
) -> Result<Vec<Outcome>, DbError> {
    let at = UnixMillis::now();
    let mut outcomes = Vec::with_capacity(rows.len());
    for row in rows {
        let stored = row_table::stamp(tx, dataspace, row.source_id, &row.key)?;
        let stamp = Stamp { version: row.version, hash: row.hash };
        let outcome = rules::judge(stored, stamp);
        if outcome == Outcome::Applied {
            let values = if row.deleted { &[] } else { row.values.as_slice() };
            let (source_id, key, deleted) = (row.source_id, &row.key, row.deleted);
            let source_type = SOURCE_PRODUCER;
            let new = NewRow { source_type, source_id, key, stamp, deleted, values, at };
            row_table::store(tx, dataspace, &new)?;
        }
        outcomes.push(outcome);
    }
    Ok(outcomes)
}
