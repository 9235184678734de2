//! The state plane on `hub.db`: reads, and the entry points of its writes.
//!
//! Deciding and writing are in `commit` (a device's range) and `write` (one row of the API);
//! the feed is in `outbox`. This file only puts each call into one transaction. A dataspace's
//! table is made by the transaction that creates or widens the dataspace.

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{OptionalExtension as _, Transaction};
use sync_proto::{NaturalKey, SourceId, Version};

use super::columns::Sql;
use super::database::Database;
use super::outbox::{self, Change};
use super::row_table;
use super::{commit, write};
use crate::catalog::Dataspace;
use crate::clock::UnixMillis;
use crate::error::StoreError;
use crate::plane::{
    FeedPage, FeedRequest, Lookup, Page, PageRequest, Reaped, RowWrite, StatePlane, StoredRow,
    UpCommit, UpCommitted, WriteError, WriteOutcome,
};

/// The state store: catalog, lineages and the state plane in one file.
pub(crate) struct StateStore {
    pub(super) db: Arc<Database>,
}

impl StateStore {
    pub(super) fn new(db: Arc<Database>) -> Self {
        Self { db }
    }
}

#[async_trait]
impl StatePlane for StateStore {
    async fn commit_up(&self, commit: UpCommit) -> Result<UpCommitted, StoreError> {
        self.db.write("storing a range", move |tx| commit::commit(tx, &commit)).await
    }

    async fn write(&self, write: RowWrite) -> Result<WriteOutcome, WriteError> {
        self.db.write("writing a row", move |tx| write::write(tx, &write)).await?
    }

    async fn get(
        &self,
        dataspace: &Dataspace,
        key: &NaturalKey,
        source: Option<SourceId>,
    ) -> Result<Lookup, StoreError> {
        let (dataspace, key) = (dataspace.clone(), key.clone());
        let work = move |tx: &Transaction<'_>| row_table::lookup(tx, &dataspace, &key, source);
        self.db.read("reading a row", work).await
    }

    async fn list(&self, dataspace: &Dataspace, page: PageRequest) -> Result<Page, StoreError> {
        let dataspace = dataspace.clone();
        self.db.read("listing rows", move |tx| row_table::page(tx, &dataspace, &page)).await
    }

    async fn rows(
        &self,
        dataspace: &Dataspace,
        identities: Vec<(SourceId, NaturalKey)>,
        bytes_max: usize,
    ) -> Result<Vec<Option<StoredRow>>, StoreError> {
        let dataspace = dataspace.clone();
        let work = move |tx: &Transaction<'_>| {
            row_table::read_many(tx, &dataspace, &identities, bytes_max)
        };
        self.db.read("reading rows", work).await
    }

    async fn is_untouched(
        &self,
        dataspace: &Dataspace,
        source: Option<SourceId>,
    ) -> Result<bool, StoreError> {
        let table = row_table::table(dataspace);
        let work = move |tx: &Transaction<'_>| {
            let found: Option<i64> = match source {
                Some(source) => tx
                    .prepare_cached(&format!("SELECT 1 FROM {table} WHERE source_id = ?1 LIMIT 1"))?
                    .query_row([Sql(source)], |row| row.get(0))
                    .optional()?,
                None => tx
                    .prepare_cached(&format!("SELECT 1 FROM {table} LIMIT 1"))?
                    .query_row([], |row| row.get(0))
                    .optional()?,
            };
            Ok(found.is_none())
        };
        self.db.read("looking for rows", work).await
    }

    async fn feed(&self, request: FeedRequest) -> Result<FeedPage, StoreError> {
        self.db.read("reading the feed", move |tx| outbox::feed(tx, &request)).await
    }

    async fn announce(
        &self,
        dataspace: &Dataspace,
        rows: Vec<(SourceId, NaturalKey, Version)>,
    ) -> Result<(), StoreError> {
        let (dataspace, at) = (dataspace.number, UnixMillis::now());
        let work = move |tx: &Transaction<'_>| {
            for (source_id, key, version) in &rows {
                let (source_id, version) = (*source_id, *version);
                let change = Change { dataspace, source_id, key, version, at };
                if !outbox::has_announced(tx, &change)? {
                    outbox::append(tx, &change)?;
                }
            }
            Ok(())
        };
        self.db.write("announcing rows", work).await
    }

    async fn reap(&self, before: UnixMillis) -> Result<Reaped, StoreError> {
        let work = move |tx: &Transaction<'_>| {
            Ok(Reaped {
                history: outbox::reap_aged(tx, "history", before)?,
                outbox: outbox::reap(tx, before)?,
                orphans: outbox::reap_aged(tx, "orphans", before)?,
            })
        };
        self.db.write("reaping", work).await
    }
}
