//! UpBatch: rows of one range, made durable before the receipt speaks of them.
//!
//! The order is the promise: mutable rows go to their plane first, then the state store commits
//! state rows, range and watermark together, then the receipt leaves. A crash between the two
//! leaves rows without a range; they come again and change nothing.

use sync_proto::message::{Receipt, Refusal, RowOutcome, UpBatch};
use sync_proto::rows::{RowsError, unpack};
use sync_proto::{Seq, SourceId, Version};

use super::sort::{Sorted, sort};
use super::{Ingest, Stop, opened, refuse};
use crate::lineage::{DeviceCredential, OpenEpoch};
use crate::plane::{Author, SettledRow, UpCommit, UpCommitted, UpRange, UpReceipt, UpTable};

impl Ingest {
    pub(super) async fn up(
        &self,
        credential: &DeviceCredential,
        batch: UpBatch,
    ) -> Result<Receipt, Stop> {
        let device = self.device(credential).await?;
        self.life(batch.generation).await?;
        let epoch = self.open_epoch(device, &batch.database, batch.epoch).await?;
        if let Some(receipt) = self.lineages.receipt(device, &batch).await? {
            return Ok(receipt_of(&batch, receipt));
        }
        let sorted = self.sorted(device, &batch, &epoch).await?;
        let settled = self.store_mutable(device, &batch, &epoch, sorted.mutable).await?;
        let commit = UpCommit {
            device,
            database: batch.database.clone(),
            epoch: batch.epoch,
            range: range_of(&batch),
            author: author_of(credential),
            tables: sorted.state,
            settled: [sorted.settled, settled].concat(),
        };
        match self.state.commit_up(commit).await? {
            UpCommitted::Receipt(receipt) => {
                if receipt.fed {
                    self.wake.notify();
                }
                Ok(receipt_of(&batch, receipt))
            }
            UpCommitted::EpochClosed => Err(refuse(
                Refusal::EpochClosed,
                format!("epoch {} was closed by a later one", batch.epoch),
            )),
            UpCommitted::UnknownEpoch => Err(refuse(
                Refusal::UnknownEpoch,
                format!("the hub does not know epoch {}: greet first", batch.epoch),
            )),
            UpCommitted::RangesFull => Err(refuse(
                Refusal::Busy,
                format!(
                    "lane {} waits for an earlier range and can keep no more: send that one first",
                    batch.lane.name()
                ),
            )),
            UpCommitted::RangeInvalid => Err(bad_range(&batch)),
        }
    }

    async fn sorted(
        &self,
        device: SourceId,
        batch: &UpBatch,
        epoch: &OpenEpoch,
    ) -> Result<Sorted, Stop> {
        if batch.prev < Seq::ZERO || batch.last <= batch.prev {
            return Err(bad_range(batch));
        }
        let tables = unpack(&batch.rows).map_err(|error| {
            let code = match error {
                RowsError::TooLarge { .. } => Refusal::TooLarge,
                RowsError::Digest | RowsError::Malformed(_) => Refusal::Malformed,
            };
            refuse(code, format!("batch {} of database {}: {error}", batch.last, batch.database))
        })?;
        let outside = tables
            .iter()
            .flat_map(|table| &table.rows)
            .find(|row| row.number <= batch.prev.0 || row.number > batch.last.0);
        if let Some(row) = outside {
            return Err(refuse(
                Refusal::Malformed,
                format!(
                    "a row has number {}, outside of its range ({}, {}]",
                    row.number, batch.prev, batch.last
                ),
            ));
        }
        let attachments = self.lineages.attachments(device, &batch.database).await?;
        Ok(sort(device, epoch, &attachments, tables))
    }

    /// Stores mutable rows and answers what became of each.
    async fn store_mutable(
        &self,
        device: SourceId,
        batch: &UpBatch,
        epoch: &OpenEpoch,
        tables: Vec<UpTable>,
    ) -> Result<Vec<SettledRow>, Stop> {
        let highest = tables.iter().flat_map(|table| &table.rows).map(|row| row.version).max();
        if let Some(highest) = highest.filter(|highest| *highest > epoch.ceiling) {
            self.reserve(device, batch, highest).await?;
        }
        let mut settled = Vec::new();
        for table in tables {
            let outcomes = self.mutable.insert(&table.dataspace, table.rows.clone()).await?;
            settled.extend(table.rows.into_iter().zip(outcomes).map(|(row, outcome)| SettledRow {
                table: table.table.clone(),
                key: row.key,
                seq: row.seq,
                version: row.version,
                values: if outcome.name() == "rejected" { row.values } else { Vec::new() },
                outcome,
            }));
        }
        Ok(settled)
    }

    /// The two stores do not commit together, so a later epoch's base is kept above these rows
    /// before they are written.
    async fn reserve(
        &self,
        device: SourceId,
        batch: &UpBatch,
        highest: Version,
    ) -> Result<(), Stop> {
        let state = self.lineages.reserve(device, &batch.database, batch.epoch, highest).await?;
        opened(state, &batch.database, batch.epoch).map(|_| ())
    }
}

fn bad_range(batch: &UpBatch) -> Stop {
    refuse(
        Refusal::Malformed,
        format!("({}, {}] is no range of commit_seqs", batch.prev, batch.last),
    )
}

fn range_of(batch: &UpBatch) -> UpRange {
    UpRange {
        lane: batch.lane,
        prev: batch.prev,
        last: batch.last,
        token: batch.token,
        head: batch.head,
        digest: batch.rows.digest,
    }
}

fn author_of(credential: &DeviceCredential) -> Author {
    Author { name: format!("device:{}", credential.name), strength: credential.strength }
}

fn receipt_of(batch: &UpBatch, receipt: UpReceipt) -> Receipt {
    Receipt {
        database: batch.database.clone(),
        epoch: batch.epoch,
        lane: batch.lane,
        prev: batch.prev,
        last: batch.last,
        digest: batch.rows.digest,
        watermark: receipt.watermark,
        term: receipt.term,
        outcomes: receipt
            .outcomes
            .into_iter()
            .map(|(seq, outcome)| RowOutcome { seq, outcome })
            .collect(),
    }
}
