//! The feed down: DownRequest with its long poll, DownReceipt and Report.
//!
//! A batch names the cursor that it starts from and the one that it ends at; the device applies it
//! only where it stands at the first. Entries say that a row changed; its content is read when it
//! is sent, so a row that changed again meanwhile goes out newer, and once more as a duplicate.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use sync_proto::limits::{BATCH_TARGET_BYTES, BATCH_TARGET_ROWS};
use sync_proto::message::{
    Control, DownBatch, DownReceipt, DownRequest, PackedRows, Refusal, Report, TableState,
};
use sync_proto::rows::{Row, RowsError, TableRows, pack};
use sync_proto::schema::{Authority, Modality};
use sync_proto::{NaturalKey, SourceId, Value};
use tokio::time::Instant;

use super::{Ingest, Stop, refuse};
use crate::catalog::Dataspace;
use crate::error::StoreError;
use crate::lineage::{Attachment, DeviceCredential};
use crate::plane::{FeedEntry, FeedRequest, StoredRow};

/// The longest that a request is held: below what proxies give up after.
const WAIT_MAX: Duration = Duration::from_secs(55);

/// How long a waiting request trusts that a change would have woken it. Writes of other processes
/// wake nobody here.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A table that the feed goes to.
struct Target {
    attachment: Attachment,
    dataspace: Arc<Dataspace>,
    source: SourceId,
}

/// An entry with the row that it speaks of, as it is stored now; no row where its plane lost it.
type Fed = (FeedEntry, Option<StoredRow>);

impl Ingest {
    pub(super) async fn down_request(
        &self,
        credential: &DeviceCredential,
        request: DownRequest,
    ) -> Result<DownBatch, Stop> {
        let until = Instant::now() + Duration::from_millis(request.wait_ms.into()).min(WAIT_MAX);
        let mut woken = self.wake.listen();
        loop {
            // Checked each time: while a request waits, a Hello can change what holds.
            let device = self.device(credential).await?;
            self.life(request.generation).await?;
            self.open_epoch(device, &request.database, request.epoch).await?;
            let batch = self.next_batch(device, &request).await?;
            let now = Instant::now();
            if batch.next != request.cursor || now >= until {
                return Ok(batch);
            }
            let look_again = until.min(now + LOOK_AGAIN);
            match tokio::time::timeout_at(look_again, woken.changed()).await {
                Ok(Ok(())) | Err(_) => {}
                // The hub is shutting down: answer instead of waiting for nobody.
                Ok(Err(_)) => return Ok(batch),
            }
        }
    }

    /// The next rows after the request's cursor; without rows and with `next` = `prev` when there
    /// are none.
    async fn next_batch(&self, device: SourceId, request: &DownRequest) -> Result<DownBatch, Stop> {
        let DownRequest { database, cursor, generation, .. } = request;
        let is_known = self.lineages.knows(*cursor).await?;
        if !is_known || self.lineages.needs_snapshot(device, database, *cursor).await? {
            return Err(Stop::Control(Control::Resnapshot));
        }
        let targets = self.targets(device, database).await?;
        let feed = FeedRequest {
            after: *cursor,
            dataspaces: targets.iter().map(|to| (to.dataspace.number, to.source)).collect(),
            entries_max: BATCH_TARGET_ROWS,
        };
        let page = self.state.feed(feed).await?;
        let fed = self.fetch(&targets, page.entries).await?;
        let (rows, sent) = pack_fitting(&targets, &fed).map_err(|error| StoreError::Failed {
            what: "packing rows of the feed",
            source: error.into(),
        })?;
        let next = fed[..sent].last().map_or(*cursor, |(entry, _)| entry.position);
        let (database, generation) = (database.clone(), *generation);
        Ok(DownBatch { database, prev: *cursor, next, generation, rows })
    }

    async fn targets(&self, device: SourceId, database: &str) -> Result<Vec<Target>, Stop> {
        let attachments = self.lineages.attachments(device, database).await?;
        let flowing = attachments.into_iter().filter_map(|attachment| {
            let dataspace = attachment.dataspace.clone()?;
            let flows =
                attachment.state == TableState::Flowing && dataspace.authority == Authority::Cloud;
            let source = dataspace.source_for(Some(device)).filter(|_| flows)?;
            Some(Target { attachment, dataspace, source })
        });
        Ok(flowing.collect())
    }

