//! A hub in a temporary folder, and devices that speak the protocol to it without a network.
//!
//! A device here keeps nothing but what a test tells it: it builds messages and hands answers
//! over. What a store holds is counted on a connection of the test's own.

use std::path::{Path, PathBuf};

use hub::catalog::{
    Dataspace, Field, FieldType, IdentityStrength, Layout, NewDataspace, ProjectId,
};
use hub::lineage::DeviceCredential;
use hub::plane::{Author, RowWrite, WriteCondition, WriteError, WriteOutcome};
use hub::{Hub, HubOptions};
use sync_proto::message::{
    DownBatch, DownReceipt, DownRequest, Hello, Outcome, Receipt, Refusal, ToDevice, ToHub,
    UpBatch, Welcome,
};
use sync_proto::rows::{Row, TableRows, pack, unpack};
use sync_proto::schema::{Affinity, Authority, ColumnSpec, Modality, Scope, TableSpec};
use sync_proto::{
    Cursor, Epoch, Incarnation, InstanceId, Lane, NaturalKey, Seq, SourceId, Token, Value, Version,
};
use tempfile::TempDir;
use uuid::Uuid;

/// A hub and its folder.
pub(crate) struct Rig {
    pub(crate) hub: Hub,
    pub(crate) dir: TempDir,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let hub = Hub::open_embedded(&data(&dir), HubOptions::default()).unwrap();
        Self { hub, dir }
    }

    pub(crate) fn data(&self) -> PathBuf {
        data(&self.dir)
    }

    /// Ends the hub and opens it again on what its folder holds after `between`.
    pub(crate) fn reopen_after(self, between: impl FnOnce(&Path)) -> Self {
        let Self { hub, dir } = self;
        drop(hub);
        between(&data(&dir));
        let hub = Hub::open_embedded(&data(&dir), HubOptions::default()).unwrap();
        Self { hub, dir }
    }

    /// A number out of one of the stores.
    pub(crate) fn count(&self, file: &str, sql: &str) -> i64 {
        let db = rusqlite::Connection::open(self.data().join(file)).unwrap();
        db.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    /// (rows, history, outbox) of a state dataspace.
    pub(crate) async fn state_counts(&self, dataspace: &str) -> (i64, i64, i64) {
        let number = self.dataspace(dataspace).await.number;
        (
            self.count("hub.db", &format!("SELECT count(*) FROM s_{number}")),
            self.count(
                "hub.db",
                &format!("SELECT count(*) FROM history WHERE dataspace = {number}"),
            ),
            self.count(
                "hub.db",
                &format!("SELECT count(*) FROM outbox WHERE container = {number}"),
            ),
        )
    }

    pub(crate) async fn dataspace(&self, name: &str) -> Dataspace {
        let project = ProjectId::default_project();
        self.hub.catalog().dataspace(&project, name).await.unwrap().unwrap()
    }

    pub(crate) async fn create(&self, new: NewDataspace) -> Dataspace {
        self.hub.catalog().create_dataspace(new).await.unwrap()
    }

    /// Writes a row of a cloud-authoritative dataspace of scope `all` as the API does.
    pub(crate) async fn put(
        &self,
        dataspace: &Dataspace,
        key: &NaturalKey,
        values: &[(&str, Value)],
    ) -> Result<WriteOutcome, WriteError> {
        self.hub.write(write_of(dataspace, key, Some(values))).await
    }

    pub(crate) async fn delete(
        &self,
        dataspace: &Dataspace,
        key: &NaturalKey,
    ) -> Result<WriteOutcome, WriteError> {
        self.hub.write(write_of(dataspace, key, None)).await
    }
}

fn data(dir: &TempDir) -> PathBuf {
    dir.path().join("data")
}

/// A write of the API without conditions.
pub(crate) fn write_of(
    dataspace: &Dataspace,
    key: &NaturalKey,
    values: Option<&[(&str, Value)]>,
) -> RowWrite {
    RowWrite {
        dataspace: dataspace.clone().into(),
        source_id: dataspace.own_source(),
        key: key.clone(),
        values: values.map(named),
        version: None,
        condition: WriteCondition::None,
        author: Author { name: "api:test".to_owned(), strength: IdentityStrength::Token },
    }
}

