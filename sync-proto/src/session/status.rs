//! What status says of a session: plain values, copied out.
//!
//! How they are worded, joined with the store's own view and judged is the agent's job.

use std::time::Duration;

use super::effect::LinkState;
use crate::id::{Cursor, Lane, Seq};

/// What status says of a session. All times are on the clock that the inputs came with.
#[derive(Clone, PartialEq, Debug)]
pub struct SessionStatus {
    /// The link.
    pub link: LinkState,
    /// Every lane, in the order of service.
    pub lanes: Vec<LaneStatus>,
    /// The last thing that went wrong and when, until the next progress.
    pub last_error: Option<(Duration, String)>,
    /// When a receipt counted last.
    pub last_receipt: Option<Duration>,
    /// When the hub answered anything last.
    pub last_answer: Option<Duration>,
    /// Up to where the hub's rows are applied, as far as the session knows.
    pub cursor: Cursor,
    /// What keeps the hub's rows from being applied in order, if anything.
    pub down_error: Option<String>,
    /// Raw bytes of a batch now.
    pub batch_bytes: usize,
}

/// What status says of a lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaneStatus {
    /// The lane.
    pub lane: Lane,
    /// Up to where the hub has given receipts without a gap.
    pub watermark: Seq,
    /// Batches without a receipt.
    pub in_flight: usize,
    /// Bytes of their frames.
    pub in_flight_bytes: usize,
    /// What keeps the lane from progress, if anything.
    pub error: Option<String>,
}
