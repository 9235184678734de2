//! What a session is told once, with its defaults.
//!
//! Reading it out of a configuration file is the agent's job; a bound that would make the session
//! spin or stall is raised where it is used.

use std::time::Duration;

use crate::backoff::Bounds;
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
