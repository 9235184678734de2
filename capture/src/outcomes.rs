//! What receipts said about rows that were not applied, counted per table since the start.
//!
//! For status only: what an outcome leads to happens in [`crate::settle`].

use std::collections::BTreeMap;

use sync_proto::message::Outcome;

use crate::registry::TableId;

/// Counts by table and outcome's name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcomes {
    counts: BTreeMap<(TableId, &'static str), u64>,
}

impl Outcomes {
    /// Counts one row.
    pub(crate) fn count(&mut self, table: TableId, outcome: &Outcome) {
        *self.counts.entry((table, outcome.name())).or_default() += 1;
    }

    /// The counts of a table, by outcome.
    pub(crate) fn of(&self, table: TableId) -> BTreeMap<&'static str, u64> {
        self.counts
            .iter()
            .filter(|((id, _), _)| *id == table)
            .map(|((_, name), count)| (*name, *count))
            .collect()
    }
}
