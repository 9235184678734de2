//! The device's side of the protocol as a pure machine: [`Input`]s in, [`Effect`]s out.
//!
//! The drive contract is one law: hand in one input, then drain every effect, in order, before the
//! next input. Effects that persist come before effects that speak, so that nothing leaves the
//! device that a power cut could still undo. Time is a duration since any fixed start; randomness
//! for jitter comes in as a seed. Doing the effects is the agent's job.

pub mod effect;
pub mod input;

use std::collections::VecDeque;
use std::time::Duration;

pub use effect::{Effect, LinkState, Outgoing, Step};
pub use input::{Facts, Failure, Input, OutBatch, SendId};

use crate::backoff::{Backoff, Bounds};
use crate::id::{Cursor, Lane, Seq};
use crate::limits::{BATCH_TARGET_BYTES, WINDOW};

/// What a session is told once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionConfig {
    /// The database's name on the device.
    pub database: String,
    /// Batches of one lane in flight; the hub may allow fewer. At least one is used.
    pub window: usize,
    /// Raw bytes at which a batch is closed; the hub may allow fewer.
    pub batch_bytes: usize,
    /// How long the hub is asked to hold back the answer to a request for rows. Below the idle
    /// bound of the proxies on the way.
    pub poll_wait: Duration,
    /// How long an answer may take, on top of `poll_wait` for a request for rows. After that the
    /// message counts as lost.
    pub answer_wait: Duration,
    /// The waits between attempts.
    pub backoff: Bounds,
}

impl SessionConfig {
    /// The defaults for a database of that name.
    #[must_use]
    pub fn new(database: impl Into<String>) -> Self {
        Self {
            database: database.into(),
            window: WINDOW,
            batch_bytes: BATCH_TARGET_BYTES,
            poll_wait: Duration::from_secs(25),
            answer_wait: Duration::from_secs(30),
            backoff: Bounds::DEFAULT,
        }
    }
}

/// One database's conversation with the hub.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    backoff: Backoff,
    effects: VecDeque<Effect>,
}

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

impl Session {
    /// A session that has not spoken yet. It is due at once: its first input draws the jittered
    /// time of the first Hello.
    #[must_use]
    pub fn new(config: SessionConfig, seed: u64) -> Self {
        let backoff = Backoff::new(config.backoff, seed);
        Self { config, backoff, effects: VecDeque::new() }
    }

    /// Takes one input. `now` never goes back.
    pub fn handle(&mut self, input: Input, now: Duration) {
        drop((input, self.backoff.first(now)));
    }

    /// The next thing to do. Drain these before the next input.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When to hand in [`Input::Timeout`], on the clock of `now`; `None`: nothing is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    /// What status says.
    #[must_use]
    pub fn status(&self) -> SessionStatus {
        SessionStatus {
            link: LinkState::Waiting { error: String::new(), delay: Duration::ZERO },
            lanes: Vec::new(),
            last_error: None,
            last_receipt: None,
            last_answer: None,
            cursor: Cursor::ZERO,
            batch_bytes: self.config.batch_bytes,
        }
    }
}
