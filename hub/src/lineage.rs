//! Devices, the epochs of their databases, and how far each lineage is.
//!
//! The trait is what the state store has to offer besides rows: bindings of names to UUIDs, bases,
//! attachments of tables, terms and the incarnation, and what devices report. It leaves the
//! protocol to [`crate::ingest`] and row outcomes to the planes.

use std::sync::Arc;

use async_trait::async_trait;
use sync_proto::message::{DownReceipt, LanePosition, Report, TableState, UpBatch};
use sync_proto::schema::{Authority, Modality, TableSpec};
use sync_proto::{Cursor, Epoch, Incarnation, InstanceId, Lane, Seq, SourceId, Version};

use crate::catalog::{Dataspace, IdentityStrength, ProjectId};
use crate::clock::UnixMillis;
use crate::error::StoreError;
use crate::plane::UpReceipt;

/// A device as its credential proves it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceCredential {
    /// The project.
    pub project: ProjectId,
    /// The device's name.
    pub name: String,
    /// How well that is proven.
    pub strength: IdentityStrength,
}

/// The answer to a request to bind a name to a UUID.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Binding {
    /// The name and the UUID belong together, now or already before.
    Bound,
    /// The name belongs to another UUID.
    NameTaken {
        /// That UUID.
        by: SourceId,
    },
    /// The UUID belongs to another name.
    IdTaken {
        /// That name.
        by: String,
    },
}

/// A request for the base of an epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EpochRequest {
    /// The device.
    pub device: SourceId,
    /// Its database.
    pub database: String,
    /// The installation inside the file.
    pub instance: InstanceId,
    /// The epoch.
    pub epoch: Epoch,
    /// The highest version that the device knows of.
    pub floor: Version,
}

/// An epoch as the hub knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EpochState {
    /// The database's current epoch.
    Open(OpenEpoch),
    /// A later epoch closed it.
    Closed,
    /// Never greeted.
    Unknown,
}

/// The current epoch of a database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenEpoch {
    /// version = base + commit_seq.
    pub base: Version,
    /// No row of this or an earlier epoch has a higher version than this, and a later epoch's base
    /// is not below it.
    pub ceiling: Version,
    /// Per lane: the watermark and its token. Lanes without a receipt yet are left out.
    pub lanes: Vec<LanePosition>,
}

/// A device's table together with the dataspace that it maps to.
#[derive(Clone, PartialEq, Debug)]
pub struct Attachment {
    /// The table as announced.
    pub spec: TableSpec,
    /// The dataspace; `None` where none could be found or made.
    pub dataspace: Option<Arc<Dataspace>>,
    /// Whether rows flow.
    pub state: TableState,
}

/// The life of the hub's state store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HubLife {
    /// New after a rollback was noticed.
    pub incarnation: Incarnation,
    /// The newest term.
    pub term: u64,
    /// Rises with every change of an authority.
    pub generation: u64,
}

/// A device for the API's device pages.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// Its UUID; `None` until it greets for the first time.
    pub source_id: Option<SourceId>,
    /// When it sent something last.
    pub last_seen: Option<UnixMillis>,
    /// Its tables, by (database, table).
    pub lineages: Vec<LineageInfo>,
}

/// Progress and status of one lineage.
#[derive(Clone, PartialEq, Debug)]
pub struct LineageInfo {
    /// The database.
    pub database: String,
    /// The table's name on the device.
    pub table: String,
    /// The dataspace's name.
    pub dataspace: String,
    /// State or mutable.
    pub modality: Modality,
    /// Device or cloud.
    pub authority: Authority,
    /// `flowing`, `paused`, `authority_mismatch`, `refused`, or `detached` when the last Hello did
    /// not name the table.
    pub status: String,
    /// Why nothing flows, for a person.
    pub message: Option<String>,
    /// The status that the device reports.
    pub device_status: Option<String>,
    /// Keys that wait on the device, as it reports them.
    pub pending: Option<u64>,
    /// Rows set aside on the device, as it reports them.
    pub device_quarantine: u64,
    /// Rows that the hub could not store and keeps as orphans.
    pub orphans: u64,
    /// The schema fingerprint.
    pub fingerprint: String,
    /// The database's epoch.
    pub epoch: Epoch,
    /// The watermark of the lane of the table's live changes.
    pub watermark: Seq,
    /// When a receipt was given last for rows of this database's lanes.
    pub last_receipt: Option<UnixMillis>,
    /// Whether the lanes of this table show a state that the device really had.
    pub consistent: bool,
    /// All lanes of the database.
    pub lanes: Vec<LaneInfo>,
    /// Up to where the device applied the feed.
    pub applied_cursor: Cursor,
    /// Rows of the feed that the device did not apply.
    pub down_outcomes: Vec<DownOutcomeInfo>,
}

impl LineageInfo {
    /// Rows set aside at either end.
    #[must_use]
    pub const fn quarantine(&self) -> u64 {
        self.device_quarantine.saturating_add(self.orphans)
    }
}

