//! Everything that may happen to a session.

use std::time::Duration;

use super::effect::Step;
use crate::continuity::KnownLane;
use crate::id::{Cursor, Digest, Lane, Seq, Token};
use crate::message::{DownReceipt, Hello, Report, ToDevice};

/// Names one message on its way, so that its answer or failure finds it again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SendId(pub u64);

/// What the device knows when it greets.
#[derive(Clone, PartialEq, Debug)]
pub struct Facts {
    /// The message to greet with.
    pub hello: Hello,
    /// Per lane: the range ends that this file recorded, for the continuity check.
    pub known: Vec<KnownLane>,
}

/// Something that happened.
#[derive(Clone, PartialEq, Debug)]
pub enum Input {
    /// Answers [`super::Effect::LoadFacts`]: what the file and the agent's state say now.
    Facts(Box<Facts>),
    /// Answers [`super::Effect::StartEpoch`]: the file is in an epoch that the hub did not close.
    EpochStarted,
    /// Answers [`super::Effect::AdoptWelcome`]: base, generation and statuses are stored.
    Welcomed,
    /// Capture has something to send, or a reason to look.
    Work,
    /// Answers [`super::Effect::Fill`]. The batches' range ends are durable and their commits are
    /// on disk. Empty: nothing to send in the asked lanes now.
    Filled(Vec<OutBatch>),
    /// Answers [`super::Effect::Settle`]: the receipt's rows are cleared from the log.
    Settled,
    /// Answers [`super::Effect::Apply`]: the rows, their versions and the cursor are committed
    /// (or the batch was a duplicate and nothing was written).
    Applied(DownReceipt),
    /// Answers [`super::Effect::Apply`]: the batch does not start at the stored cursor; ask from
    /// there.
    Misplaced(Cursor),
    /// Answers any step of the store that could not be done: nothing of it happened. The session
    /// waits, then greets again.
    Undone {
        /// The step.
        step: Step,
        /// What happened, for status.
        error: String,
    },
    /// The file changed under the session: tables were enrolled or changed, or an epoch started.
    /// The session greets again.
    Restart,
    /// The device's view of its tables changed enough to tell the hub.
    Changed(Report),
    /// A message came for one that was sent.
    Answer(SendId, ToDevice),
    /// A message that was sent got no answer.
    Failed(SendId, Failure),
    /// The time that [`super::Session::poll_timeout`] named has come, or any later one.
    Timeout,
}

/// Why a message got no answer, by what to do about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// Network, server fault, expired credential: the same again, later.
    Retry {
        /// What happened, for status.
        error: String,
        /// The earliest time, when the other end named one.
        after: Option<Duration>,
    },
    /// The other end will not take a message of this size: cut smaller.
    TooLarge {
        /// What happened, for status.
        error: String,
    },
}

/// A batch that is ready to go: its range end is durable.
#[derive(Clone, PartialEq, Debug)]
pub struct OutBatch {
    /// The lane.
    pub lane: Lane,
    /// Where the range before this one ends.
    pub prev: Seq,
    /// Where this range ends.
    pub last: Seq,
    /// The token at `last`.
    pub token: Token,
    /// The digest of its rows.
    pub digest: Digest,
    /// The frame: re-sent as these bytes for as long as it has no receipt.
    pub frame: Vec<u8>,
}
