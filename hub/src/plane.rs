//! The two planes as an engine has to offer them: state and mutable.
//!
//! Both work in batches, and no call spans both: the mutable plane is written first, then the
//! state store records the range, then a receipt is given. [`StatePlane::commit_up`] is one
//! transaction of rows, history, outbox and range. Verdicts come from `sync_proto::decide`.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use sync_proto::message::Outcome;
use sync_proto::{
    Cursor, Digest, Epoch, Lane, NaturalKey, RowHash, Seq, SourceId, Token, Value, Version,
};

use crate::catalog::{Dataspace, IdentityStrength};
use crate::clock::UnixMillis;
use crate::error::StoreError;

/// A row as it is stored.
#[derive(Clone, PartialEq, Debug)]
pub struct StoredRow {
    /// The key's canonical text; empty in a dataspace without a natural key.
    pub natural_key: NaturalKey,
    /// The producer, or the dataspace's own id for scope `all`.
    pub source_id: SourceId,
    /// The version.
    pub version: Version,
    /// When the row's producer says it happened; its arrival where the producer says nothing.
    pub event_ts: UnixMillis,
    /// When the hub wrote it.
    pub updated_at: UnixMillis,
    /// Every declared column (NULL where nothing was sent), in order of declaration, then what
    /// overflow holds. Empty in a tombstone.
    pub values: Vec<(String, Value)>,
    /// Whether it is a tombstone.
    pub deleted: bool,
}

impl StoredRow {
    /// Bytes of its values: what bounds of memory count.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.values.iter().map(|(name, value)| name.len() + value.len_bytes()).sum()
    }
}

/// Who writes: recorded in the history of a state row. Comes from the credential.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Author {
    /// `device:NAME` or `api:NAME`.
    pub name: String,
    /// How well that is proven.
    pub strength: IdentityStrength,
}

/// Rows of one range of one lane, for one transaction.
#[derive(Clone, PartialEq, Debug)]
pub struct UpCommit {
    /// The device.
    pub device: SourceId,
    /// Its database.
    pub database: String,
    /// The epoch; the transaction itself checks that it is open.
    pub epoch: Epoch,
    /// The range.
    pub range: UpRange,
    /// Who sends.
    pub author: Author,
    /// Rows for the state plane: one per key, sorted by key.
    pub tables: Vec<UpTable>,
    /// Rows whose outcome is known already: those of the mutable plane, and refused ones.
    pub settled: Vec<SettledRow>,
}

/// A chained range, as sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UpRange {
    /// The lane.
    pub lane: Lane,
    /// Where the range before it ends.
    pub prev: Seq,
    /// Where it ends.
    pub last: Seq,
    /// The token of the log entry at `last`.
    pub token: Token,
    /// The greatest commit_seq of the lane that the device had at that time.
    pub head: Seq,
    /// The digest of its rows.
    pub digest: Digest,
}

/// Rows of one of the device's tables.
#[derive(Clone, PartialEq, Debug)]
pub struct UpTable {
    /// The table's name on the device.
    pub table: String,
    /// Where the rows go.
    pub dataspace: Arc<Dataspace>,
    /// The rows.
    pub rows: Vec<UpRow>,
}

/// One row that comes from a producer.
#[derive(Clone, PartialEq, Debug)]
pub struct UpRow {
    /// The identity's first half.
    pub source_id: SourceId,
    /// The identity's second half.
    pub key: NaturalKey,
    /// The commit_seq; zero for rows that come by the API.
    pub seq: Seq,
    /// The version that the row carries. A swap gets its version from what is stored.
    pub version: Version,
    /// The version that a compare-and-swap expects.
    pub base: Option<Version>,
    /// The values; the key's only in a tombstone.
    pub values: Vec<(String, Value)>,
    /// Whether it is a tombstone.
    pub deleted: bool,
    /// The content's hash, over what was sent.
    pub hash: RowHash,
}

/// A row whose outcome was settled before the state plane's transaction.
#[derive(Clone, PartialEq, Debug)]
pub struct SettledRow {
    /// The table's name on the device.
    pub table: String,
    /// The row's key text.
    pub key: NaturalKey,
    /// The commit_seq.
    pub seq: Seq,
    /// The version that it carries.
    pub version: Version,
    /// What became of it. A rejected row is kept as an orphan with its values.
    pub outcome: Outcome,
    /// The values of a rejected row, for the orphan; else empty.
    pub values: Vec<(String, Value)>,
}

/// What became of an [`UpCommit`].
#[derive(Clone, PartialEq, Debug)]
pub enum UpCommitted {
    /// The range is durable.
    Receipt(UpReceipt),
    /// A later epoch closed this one meanwhile; nothing was written.
    EpochClosed,
    /// The store does not know the epoch; nothing was written.
    UnknownEpoch,
    /// Too many ranges wait for a missing one; nothing was written.
    RangesFull,
    /// The range is none (it ends where it starts, or starts below zero); nothing was written.
    RangeInvalid,
}