/// Progress and counters of one lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaneInfo {
    /// The lane.
    pub lane: Lane,
    /// Up to where it is durable without a gap.
    pub watermark: Seq,
    /// The greatest commit_seq that the device had when it sent.
    pub head: Seq,
    /// Whether the watermark reached the head.
    pub consistent: bool,
    /// When a receipt was given last.
    pub last_receipt: Option<UnixMillis>,
    /// Outcomes by name (`applied`, `duplicate`, …): how many rows had them.
    pub counters: Vec<(&'static str, u64)>,
}

/// A row of the feed that a device did not apply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DownOutcomeInfo {
    /// The key, as the device wrote it.
    pub key: String,
    /// The version that was sent.
    pub version: Version,
    /// The outcome's name.
    pub outcome: String,
    /// Why, for a person.
    pub message: String,
    /// When the hub heard of it.
    pub at: UnixMillis,
}

/// Devices and their progress, as the state store has to offer it.
#[async_trait]
pub trait Lineages: Send + Sync {
    /// The store's life.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn life(&self) -> Result<HubLife, StoreError>;

    /// Whether this store, in the life that it has, wrote the position.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn knows(&self, position: Cursor) -> Result<bool, StoreError>;

    /// Starts a new incarnation in place of `seen`; when another one holds already, keeps that.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be made durable.
    async fn renew_incarnation(&self, seen: Incarnation) -> Result<Incarnation, StoreError>;

    /// Binds a device's name and UUID to each other for ever.
    ///
    /// # Errors
    /// [`StoreError`] when the store failed.
    async fn bind(
        &self,
        credential: &DeviceCredential,
        device: SourceId,
    ) -> Result<Binding, StoreError>;

    /// The UUID that a device's name is bound to.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn bound(&self, credential: &DeviceCredential) -> Result<Option<SourceId>, StoreError>;

    /// Opens an epoch: allocates its base once and closes the one before. An open epoch gets the
    /// answer that it got before.
    ///
    /// # Errors
    /// [`StoreError`] when nothing was written.
    async fn open_epoch(&self, request: EpochRequest) -> Result<EpochState, StoreError>;

    /// What holds for an epoch.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn epoch(
        &self,
        device: SourceId,
        database: &str,
        epoch: Epoch,
    ) -> Result<EpochState, StoreError>;

    /// Makes sure that a later epoch's base will not be below `version`, before a row of that
    /// version is written to a plane of another store. Answers what holds for the epoch then.
    ///
    /// # Errors
    /// [`StoreError`] when nothing was written.
    async fn reserve(
        &self,
        device: SourceId,
        database: &str,
        epoch: Epoch,
        version: Version,
    ) -> Result<EpochState, StoreError>;

    /// Records the announced tables and answers what holds for each; tables that are not named
    /// become detached. A flowing table is refused here when another one of the device feeds the
    /// same dataspace (their versions would not compare), and held while it is paused. A table
    /// whose rows start to flow down while the device's cursor is beyond ZERO gets a snapshot
    /// (see [`Lineages::needs_snapshot`]).
    ///
    /// # Errors
    /// [`StoreError`] when nothing was written.
    async fn attach(
        &self,
        device: SourceId,
        database: &str,
        tables: Vec<Attachment>,
        cursor: Cursor,
    ) -> Result<Vec<Attachment>, StoreError>;

    /// The tables of a database as attached, those that became detached left out.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn attachments(
        &self,
        device: SourceId,
        database: &str,
    ) -> Result<Vec<Attachment>, StoreError>;

    /// Holds or releases a table.
    ///
    /// # Errors
    /// [`StoreError`] when nothing was written.
    async fn set_paused(
        &self,
        device: SourceId,
        database: &str,
        table: &str,
        paused: bool,
    ) -> Result<(), StoreError>;

    /// Whether a table was attached while the device's cursor was beyond the feed's start, so that
    /// it has to take the feed again; asking with the ZERO cursor does that and ends it.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn needs_snapshot(
        &self,
        device: SourceId,
        database: &str,
        cursor: Cursor,
    ) -> Result<bool, StoreError>;

    /// The receipt of a range that is durable with exactly these rows.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn receipt(
        &self,
        device: SourceId,
        batch: &UpBatch,
    ) -> Result<Option<UpReceipt>, StoreError>;

    /// Records what a device applied of the feed.
    ///
    /// # Errors
    /// [`StoreError`] when nothing was written.
    async fn note_down(&self, device: SourceId, receipt: DownReceipt) -> Result<(), StoreError>;

    /// Records a device's own view of its tables.
    ///
    /// # Errors
    /// [`StoreError`] when nothing was written.
    async fn note_report(&self, device: SourceId, report: Report) -> Result<(), StoreError>;

    /// Every device of a project, by name; those that only have a token too.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn devices(&self, project: &ProjectId) -> Result<Vec<DeviceInfo>, StoreError>;

    /// One device.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn device(
        &self,
        project: &ProjectId,
        name: &str,
    ) -> Result<Option<DeviceInfo>, StoreError>;
}