    /// Reads the rows of as many entries from the start as make a batch of the size that devices
    /// expect; at least one.
    async fn fetch(
        &self,
        targets: &[Target],
        entries: Vec<FeedEntry>,
    ) -> Result<Vec<Fed>, StoreError> {
        let mut answers: BTreeMap<i64, VecDeque<Option<StoredRow>>> = BTreeMap::new();
        for target in targets {
            let number = target.dataspace.number;
            let own = entries.iter().filter(|entry| entry.dataspace == number);
            let wanted: Vec<(SourceId, NaturalKey)> =
                own.map(|entry| (entry.source_id, entry.key.clone())).collect();
            if wanted.is_empty() {
                continue;
            }
            let (dataspace, bytes) = (&target.dataspace, BATCH_TARGET_BYTES);
            let rows = match dataspace.modality {
                Modality::State => self.state.rows(dataspace, wanted, bytes).await?,
                Modality::Mutable => self.mutable.rows(dataspace, wanted, bytes).await?,
            };
            answers.insert(number, rows.into());
        }
        let (mut fed, mut bytes) = (Vec::new(), 0);
        for entry in entries {
            let answer = answers.get_mut(&entry.dataspace).and_then(VecDeque::pop_front);
            let Some(row) = answer else { break };
            bytes += row.as_ref().map_or(0, StoredRow::len_bytes);
            if bytes > BATCH_TARGET_BYTES && !fed.is_empty() {
                break;
            }
            fed.push((entry, row));
        }
        Ok(fed)
    }

    pub(super) async fn down_receipt(
        &self,
        credential: &DeviceCredential,
        receipt: DownReceipt,
    ) -> Result<(), Stop> {
        let device = self.device(credential).await?;
        self.open_epoch(device, &receipt.database, receipt.epoch).await?;
        if !self.lineages.knows(receipt.cursor).await? {
            return Err(refuse(
                Refusal::UnknownEpoch,
                format!("the hub never gave out cursor {}: greet again", receipt.cursor),
            ));
        }
        Ok(self.lineages.note_down(device, receipt).await?)
    }

    pub(super) async fn report(
        &self,
        credential: &DeviceCredential,
        report: Report,
    ) -> Result<(), Stop> {
        let device = self.device(credential).await?;
        self.open_epoch(device, &report.database, report.epoch).await?;
        Ok(self.lineages.note_report(device, report).await?)
    }
}

/// Packs the rows, or as many from the start as fit a batch, and says how many that are. Sparse
/// columns can make a batch larger than the sum of its values.
fn pack_fitting(targets: &[Target], fed: &[Fed]) -> Result<(PackedRows, usize), RowsError> {
    let mut count = fed.len();
    loop {
        match pack(&tables_of(targets, &fed[..count])) {
            Err(RowsError::TooLarge { .. }) if count > 1 => count = count.div_ceil(2),
            answer => return answer.map(|rows| (rows, count)),
        }
    }
}

fn tables_of(targets: &[Target], fed: &[Fed]) -> Vec<TableRows> {
    let rows_of = |target: &Target| {
        let own = fed.iter().filter(|(entry, _)| entry.dataspace == target.dataspace.number);
        own.filter_map(|(_, row)| row.as_ref()).collect::<Vec<_>>()
    };
    let tables = targets.iter().map(|target| table_of(target, &rows_of(target)));
    tables.filter(|table| !table.rows.is_empty()).collect()
}

/// Rows of one dataspace as the device's table has them: under its name, with those columns that
/// it has, named as it names them. A tombstone carries its key only.
fn table_of(target: &Target, rows: &[&StoredRow]) -> TableRows {
    let spec = &target.attachment.spec;
    let mut sent: BTreeSet<String> =
        target.dataspace.natural_key.iter().map(|name| name.to_ascii_lowercase()).collect();
    for row in rows {
        sent.extend(row.values.iter().map(|(name, _)| name.to_ascii_lowercase()));
    }
    let has_been_sent = |name: &str| sent.contains(&name.to_ascii_lowercase());
    let columns: Vec<String> = spec
        .columns
        .iter()
        .map(|column| column.name.clone())
        .filter(|name| has_been_sent(name))
        .collect();
    let key_names = spec.key();
    let index_of = |name: &str| columns.iter().position(|column| column == name);
    let key: Vec<u16> = key_names
        .iter()
        .filter_map(|name| index_of(name).and_then(|index| u16::try_from(index).ok()))
        .collect();
    let rows = rows.iter().map(|row| row_of(row, &columns, &key)).collect();
    TableRows { table: spec.name.clone(), columns, key, rows }
}

fn row_of(row: &StoredRow, columns: &[String], key: &[u16]) -> Row {
    let mut values = vec![Value::Null; columns.len()];
    for (name, value) in &row.values {
        let index = columns.iter().position(|column| column.eq_ignore_ascii_case(name));
        if let Some(index) = index {
            values[index] = value.clone();
        }
    }
    // The key's text is checked when it is stored; a tombstone has its key nowhere else.
    for (index, part) in key.iter().zip(row.natural_key.parts().unwrap_or_default()) {
        values[usize::from(*index)] = part;
    }
    Row { number: row.version.0, base: None, values, deleted: row.deleted }
}