/// What a receipt is made from.
#[derive(Clone, PartialEq, Debug)]
pub struct UpReceipt {
    /// Up to where the lane is durable without a gap.
    pub watermark: Seq,
    /// The term that made it durable.
    pub term: u64,
    /// Every row that was not applied, with its commit_seq, by rising commit_seq.
    pub outcomes: Vec<(Seq, Outcome)>,
    /// Whether the feed grew.
    pub fed: bool,
}

/// A write of one state row by the API.
#[derive(Clone, PartialEq, Debug)]
pub struct RowWrite {
    /// The dataspace.
    pub dataspace: Arc<Dataspace>,
    /// The identity's first half.
    pub source_id: SourceId,
    /// The identity's second half.
    pub key: NaturalKey,
    /// The new content; `None` deletes. Missing declared columns become NULL, key fields are
    /// filled in from the key.
    pub values: Option<Vec<(String, Value)>>,
    /// The version that this write carries; `None`: stored + 1, under the row's lock.
    pub version: Option<Version>,
    /// What has to hold.
    pub condition: WriteCondition,
    /// Who writes.
    pub author: Author,
}

/// What has to hold for a write, checked under the row's lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteCondition {
    /// Nothing.
    None,
    /// `If-Match`: the stored version is this one.
    Match(Version),
    /// `If-None-Match: *`: there is no row, or only a tombstone.
    Absent,
}

/// A write that was done.
#[derive(Clone, PartialEq, Debug)]
pub struct WriteOutcome {
    /// The row as it is stored.
    pub row: StoredRow,
    /// Whether there was no live row before.
    pub created: bool,
}

/// Why a write was not done. Nothing of it was stored.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The condition does not hold, or the version is not above the stored one.
    #[error(
        "the row has version {}; the write does not fit it",
        current_version(current.as_deref())
    )]
    Conflict {
        /// The live row as stored; `None` when there is none.
        current: Option<Box<StoredRow>>,
    },
    /// A delete of a row that is not there.
    #[error("there is no such row")]
    NotFound,
    /// Only the device writes this dataspace.
    #[error(
        "dataspace {dataspace} is device-authoritative: its rows come from devices only; \
         attach it with authority = \"cloud\" to write here"
    )]
    DeviceAuthoritative {
        /// The dataspace's name.
        dataspace: String,
    },
    /// A column that a `typed` dataspace does not declare.
    #[error("column {column:?} is not declared and the dataspace's layout is typed")]
    UndeclaredColumn {
        /// The column.
        column: String,
    },
    /// A key field whose value is not the one in the row key.
    #[error("field {field:?} belongs to the key and differs from the row key")]
    KeyMismatch {
        /// The field.
        field: String,
    },
    /// The row cannot be stored as it is; the message says why.
    #[error("{0}")]
    Invalid(String),
    /// The version is too far above the stored one, or not above zero.
    #[error(
        "version {version} is out of range: it must be above 0 and at most 2^40 above the stored \
         one"
    )]
    VersionRange {
        /// The version.
        version: Version,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn current_version(current: Option<&StoredRow>) -> Version {
    current.map_or(Version::NONE, |row| row.version)
}

/// What a read of one key finds.
#[derive(Clone, PartialEq, Debug)]
pub enum Lookup {
    /// No live row.
    None,
    /// One live row.
    One(Box<StoredRow>),
    /// Live rows of several sources: the caller has to name one.
    Ambiguous(Vec<SourceId>),
}

/// A page of live rows, ordered by (natural key's text, source).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageRequest {
    /// The identity that the page before ended with.
    pub after: Option<(NaturalKey, SourceId)>,
    /// Only rows of this source.
    pub source: Option<SourceId>,
    /// Rows of the page. The engine also ends a page at a bound of bytes of its own.
    pub limit: usize,
}

/// Live rows.
#[derive(Clone, PartialEq, Debug)]
pub struct Page {
    /// The rows.
    pub rows: Vec<StoredRow>,
    /// Where the next page starts; `None` after the last one.
    pub next: Option<(NaturalKey, SourceId)>,
}

/// Asks for the feed's entries after a cursor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeedRequest {
    /// Entries at or before it are not asked for.
    pub after: Cursor,
    /// Numbers of the dataspaces that are asked for, each with the source whose rows are meant:
    /// the dataspace's own for scope `all`, the device for scope `source`.
    pub dataspaces: BTreeSet<(i64, SourceId)>,
    /// Entries of the page at most.
    pub entries_max: usize,
}

