//! Cloud-authored rows of mutable dataspaces: stored under a version guard, then announced.

use hub::catalog::{Dataspace, NewDataspace};
use hub::plane::{UpRow, WriteError};
use sync_proto::message::Outcome;
use sync_proto::rows::TableRows;
use sync_proto::schema::{Authority, Modality, Scope};
use sync_proto::{NaturalKey, RowHash, Seq, Value, Version};

use crate::rig::{Device, Rig, cloud_dataspace, live, named, table, text_key};

fn row(dataspace: &Dataspace, key: NaturalKey, version: i64, value: Option<i64>) -> UpRow {
    UpRow {
        source_id: dataspace.own_source(),
        key,
        seq: Seq::ZERO,
        version: Version(version),
        base: None,
        values: value.map(|value| named(&[("v", Value::Int(value))])).unwrap_or_default(),
        deleted: value.is_none(),
        hash: RowHash::TOMBSTONE,
    }
}

async fn catalog(rig: &Rig) -> Dataspace {
    rig.create(NewDataspace { modality: Modality::Mutable, ..cloud_dataspace("catalog") }).await
}

fn codes(outcomes: &[Outcome]) -> Vec<&'static str> {
    outcomes.iter().map(Outcome::name).collect()
}

fn versions(tables: &[TableRows]) -> Vec<(i64, bool)> {
    tables.iter().flat_map(|table| &table.rows).map(|row| (row.number, row.deleted)).collect()
}

#[tokio::test]
async fn rows_reach_the_devices_that_follow() {
    let rig = Rig::new();
    let catalog = catalog(&rig).await;
    let mut device = Device::new("gw", vec![table("catalog", Modality::Mutable, Authority::Cloud)]);
    device.greet(&rig.hub).await;
    let batch = vec![
        row(&catalog, text_key("a"), 5, Some(1)),
        row(&catalog, text_key("b"), 5, Some(1)),
        row(&catalog, NaturalKey::of(&[Value::Null]), 5, Some(1)),
        row(&catalog, text_key("c"), 0, Some(1)),
    ];
    let outcomes = rig.hub.ingest_rows(&catalog, batch.clone()).await.unwrap();
    assert_eq!(codes(&outcomes), ["applied", "applied", "rejected", "rejected"]);
    let down = device.pull(&rig.hub).await;
    assert_eq!(versions(&down), [(5, false), (5, false)]);
    assert_eq!(down[0].rows[0].values, [Value::text("a"), Value::Int(1)]);

    let outbox = rig.count("hub.db", "SELECT count(*) FROM outbox");
    let again = rig.hub.ingest_rows(&catalog, batch[..2].to_vec()).await.unwrap();
    assert_eq!(codes(&again), ["duplicate", "duplicate"]);
    assert_eq!(rig.count("hub.db", "SELECT count(*) FROM outbox"), outbox, "no further event");
    assert!(device.pull(&rig.hub).await.is_empty());

    let next = vec![
        row(&catalog, text_key("a"), 4, Some(9)),
        row(&catalog, text_key("a"), 5, Some(9)),
        row(&catalog, text_key("b"), 6, None),
    ];
    let outcomes = rig.hub.ingest_rows(&catalog, next).await.unwrap();
    assert_eq!(codes(&outcomes), ["stale", "diverged", "applied"]);
    assert_eq!(versions(&device.pull(&rig.hub).await), [(6, true)]);
    assert_eq!(live(&rig, "catalog").await, [("t:a".to_owned(), Value::Int(1))]);
}

/// The two stores do not commit together: rows that were stored but not announced are announced
/// when they come again.
#[tokio::test]
async fn a_repeat_announces_what_a_crash_left_unannounced() {
    let rig = Rig::new();
    let catalog = catalog(&rig).await;
    let batch = vec![row(&catalog, text_key("a"), 5, Some(1))];
    rig.hub.ingest_rows(&catalog, batch.clone()).await.unwrap();
    let rig = rig.reopen_after(|data| {
        let db = rusqlite::Connection::open(data.join("hub.db")).unwrap();
        db.execute("DELETE FROM outbox", []).unwrap();
    });
    let mut device = Device::new("gw", vec![table("catalog", Modality::Mutable, Authority::Cloud)]);
    device.greet(&rig.hub).await;
    assert!(device.pull(&rig.hub).await.is_empty());
    rig.hub.ingest_rows(&catalog, batch).await.unwrap();
    assert_eq!(versions(&device.pull(&rig.hub).await), [(5, false)]);
}

#[tokio::test]
async fn only_mutable_dataspaces_of_the_cloud_take_rows_so() {
    let rig = Rig::new();
    let state = rig.create(cloud_dataspace("settings")).await;
    let batch = vec![row(&state, text_key("a"), 1, Some(1))];
    let refused = rig.hub.ingest_rows(&state, batch).await;
    assert!(matches!(refused, Err(WriteError::Invalid(_))), "{refused:?}");
    let mirror = rig
        .create(NewDataspace {
            modality: Modality::Mutable,
            authority: Authority::Device,
            scope: Scope::Source,
            ..cloud_dataspace("orders")
        })
        .await;
    let batch = vec![row(&mirror, text_key("a"), 1, Some(1))];
    let refused = rig.hub.ingest_rows(&mirror, batch).await;
    assert!(matches!(refused, Err(WriteError::DeviceAuthoritative { .. })), "{refused:?}");
}
