//! The messages, each field with its meaning. Encoding them is [`crate::wire`]'s job.
//!
//! Tenant and device come from the credential, never from a payload; `device` in [`Hello`] only
//! binds a name to its UUID. All messages are a DRAFT of format 1 until it is frozen.

use serde::{Deserialize, Serialize};

use crate::bounded::at_most;
use crate::id::{Cursor, Digest, Epoch, Incarnation, InstanceId, Lane, Seq, SourceId, Token};
use crate::limits::{BATCH_ROWS_MAX, LANES_MAX, TABLES_MAX};
use crate::schema::TableSpec;
use crate::version::Version;

/// What a device sends.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ToHub {
    /// Opens a session of one database.
    Hello(Hello),
    /// Rows of one chained range of one lane.
    Up(UpBatch),
    /// Asks for rows after a cursor; the hub may hold the answer back until there are some.
    DownRequest(DownRequest),
    /// What became of a [`DownBatch`].
    DownReceipt(DownReceipt),
    /// The device's own view of its tables, for the hub's device pages.
    Report(Report),
}

/// What a hub sends.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ToDevice {
    /// Answers [`Hello`].
    Welcome(Welcome),
    /// Answers [`UpBatch`]: the range is durable.
    Receipt(Receipt),
    /// Answers [`DownRequest`]; without rows and with `next == prev` when nothing came in time.
    Down(DownBatch),
    /// An order to the device, in place of another answer.
    Control(Control),
    /// The message was not taken; nothing of it was stored.
    Refused(Refused),
    /// Answers [`DownReceipt`] and [`Report`].
    Noted,
}

/// A position of a lane together with its entry's token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LanePosition {
    /// The lane.
    pub lane: Lane,
    /// The commit_seq that ends the range.
    pub seq: Seq,
    /// The token of that log entry.
    pub token: Token,
}

/// Opens a session: who speaks, from which file's life, and where both ends stand.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The device's UUID, bound one-to-one to the name in its credential.
    pub device: SourceId,
    /// The database's name on the device.
    pub database: String,
    /// The installation inside the file.
    pub instance: InstanceId,
    /// The life of the database.
    pub epoch: Epoch,
    /// Every enrolled table, also the empty ones.
    #[serde(deserialize_with = "at_most::<{ TABLES_MAX }, _, _>")]
    pub tables: Vec<TableSpec>,
    /// Per lane: the range end at the highest watermark that a receipt named.
    #[serde(deserialize_with = "at_most::<{ LANES_MAX }, _, _>")]
    pub lanes: Vec<LanePosition>,
    /// The highest version that the device knows of: a new base lies above it.
    pub floor: Version,
    /// Up to where the hub's rows are applied.
    pub cursor: Cursor,
    /// The authority generation that the device last heard of; 0 at first.
    pub generation: u64,
    /// The hub's life that the device last heard of.
    pub incarnation: Option<Incarnation>,
}

/// Answers a [`Hello`]: where the hub stands and what holds for this epoch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The database that was greeted.
    pub database: String,
    /// The epoch that was greeted.
    pub epoch: Epoch,
    /// The life of the hub's stores. Another one than before: compare and re-send.
    pub incarnation: Incarnation,
    /// The hub's current term.
    pub term: u64,
    /// version = base + commit_seq for every row of this epoch.
    pub base: Version,
    /// The authority generation that UpBatch has to carry.
    pub generation: u64,
    /// Per lane: the hub's watermark and its token.
    #[serde(deserialize_with = "at_most::<{ LANES_MAX }, _, _>")]
    pub lanes: Vec<LanePosition>,
    /// What holds for each announced table.
    #[serde(deserialize_with = "at_most::<{ TABLES_MAX }, _, _>")]
    pub tables: Vec<TableStatus>,
    /// What the hub takes.
    pub limits: Limits,
}

/// What a hub takes in one message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of a frame.
    pub frame_bytes_max: u32,
    /// Raw bytes of a batch's rows.
    pub batch_bytes_max: u32,
    /// Rows of a batch.
    pub batch_rows_max: u32,
    /// Batches of one lane in flight.
    pub window: u16,
}

/// What holds for one announced table.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TableStatus {
    /// The table's name on the device.
    pub table: String,
    /// Whether rows flow.
    pub state: TableState,
    /// Cloud authority and nothing at the hub yet: the device's rows are adopted
    /// (compare-and-swap against "never written").
    pub adopt: bool,
}

/// Whether rows of a table flow, and if not, why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TableState {
    /// Rows flow.
    Flowing,
    /// Held by an operator.
    Paused,
    /// Device and hub disagree about the table's authority; nothing flows until they agree.
    AuthorityMismatch {
        /// What the hub has.
        hub: String,
    },
    /// The hub cannot take this table as announced; the message says what to change.
    Refused {
        /// What is wrong and what to do.
        message: String,
    },
}

/// Rows of one lane in (prev, last].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct UpBatch {
    /// The database.
    pub database: String,
    /// The epoch that numbers the rows.
    pub epoch: Epoch,
    /// The lane.
    pub lane: Lane,
    /// Where the range before this one ends.
    pub prev: Seq,
    /// Where this range ends.
    pub last: Seq,
    /// The token of the log entry at `last`.
    pub token: Token,
    /// The greatest commit_seq of the lane in the snapshot that the rows were read from: the lane
    /// is consistent once its watermark reaches the greatest head.
    pub head: Seq,
    /// The authority generation from Welcome.
    pub generation: u64,
    /// The rows; `number` is the commit_seq.
    pub rows: PackedRows,
}

