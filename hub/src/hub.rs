//! The hub as one value: its stores, the device protocol, the API's writes, the reaper.
//!
//! Whoever serves holds one [`Hub`] and clones it freely. Writes go through here and not to the
//! planes, so that everyone who waits for the feed is woken.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sync_proto::RowHash;
use sync_proto::message::Outcome;
use sync_proto::schema::{Authority, Modality};

use crate::catalog::{Catalog, Dataspace};
use crate::clock::UnixMillis;
use crate::error::StoreError;
use crate::ingest::Ingest;
use crate::lineage::Lineages;
use crate::plane::{MutablePlane, Reaped, RowWrite, StatePlane, UpRow, WriteError, WriteOutcome};
use crate::query::QueryEngine;
use crate::rules;
use crate::store::Stores;
use crate::wake::Wake;

/// Between two bites of the reaper, so that it takes a small share of the writer's time.
const REAP_PAUSE: Duration = Duration::from_millis(200);

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
        let Stores { state, mutable, query } = Stores::open(dir)?;
        let ingest = Ingest {
            catalog: state.clone(),
            lineages: state.clone(),
            state: state.clone(),
            mutable: mutable.clone(),
            wake: Wake::new(),
            auto_provision: options.auto_provision,
        };
        let lineages = state.clone();
        Ok(Self { catalog: state.clone(), lineages, state, mutable, query, ingest, options })
    }

    /// Opens only the catalog in a folder, for a command beside a running hub: no new term.
    ///
    /// # Errors
    /// [`StoreError`] when the folder or the store in it cannot be used.
    pub fn open_catalog(dir: &Path) -> Result<Arc<dyn Catalog>, StoreError> {
        Ok(Stores::open_beside(dir)?)
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
        let outcome = self.state.write(write).await?;
        self.ingest.wake.notify();
        Ok(outcome)
    }

    /// Takes cloud-authored rows into a mutable dataspace, then announces them to its devices. One
    /// outcome a row, in their order. Safe to repeat: what was stored but not yet announced is
    /// announced then. Key fields are filled in and the hashes are computed here.
    ///
    /// # Errors
    /// [`WriteError`] when the dataspace does not take rows from here or a store failed.
    pub async fn ingest_rows(
        &self,
        dataspace: &Dataspace,
        rows: Vec<UpRow>,
    ) -> Result<Vec<Outcome>, WriteError> {
        if dataspace.authority == Authority::Device {
            let dataspace = dataspace.name.clone();
            return Err(WriteError::DeviceAuthoritative { dataspace });
        }
        if dataspace.modality == Modality::State {
            let name = &dataspace.name;
            return Err(WriteError::Invalid(format!(
                "dataspace {name:?} is a state dataspace: write its rows one by one"
            )));
        }
        let checked: Vec<Result<UpRow, Outcome>> =
            rows.into_iter().map(|row| checked(dataspace, row)).collect();
        let storable: Vec<UpRow> = checked.iter().filter_map(|row| row.clone().ok()).collect();
        let stored = self.mutable.insert(dataspace, storable.clone()).await?;
        let announced = storable.into_iter().zip(&stored).filter_map(|(row, outcome)| {
            let is_there = matches!(outcome, Outcome::Applied | Outcome::Duplicate);
            is_there.then_some((row.source_id, row.key, row.version))
        });
        self.state.announce(dataspace, announced.collect()).await?;
        self.ingest.wake.notify();
        let mut stored = stored.into_iter();
        let outcomes = checked.into_iter().filter_map(|row| match row {
            Ok(_) => stored.next(),
            Err(outcome) => Some(outcome),
        });
        Ok(outcomes.collect())
    }

    /// Gives up what is older than the retention, for ever, at the chosen interval. Runs as one
    /// task of the process; it ends when its future is dropped.
    #[expect(clippy::infinite_loop, reason = "its caller ends it by dropping the future")]
    pub async fn run_reaper(&self) {
        loop {
            self.reap().await;
            tokio::time::sleep(self.options.reap_every).await;
        }
    }

    /// Reaps in small bites, so that writes get in between.
    async fn reap(&self) {
        let retention = i64::try_from(self.options.retention.as_millis()).unwrap_or(i64::MAX);
        let before = UnixMillis(UnixMillis::now().0.saturating_sub(retention));
        loop {
            match self.state.reap(before).await {
                Ok(reaped) if reaped == Reaped::default() => return,
                Ok(reaped) => tracing::debug!(?reaped, "reaped"),
                Err(error) => {
                    tracing::warn!(
                        error = &error as &(dyn std::error::Error + 'static),
                        "nothing reaped; tried again at the next interval"
                    );
                    return;
                }
            }
            tokio::time::sleep(REAP_PAUSE).await;
        }
    }
}

/// A row of the API as it is stored, or why it is not.
fn checked(dataspace: &Dataspace, mut row: UpRow) -> Result<UpRow, Outcome> {
    let rejected = |message: String| Outcome::Rejected(rules::reason("invalid", message));
    let completed = rules::complete(dataspace, &row.key, &row.values)
        .map_err(|error| rejected(error.to_string()))?;
    row.hash = if row.deleted {
        RowHash::TOMBSTONE
    } else {
        RowHash::of(completed.iter().map(|(name, value)| (name.as_str(), value)))
    };
    row.values = completed;
    Ok(row)
}
