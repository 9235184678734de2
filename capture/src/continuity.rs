//! Is this the file that was left behind? The rule over the facts inside and outside the file.
//!
//! Each barrier replaces the stamp inside first and outside second, so equal stamps, or an outside
//! one that is the one before, mean the same history. Everything else starts a new epoch: numbers
//! that may have been given out twice are never compared. The hub's side of the question is
//! `sync_proto::continuity`.

use crate::meta::Life;
use crate::state::{Event, Outside};

/// What the facts mean.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Lineage {
    /// Never seen before: a new installation.
    Fresh,
    /// The file that was left behind.
    Same,
    /// The same, but a crash came between the two commits of a barrier: the outside is behind.
    OutsideBehind,
    /// The state directory does not know the file: it was lost, or is another one.
    StateLost,
    /// The state directory knows a file of this name, but this one was never installed.
    Replaced,
    /// Another installation's file stands at the path.
    Foreign,
    /// The file's history is not the one that was left behind: an older copy, or a clone.
    Restored,
}

/// Compares the facts inside the file with those outside.
pub(crate) fn judge(inside: Option<&Life>, outside: Option<&Outside>) -> Lineage {
    match (inside, outside) {
        (None, None) => Lineage::Fresh,
        (None, Some(_)) => Lineage::Replaced,
        (Some(_), None) => Lineage::StateLost,
        (Some(inside), Some(outside)) if inside.instance != outside.instance => Lineage::Foreign,
        (Some(inside), Some(outside)) if inside.stamp == outside.stamp => Lineage::Same,
        (Some(inside), Some(outside)) if inside.stamp_prev == Some(outside.stamp) => {
            Lineage::OutsideBehind
        }
        (Some(_), Some(_)) => Lineage::Restored,
    }
}

impl Lineage {
    /// What a person should know of it.
    pub(crate) fn event(&self) -> Option<Event> {
        let (code, message) = match self {
            Self::Fresh | Self::Same | Self::OutsideBehind => return None,
            Self::StateLost => (
                "state_lost",
                "the agent's state directory did not know this file: a new epoch began and every \
                 row is sent again",
            ),
            Self::Replaced => (
                "database_replaced",
                "the file was re-created or our objects were removed from it: a new epoch began \
                 and every row is sent again",
            ),
            Self::Foreign => (
                "database_foreign",
                "the file comes from another installation: a new epoch began and every row is \
                 sent again",
            ),
            Self::Restored => (
                "database_restored",
                "the file is an older copy or a clone of the one that was synced: a new epoch \
                 began and every row is sent again",
            ),
        };
        Some(Event { code: code.to_owned(), message: message.to_owned() })
    }
}