/// One entry of the feed: this row changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeedEntry {
    /// Where it stands.
    pub position: Cursor,
    /// The dataspace's number.
    pub dataspace: i64,
    /// The identity's first half.
    pub source_id: SourceId,
    /// The identity's second half.
    pub key: NaturalKey,
    /// The version that was written.
    pub version: Version,
}

/// Entries that are the newest of their row, in commit order. Superseded ones are left out: the
/// row's newer entry follows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeedPage {
    /// The entries.
    pub entries: Vec<FeedEntry>,
    /// The position of the last one; that of the request when there is none.
    pub end: Cursor,
}

/// What was given up because of its age.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reaped {
    /// Lines of history.
    pub history: usize,
    /// Superseded entries of the feed.
    pub outbox: usize,
    /// Orphans.
    pub orphans: usize,
}

/// State rows with their history, the outbox of both planes, and the ranges of all lanes: what
/// has to commit together.
#[async_trait]
pub trait StatePlane: Send + Sync {
    /// Decides and writes the rows, their history and outbox entries, the orphans, the counters
    /// and the range, in one transaction. A range that is durable already is answered from what
    /// is stored.
    ///
    /// # Errors
    /// [`StoreError`] when nothing was written.
    async fn commit_up(&self, commit: UpCommit) -> Result<UpCommitted, StoreError>;

    /// Writes or deletes one row for the API.
    ///
    /// # Errors
    /// [`WriteError`] when nothing was written.
    async fn write(&self, write: RowWrite) -> Result<WriteOutcome, WriteError>;

    /// Reads one live row by key.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn get(
        &self,
        dataspace: &Dataspace,
        key: &NaturalKey,
        source: Option<SourceId>,
    ) -> Result<Lookup, StoreError>;

    /// Reads a page of live rows.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn list(&self, dataspace: &Dataspace, page: PageRequest) -> Result<Page, StoreError>;

    /// Reads rows by identity, tombstones too: one answer for each, in their order, `None` for a
    /// row that was never written. Ends early once the rows hold `bytes_max` bytes of values.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn rows(
        &self,
        dataspace: &Dataspace,
        identities: Vec<(SourceId, NaturalKey)>,
        bytes_max: usize,
    ) -> Result<Vec<Option<StoredRow>>, StoreError>;

    /// Whether no row was ever written, of that source or (`None`) of any.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn is_untouched(
        &self,
        dataspace: &Dataspace,
        source: Option<SourceId>,
    ) -> Result<bool, StoreError>;

    /// Reads the feed in commit order: an entry that is not visible yet never gets a position
    /// below one that is.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn feed(&self, request: FeedRequest) -> Result<FeedPage, StoreError>;

    /// Adds entries to the feed for rows of the mutable plane that are stored there already.
    /// Entries of a version that the feed holds already are left out.
    ///
    /// # Errors
    /// [`StoreError`] when nothing was written.
    async fn announce(
        &self,
        dataspace: &Dataspace,
        rows: Vec<(SourceId, NaturalKey, Version)>,
    ) -> Result<(), StoreError>;

    /// Gives up history, superseded outbox entries and orphans from before `before`, a bounded
    /// number a call. The newest outbox entry of a row stays, so the feed from its start is always
    /// a complete snapshot.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot do it now.
    async fn reap(&self, before: UnixMillis) -> Result<Reaped, StoreError>;
}

/// Mutable rows: bulk inserts under a version guard, read through the newest version of each.
#[async_trait]
pub trait MutablePlane: Send + Sync {
    /// Stores rows; one outcome a row, in their order. Durable when it returns. An engine that
    /// cannot tell (because it collapses versions later) answers `Applied` for what it took.
    ///
    /// # Errors
    /// [`StoreError`] when it is not known that the rows are stored; sending them again is safe.
    async fn insert(
        &self,
        dataspace: &Dataspace,
        rows: Vec<UpRow>,
    ) -> Result<Vec<Outcome>, StoreError>;

    /// Reads one live row by key.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn get(
        &self,
        dataspace: &Dataspace,
        key: &NaturalKey,
        source: Option<SourceId>,
    ) -> Result<Lookup, StoreError>;

    /// Reads a page of live rows.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn list(&self, dataspace: &Dataspace, page: PageRequest) -> Result<Page, StoreError>;

    /// Reads rows by identity, tombstones too: one answer for each, in their order, `None` for a
    /// row that was never written. Ends early once the rows hold `bytes_max` bytes of values.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn rows(
        &self,
        dataspace: &Dataspace,
        identities: Vec<(SourceId, NaturalKey)>,
        bytes_max: usize,
    ) -> Result<Vec<Option<StoredRow>>, StoreError>;
}