pub(crate) fn named(values: &[(&str, Value)]) -> Vec<(String, Value)> {
    values.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

pub(crate) fn text_key(text: &str) -> NaturalKey {
    NaturalKey::of(&[Value::text(text)])
}

/// A cloud-authoritative state dataspace `name`, key `k`, column `v`.
pub(crate) fn cloud_dataspace(name: &str) -> NewDataspace {
    let field = |name: &str, field_type| Field { name: name.to_owned(), field_type };
    NewDataspace {
        project: ProjectId::default_project(),
        name: name.to_owned(),
        modality: Modality::State,
        authority: Authority::Cloud,
        scope: Scope::All,
        layout: Layout::Hybrid,
        natural_key: vec!["k".to_owned()],
        fields: vec![field("k", FieldType::String), field("v", FieldType::Any)],
    }
}

/// A table with a text key `k` and a column `v`.
pub(crate) fn table(name: &str, modality: Modality, authority: Authority) -> TableSpec {
    TableSpec {
        name: name.to_owned(),
        dataspace: name.to_owned(),
        modality,
        authority,
        scope: Scope::default_for(authority),
        columns: vec![column("k", Affinity::Text, 1), column("v", Affinity::Blob, 0)],
    }
}

pub(crate) fn column(name: &str, affinity: Affinity, key_ordinal: u16) -> ColumnSpec {
    ColumnSpec { name: name.to_owned(), affinity, key_ordinal, not_null: key_ordinal > 0 }
}

/// One database of one device.
#[derive(Clone)]
pub(crate) struct Device {
    pub(crate) credential: DeviceCredential,
    pub(crate) id: SourceId,
    pub(crate) database: String,
    pub(crate) instance: InstanceId,
    pub(crate) epoch: Epoch,
    pub(crate) tables: Vec<TableSpec>,
    pub(crate) floor: Version,
    pub(crate) cursor: Cursor,
    pub(crate) generation: u64,
    pub(crate) incarnation: Option<Incarnation>,
}

impl Device {
    pub(crate) fn new(name: &str, tables: Vec<TableSpec>) -> Self {
        Self {
            credential: DeviceCredential {
                project: ProjectId::default_project(),
                name: name.to_owned(),
                strength: IdentityStrength::Token,
            },
            id: SourceId(Uuid::new_v4()),
            database: "app".to_owned(),
            instance: InstanceId(Uuid::new_v4()),
            epoch: Epoch(Uuid::now_v7()),
            tables,
            floor: Version::NONE,
            cursor: Cursor::ZERO,
            generation: 0,
            incarnation: None,
        }
    }

    /// The same database in a new epoch.
    pub(crate) fn next_epoch(&self) -> Self {
        Self { epoch: Epoch(Uuid::now_v7()), ..self.clone() }
    }

    pub(crate) async fn send(&self, hub: &Hub, message: ToHub) -> ToDevice {
        hub.ingest().handle(&self.credential, message).await
    }

    pub(crate) fn hello(&self) -> Hello {
        Hello {
            device: self.id,
            database: self.database.clone(),
            instance: self.instance,
            epoch: self.epoch,
            tables: self.tables.clone(),
            lanes: Vec::new(),
            floor: self.floor,
            cursor: self.cursor,
            generation: self.generation,
            incarnation: self.incarnation,
        }
    }

    /// Greets, and remembers what a device remembers.
    pub(crate) async fn greet(&mut self, hub: &Hub) -> Welcome {
        let answer = self.send(hub, ToHub::Hello(self.hello())).await;
        let ToDevice::Welcome(welcome) = answer else { panic!("Hello got {answer:?}") };
        self.generation = welcome.generation;
        self.incarnation = Some(welcome.incarnation);
        welcome
    }

    pub(crate) async fn greet_refused(&self, hub: &Hub) -> Refusal {
        refusal(self.send(hub, ToHub::Hello(self.hello())).await)
    }

    /// A batch of (prev, last] whose end is also the lane's head.
    pub(crate) fn batch(&self, lane: Lane, prev: i64, last: i64, tables: &[TableRows]) -> UpBatch {
        UpBatch {
            database: self.database.clone(),
            epoch: self.epoch,
            lane,
            prev: Seq(prev),
            last: Seq(last),
            token: token(last),
            head: Seq(last),
            generation: self.generation,
            rows: pack(tables).unwrap(),
        }
    }

    pub(crate) async fn up(&self, hub: &Hub, batch: &UpBatch) -> Receipt {
        let answer = self.send(hub, ToHub::Up(batch.clone())).await;
        let ToDevice::Receipt(receipt) = answer else { panic!("UpBatch got {answer:?}") };
        receipt
    }

    pub(crate) async fn up_refused(&self, hub: &Hub, batch: &UpBatch) -> Refusal {
        refusal(self.send(hub, ToHub::Up(batch.clone())).await)
    }

    pub(crate) fn down_request(&self, wait_ms: u32) -> ToHub {
        ToHub::DownRequest(DownRequest {
            database: self.database.clone(),
            epoch: self.epoch,
            cursor: self.cursor,
            generation: self.generation,
            wait_ms,
        })
    }

    /// Asks for rows, applies what comes by moving the cursor, and tells the hub.
    pub(crate) async fn pull(&mut self, hub: &Hub) -> Vec<TableRows> {
        let batch = self.pull_batch(hub, 0).await;
        unpack(&batch.rows).unwrap()
    }

    pub(crate) async fn pull_batch(&mut self, hub: &Hub, wait_ms: u32) -> DownBatch {
        let answer = self.send(hub, self.down_request(wait_ms)).await;
        let ToDevice::Down(batch) = answer else { panic!("DownRequest got {answer:?}") };
        assert_eq!(batch.prev, self.cursor);
        assert!(batch.next >= batch.prev);
        self.cursor = batch.next;
        let receipt = DownReceipt {
            database: self.database.clone(),
            epoch: self.epoch,
            cursor: self.cursor,
            outcomes: Vec::new(),
            highest: Version::NONE,
        };
        let noted = self.send(hub, ToHub::DownReceipt(receipt)).await;
        assert_eq!(noted, ToDevice::Noted);
        batch
    }
}

pub(crate) fn token(seq: i64) -> Token {
    Token(seq.to_le_bytes())
}

pub(crate) fn refusal(answer: ToDevice) -> Refusal {
    let ToDevice::Refused(refused) = answer else { panic!("not refused: {answer:?}") };
    refused.code
}

/// Rows of a table with columns `k` and `v`.
pub(crate) fn rows(table: &str, rows: Vec<Row>) -> TableRows {
    TableRows {
        table: table.to_owned(),
        columns: vec!["k".to_owned(), "v".to_owned()],
        key: vec![0],
        rows,
    }
}

pub(crate) fn put(number: i64, key: &str, value: i64) -> Row {
    let values = vec![Value::text(key), Value::Int(value)];
    Row { number, base: None, values, deleted: false }
}

pub(crate) fn gone(number: i64, key: &str) -> Row {
    let values = vec![Value::text(key), Value::Null];
    Row { number, base: None, values, deleted: true }
}

/// (key, value) of the live rows of a dataspace, in key order.
pub(crate) async fn live(rig: &Rig, dataspace: &str) -> Vec<(String, Value)> {
    let dataspace = rig.dataspace(dataspace).await;
    let page = hub::plane::PageRequest { after: None, source: None, limit: 10_000 };
    let page = match dataspace.modality {
        Modality::State => rig.hub.state().list(&dataspace, page).await.unwrap(),
        Modality::Mutable => rig.hub.mutable().list(&dataspace, page).await.unwrap(),
    };
    let value = |row: hub::plane::StoredRow| {
        let value = row.values.into_iter().find(|(name, _)| name == "v").unwrap().1;
        (row.natural_key.as_str().to_owned(), value)
    };
    page.rows.into_iter().map(value).collect()
}

/// The codes of a receipt's outcomes, by commit_seq.
pub(crate) fn outcomes(receipt: &Receipt) -> Vec<(i64, &str)> {
    fn code(outcome: &Outcome) -> &str {
        if let Outcome::Rejected(reason) = outcome { &reason.code } else { outcome.name() }
    }
    receipt.outcomes.iter().map(|row| (row.seq.0, code(&row.outcome))).collect()
}
