//! How long to wait before the next attempt: decorrelated jitter between a base and a cap.
//!
//! Pure: the time comes in, deadlines go out, and randomness is a small generator of its own,
//! seeded by the caller. Nothing here sleeps, and nothing here decides what counts as progress:
//! the caller resets the series only when something was really achieved. Every deadline lies at
//! most one cap after the time that was given, or after the wait that the other end asked for.

use std::time::Duration;

/// The checked bounds of a series of waits: `0 < base <= cap <= `[`Bounds::CAP_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    base: Duration,
    cap: Duration,
}

/// Why bounds were refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidBounds {
    /// A base of zero would retry without a pause.
    #[error("the shortest wait must be longer than zero")]
    ZeroBase,
    /// The cap lies below the base.
    #[error("the longest wait ({cap:?}) is shorter than the shortest ({base:?})")]
    CapBelowBase {
        /// The shortest wait.
        base: Duration,
        /// The longest wait.
        cap: Duration,
    },
    /// The cap is longer than anyone would wait for a recovery.
    #[error("the longest wait ({cap:?}) is over {max:?}", max = Bounds::CAP_MAX)]
    CapTooLong {
        /// The longest wait.
        cap: Duration,
    },
}

impl Bounds {
    /// No wait is longer than a day: a device must come back by itself.
    pub const CAP_MAX: Duration = Duration::from_secs(24 * 60 * 60);

    /// Half a second to a minute: quick after a hub's restart, and a fleet of 10,000 devices that
    /// lost its hub knocks about 300 times a second in all.
    pub const DEFAULT: Self =
        Self { base: Duration::from_millis(500), cap: Duration::from_secs(60) };

    /// Checks bounds.
    ///
    /// # Errors
    /// [`InvalidBounds`] when the base is zero, or the cap is below it or over a day.
    pub fn new(base: Duration, cap: Duration) -> Result<Self, InvalidBounds> {
        if base.is_zero() {
            return Err(InvalidBounds::ZeroBase);
        }
        if cap < base {
            return Err(InvalidBounds::CapBelowBase { base, cap });
        }
        if cap > Self::CAP_MAX {
            return Err(InvalidBounds::CapTooLong { cap });
        }
        Ok(Self { base, cap })
    }

    /// The shortest wait between two attempts.
    #[must_use]
    pub const fn base(self) -> Duration {
        self.base
    }

    /// The longest wait between two attempts.
    #[must_use]
    pub const fn cap(self) -> Duration {
        self.cap
    }
}

/// A series of waits. Each is drawn between the base and three times the one before, so that
/// devices that failed together do not come back together.
#[derive(Clone, Debug)]
pub struct Backoff {
    bounds: Bounds,
    previous: Duration,
    random: SplitMix64,
}

impl Backoff {
    /// A series at its start.
    #[must_use]
    pub const fn new(bounds: Bounds, seed: u64) -> Self {
        Self { bounds, previous: bounds.base, random: SplitMix64(seed) }
    }

    /// When to make the very first attempt: within one base, because devices that were powered on
    /// together would else all come at once.
    #[must_use]
    pub fn first(&mut self, now: Duration) -> Duration {
        now.saturating_add(self.between(Duration::ZERO, self.bounds.base))
    }

    /// When to make the next attempt after a failure.
    #[must_use]
    pub fn deadline(&mut self, now: Duration) -> Duration {
        let widest = self.previous.saturating_mul(3).min(self.bounds.cap);
        self.previous = self.between(self.bounds.base, widest);
        now.saturating_add(self.previous)
    }

    /// When to make the next attempt after the other end said how long to wait: not before that,
    /// and spread over one more base, because it tells everyone the same.
    #[must_use]
    pub fn deadline_after(&mut self, now: Duration, wait: Duration) -> Duration {
        let spread = self.between(Duration::ZERO, self.bounds.base);
        now.saturating_add(wait.min(Bounds::CAP_MAX)).saturating_add(spread)
    }

    /// When to make the next attempt after a failure that only a person can mend: at the far end
    /// of the series, between three quarters of the cap and the cap.
    #[must_use]
    pub fn deadline_far(&mut self, now: Duration) -> Duration {
        self.previous = self.between(self.bounds.cap.saturating_mul(3) / 4, self.bounds.cap);
        now.saturating_add(self.previous)
    }

    /// Starts the series anew: something was achieved, more than a connection.
    pub const fn reset(&mut self) {
        self.previous = self.bounds.base;
    }

    fn between(&mut self, low: Duration, high: Duration) -> Duration {
        let span = high.saturating_sub(low).as_nanos();
        // The bounds keep the span below 2^47 nanoseconds, so the product fits.
        let nanos = (u128::from(self.random.next_u64()) * (span + 1)) >> 64;
        low + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// SplitMix64: eight bytes of state, good enough to spread retries, useless for secrets.
#[derive(Clone, Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
