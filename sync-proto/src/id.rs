//! Identifiers and positions, one newtype each, so that a bare integer never crosses a module.
//!
//! Nothing here compares rows: the order of versions lives in [`crate::version`].

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

uuid_id!(
    /// A producer of rows (`source_id`): a device, or a dataspace's own id for scope `all`.
    SourceId
);
uuid_id!(
    /// The life of one installation of Rowtide inside one database file.
    InstanceId
);
uuid_id!(
    /// One continuous life of one database on one device (UUIDv7).
    Epoch
);
uuid_id!(
    /// One life of a hub's stores; a new one after a rollback was noticed.
    Incarnation
);

/// A commit_seq: rises by capture, never reused inside an epoch. 0 means "before the first".
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Seq(pub i64);

impl Seq {
    /// The position before the first change of an epoch.
    pub const ZERO: Self = Self(0);
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Random bytes written with a log entry: equal token at equal seq proves the same history.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Token(pub [u8; 8]);

/// SHA-256 of a batch's packed rows: names the exact bytes a receipt speaks of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(sha2::Sha256::digest(bytes).into())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(")?;
        crate::value::write_hex(f, &self.0)?;
        f.write_str(")")
    }
}

/// An ordered stream of its own inside (device, database, epoch).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Lane {
    /// Live changes of state tables: always first.
    State,
    /// Live changes of mutable tables.
    Mutable,
    /// Keys seeded by enrolment, repair or re-send.
    Backfill,
}

impl Lane {
    /// Every lane, in the order in which they are served.
    pub const ALL: [Self; 3] = [Self::State, Self::Mutable, Self::Backfill];

    /// The lane's name in stores, status and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Mutable => "mutable",
            Self::Backfill => "backfill",
        }
    }

    /// The lane of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|lane| lane.name() == name)
    }
}

/// A position in the hub's change feed: (term, hi, lo), compared in that order.
///
/// One number is not enough: a hub restored from a backup would hand the same numbers out again,
/// but never the same term.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Cursor {
    /// The life of the hub's store that wrote the position.
    pub term: u64,
    /// Commit order inside the term.
    pub hi: u64,
    /// Order inside one commit.
    pub lo: u64,
}

impl Cursor {
    /// Before the first change: asks for everything.
    pub const ZERO: Self = Self { term: 0, hi: 0, lo: 0 };
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.term, self.hi, self.lo)
    }
}
