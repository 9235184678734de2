//! The one rule that answers "is this newer?", for device and hub alike.
//!
//! Pure: it sees the stored version and hash and the incoming ones, and says what happens.
//! It leaves storing, counting and answering to its callers.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::Seq;
use crate::value::RowHash;

/// What rows are compared by: `base(epoch) + commit_seq` for a device's rows, the hub's own
/// count for cloud-written rows. One (row, version) has one content for ever.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Version(pub i64);

impl Version {
    /// The version of a row that was never written.
    pub const NONE: Self = Self(0);

    /// How far above the stored version an incoming one may be. A larger step is a broken or
    /// hostile producer: it would leave no numbers for the honest ones.
    pub const STEP_MAX: i64 = 1 << 40;

    /// The version of a change: the epoch's base plus the change's commit_seq.
    #[must_use]
    pub const fn of(base: Self, seq: Seq) -> Option<Self> {
        match base.0.checked_add(seq.0) {
            Some(version) => Some(Self(version)),
            None => None,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A row as far as the rule needs it: its version and its content's hash
/// ([`RowHash::TOMBSTONE`] for a deleted row).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The row's version.
    pub version: Version,
    /// The row's content.
    pub hash: RowHash,
}

/// What the rule says about an incoming row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Newer: write it.
    Apply,
    /// The same version with the same content: nothing to do.
    Duplicate,
    /// Older than what is stored: nothing to do.
    Stale,
    /// The same version with other content: the stored row stays, the producer sends it anew.
    Diverged,
    /// More than [`Version::STEP_MAX`] above the stored version, or not above zero: refused.
    OutOfRange,
}

/// Compares an incoming row with the stored one (`None`: never written).
#[must_use]
pub fn decide(stored: Option<Stamp>, incoming: Stamp) -> Verdict {
    let floor = stored.map_or(Version::NONE, |stamp| stamp.version);
    if incoming.version <= Version::NONE
        || incoming.version.0.saturating_sub(floor.0) > Version::STEP_MAX
    {
        return Verdict::OutOfRange;
    }
    match stored {
        None => Verdict::Apply,
        Some(stored) if incoming.version > stored.version => Verdict::Apply,
        Some(stored) if incoming.version < stored.version => Verdict::Stale,
        Some(stored) if incoming.hash == stored.hash => Verdict::Duplicate,
        Some(_) => Verdict::Diverged,
    }
}
