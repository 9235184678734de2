//! Sorts a batch's rows by where they go: the state plane, the mutable plane, or aside. Pure.
//!
//! Of several rows of one key the newest wins, the others are stale. A row that may not be written
//! (its table does not flow, its form cannot be stored, its version is out of range) is settled
//! here, so no plane ever sees it. Rows come out sorted by key, which keeps lock order stable.

use std::collections::BTreeMap;
use std::sync::Arc;

use sync_proto::message::{Outcome, Reason, TableState};
use sync_proto::rows::{Row, TableRows};
use sync_proto::schema::{Authority, Modality};
use sync_proto::{NaturalKey, Seq, SourceId, Version};

use crate::catalog::Dataspace;
use crate::lineage::{Attachment, OpenEpoch};
use crate::plane::{SettledRow, UpRow, UpTable};
use crate::rules::{check_row, reason};

/// A batch's rows by where they go.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    pub(super) state: Vec<UpTable>,
    pub(super) mutable: Vec<UpTable>,
    pub(super) settled: Vec<SettledRow>,
}

/// Sorts a batch that `device` sends in `epoch`.
pub(super) fn sort(
    device: SourceId,
    epoch: &OpenEpoch,
    attachments: &[Attachment],
    tables: Vec<TableRows>,
) -> Sorted {
    let mut sorted = Sorted::default();
    let mut winners: BTreeMap<String, BTreeMap<NaturalKey, UpRow>> = BTreeMap::new();
    for table in tables {
        let attached = attachments.iter().find(|attached| attached.spec.name == table.table);
        let dataspace = flowing(attached, &table.table);
        for row in &table.rows {
            let (key, seq) = (table.key_of(row), Seq(row.number));
            let version = Version::of(epoch.base, seq).unwrap_or(Version::NONE);
            let values = values_of(&table, row);
            let taken = match &dataspace {
                Ok(dataspace) => take(dataspace, device, epoch, row, &key, version, &values),
                Err(reason) => Err(reason.clone()),
            };
            let source_id = match taken {
                Ok(source_id) => source_id,
                Err(reason) => {
                    let outcome = Outcome::Rejected(reason);
                    let table = table.table.clone();
                    sorted.settled.push(SettledRow { table, key, seq, version, outcome, values });
                    continue;
                }
            };
            let (base, deleted, hash) = (row.base, row.deleted, table.hash_of(row));
            let row =
                UpRow { source_id, key: key.clone(), seq, version, base, values, deleted, hash };
            let keys = winners.entry(table.table.clone()).or_default();
            let older = match keys.remove(&key) {
                Some(other) if other.seq > row.seq => {
                    keys.insert(key, other);
                    Some(row)
                }
                other => {
                    keys.insert(key, row);
                    other
                }
            };
            sorted.settled.extend(older.map(|row| stale(&table.table, row)));
        }
    }
    for (table, keys) in winners {
        let attached = attachments.iter().find(|attached| attached.spec.name == table);
        let Ok(dataspace) = flowing(attached, &table) else {
            continue;
        };
        let planes = match dataspace.modality {
            Modality::State => &mut sorted.state,
            Modality::Mutable => &mut sorted.mutable,
        };
        planes.push(UpTable { table, dataspace, rows: keys.into_values().collect() });
    }
    sorted
}

/// The dataspace of a table whose rows flow.
fn flowing(attached: Option<&Attachment>, table: &str) -> Result<Arc<Dataspace>, Reason> {
    let Some(attached) = attached else {
        return Err(reason(
            "unknown_table",
            format!("table {table:?} was not announced by the last Hello"),
        ));
    };
    match (&attached.state, &attached.dataspace) {
        (TableState::Flowing, Some(dataspace)) => Ok(Arc::clone(dataspace)),
        (TableState::Paused, _) => {
            Err(reason("paused", format!("table {table:?} is held by an operator")))
        }
        (TableState::AuthorityMismatch { hub }, _) => Err(reason(
            "authority_mismatch",
            format!("the hub has authority {hub:?} for table {table:?}, the device another"),
        )),
        (TableState::Refused { message }, _) => Err(reason("refused", message.clone())),
        (TableState::Flowing, None) => {
            Err(reason("refused", format!("table {table:?} has no dataspace")))
        }
    }
}

/// Whether a row goes to its plane, and under which source.
fn take(
    dataspace: &Dataspace,
    device: SourceId,
    epoch: &OpenEpoch,
    row: &Row,
    key: &NaturalKey,
    version: Version,
    values: &[(String, sync_proto::Value)],
) -> Result<SourceId, Reason> {
    check_row(dataspace, key, values)?;
    let highest = epoch.ceiling.0.saturating_add(Version::STEP_MAX);
    if version <= epoch.base || version.0 > highest {
        return Err(reason(
            "version_range",
            format!("commit_seq {} is too far above what this epoch has reached", row.number),
        ));
    }
    match (dataspace.authority, dataspace.modality, row.base) {
        (Authority::Device, _, None) | (Authority::Cloud, Modality::State, Some(_)) => {}
        (Authority::Device, _, Some(_)) => {
            return Err(reason(
                "unexpected_base",
                "the row is a compare-and-swap, but the device has the authority here",
            ));
        }
        (Authority::Cloud, Modality::State, None) | (Authority::Cloud, Modality::Mutable, _) => {
            return Err(reason(
                "cloud_authoritative",
                format!("dataspace {:?} is written by the cloud only", dataspace.name),
            ));
        }
    }
    dataspace
        .source_for(Some(device))
        .ok_or_else(|| reason("no_source", "the row has no source that it could belong to"))
}

/// The values that a row brings: only the key's in a tombstone.
fn values_of(table: &TableRows, row: &Row) -> Vec<(String, sync_proto::Value)> {
    let is_key = |index: usize| table.key.iter().any(|key| usize::from(*key) == index);
    let pairs = table.columns.iter().zip(&row.values).enumerate();
    pairs
        .filter(|(index, _)| !row.deleted || is_key(*index))
        .map(|(_, (name, value))| (name.clone(), value.clone()))
        .collect()
}

fn stale(table: &str, row: UpRow) -> SettledRow {
    SettledRow {
        table: table.to_owned(),
        key: row.key,
        seq: row.seq,
        version: row.version,
        outcome: Outcome::Stale,
        values: Vec::new(),
    }
}
