//! Every bound of the wire, with its unit and its reason.

use std::time::Duration;

/// Rows in one batch: beyond about 4,000 a larger batch compresses no better.
pub const BATCH_ROWS_MAX: usize = 16_384;

/// Cells (rows × columns) in one batch: bounds what a small hostile payload can unfold to.
pub const BATCH_CELLS_MAX: usize = 1 << 20;

/// Bytes of a batch's rows before compression, and so the largest row. The decoder allocates no
/// more than this for a payload.
pub const BATCH_RAW_BYTES_MAX: usize = 16 << 20;

/// Bytes of one frame on any transport: the raw bound plus room for the envelope.
pub const FRAME_BYTES_MAX: usize = BATCH_RAW_BYTES_MAX + (1 << 20);

/// Raw bytes at which an agent closes a batch: window × this is the agent's batch memory.
pub const BATCH_TARGET_BYTES: usize = 256 << 10;

/// Rows at which an agent closes a batch.
pub const BATCH_TARGET_ROWS: usize = 2_000;

/// Batches of one lane on their way without a receipt.
pub const WINDOW: usize = 4;

/// Characters of a device's or database's name.
pub const NAME_CHARS_MAX: usize = 64;

/// Tables of one database, and so of one message: far above what one file of an application has,
/// low enough that a message of nothing but tables stays small.
pub const TABLES_MAX: usize = 4_096;

/// Lanes named in one message: those that there are, with room for a later format's.
pub const LANES_MAX: usize = 8;

/// Columns of one table: SQLite's own compile-time ceiling.
pub const COLUMNS_MAX: usize = 2_000;

/// Ranges of one lane kept above its watermark: more than any window, so that only a peer that
/// ignores the window meets it. A store holds this many positions a lane at most.
pub const PENDING_RANGES_MAX: usize = 64;

/// Raw bytes below which a batch is not cut any further after a peer called it too large: a link
/// that takes less than this does not carry the protocol.
pub const BATCH_BYTES_MIN: usize = 4 << 10;

/// Receipts in a row after which an agent tries batches of twice the size again.
pub const GROW_AFTER_RECEIPTS: u32 = 64;

/// Time between two requests for rows when the first brought none: a hub that cannot hold an
/// answer back is asked this often at most.
pub const DOWN_PAUSE_MIN: Duration = Duration::from_secs(1);

/// How often that time doubles while answers come out of order: up to 64 seconds.
pub const DOWN_PAUSE_DOUBLINGS: u32 = 6;

/// Characters of another end's error message that are kept for status.
pub const ERROR_CHARS_MAX: usize = 500;

/// The shortest time that an answer is given, whatever is configured: with less, every message
/// would count as lost before it could arrive.
pub const ANSWER_WAIT_MIN: Duration = Duration::from_secs(1);