/// Rows in packed form. See [`crate::rows`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PackedRows {
    /// SHA-256 of `bytes`.
    pub digest: Digest,
    /// Length before compression, in bytes.
    pub raw_len: u32,
    /// Zstandard frame of the columnar encoding.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

impl PackedRows {
    /// Whether there is no table in it, by the length that the sender declared: for deciding what
    /// to say, never for what to store.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        // The encoding of "no tables" is a count of zero in one byte.
        self.raw_len <= 1
    }
}

/// The hub's word that a range is durable.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Receipt {
    /// The database.
    pub database: String,
    /// The epoch.
    pub epoch: Epoch,
    /// The lane.
    pub lane: Lane,
    /// The range's start, as sent.
    pub prev: Seq,
    /// The range's end, as sent.
    pub last: Seq,
    /// The digest, as sent.
    pub digest: Digest,
    /// Up to where the lane is durable without a gap.
    pub watermark: Seq,
    /// The hub's term that made it durable.
    pub term: u64,
    /// Every row of the batch that was not applied.
    #[serde(deserialize_with = "at_most::<{ BATCH_ROWS_MAX }, _, _>")]
    pub outcomes: Vec<RowOutcome>,
}

/// What became of one row of an [`UpBatch`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RowOutcome {
    /// The row's commit_seq.
    pub seq: Seq,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a row.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// Written.
    Applied,
    /// Already there, the same.
    Duplicate,
    /// Older than what is there.
    Stale,
    /// The same version with other content: send the row again under a new version.
    Diverged,
    /// A compare-and-swap met another version than its base.
    Conflict,
    /// Not storable: set aside, with the reason.
    Rejected(Reason),
}

impl Outcome {
    /// The outcome's name in counters and stores.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Duplicate => "duplicate",
            Self::Stale => "stale",
            Self::Diverged => "diverged",
            Self::Conflict => "conflict",
            Self::Rejected(_) => "rejected",
        }
    }
}

/// Why a row was set aside.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reason {
    /// A stable word, for counting: `null_key`, `constraint`, `version_range`, …
    pub code: String,
    /// What happened and what to do, for a person.
    pub message: String,
}

/// Asks for the rows after a cursor.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DownRequest {
    /// The database.
    pub database: String,
    /// The epoch.
    pub epoch: Epoch,
    /// Up to where rows are applied.
    pub cursor: Cursor,
    /// The authority generation from Welcome.
    pub generation: u64,
    /// How long the hub may wait for rows, in milliseconds.
    pub wait_ms: u32,
}

/// Rows for a device. Applies only where `prev` is the stored cursor.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DownBatch {
    /// The database.
    pub database: String,
    /// The cursor that the device must hold.
    pub prev: Cursor,
    /// The cursor that it holds afterwards.
    pub next: Cursor,
    /// The authority generation.
    pub generation: u64,
    /// The rows; `number` is the version, table names are the device's own.
    pub rows: PackedRows,
}

/// What became of a [`DownBatch`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DownReceipt {
    /// The database.
    pub database: String,
    /// The epoch.
    pub epoch: Epoch,
    /// The cursor that the device holds now.
    pub cursor: Cursor,
    /// Every row that was not applied.
    #[serde(deserialize_with = "at_most::<{ BATCH_ROWS_MAX }, _, _>")]
    pub outcomes: Vec<DownOutcome>,
    /// The highest version that the device holds.
    pub highest: Version,
}

/// What became of one row of a [`DownBatch`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DownOutcome {
    /// The table on the device.
    pub table: String,
    /// The row's key text.
    pub key: String,
    /// The version that came.
    pub version: Version,
    /// What became of it.
    pub outcome: Outcome,
}

/// The device's own view of its tables.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The database.
    pub database: String,
    /// The epoch.
    pub epoch: Epoch,
    /// One line a table.
    #[serde(deserialize_with = "at_most::<{ TABLES_MAX }, _, _>")]
    pub tables: Vec<TableReport>,
}

/// One table of a [`Report`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TableReport {
    /// The table's name on the device.
    pub table: String,
    /// Keys that wait to be sent.
    pub pending: u64,
    /// Rows set aside.
    pub quarantine: u64,
    /// The table's status on the device.
    pub status: String,
}

/// An order to a device. A reset is a message, never an operator's ritual.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Control {
    /// Stop sending a table; keep capturing.
    Pause {
        /// The table on the device.
        table: String,
    },
    /// Send a table again.
    Resume {
        /// The table on the device.
        table: String,
    },
    /// Forget the cursor and take every row of the feed again.
    Resnapshot,
    /// Greet again: tables, statuses or the generation changed.
    RefreshSchema,
    /// Send nothing for a while.
    RetryAfter {
        /// How long, in milliseconds.
        ms: u32,
    },
}

/// A message that was not taken. Nothing of it was stored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refused {
    /// What the device has to do.
    pub code: Refusal,
    /// What happened, where, and what to do next.
    pub message: String,
}

/// Why a message was refused, by what the device has to do about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Refusal {
    /// The frame's format is unknown: the hub speaks formats `min..=max`.
    Format {
        /// Lowest format.
        min: u8,
        /// Highest format.
        max: u8,
    },
    /// The frame or its rows cannot be decoded; the same bytes will never be taken.
    Malformed,
    /// Larger than the hub takes: cut smaller.
    TooLarge,
    /// Another generation of authority holds: greet again.
    Generation,
    /// The epoch was closed by a later one; its late batches write nothing.
    EpochClosed,
    /// The hub does not know this epoch: greet first.
    UnknownEpoch,
    /// The credential belongs to another device, or the UUID to another name.
    Identity,
    /// The hub cannot store now: try later.
    Busy,
}
