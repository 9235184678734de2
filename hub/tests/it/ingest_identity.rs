//! P12: a device speaks only as itself; its name and its UUID belong to each other for ever.

use sync_proto::message::{Refusal, TableReport, ToDevice, ToHub};
use sync_proto::schema::{Authority, Modality};
use sync_proto::{Lane, SourceId};
use uuid::Uuid;

use crate::rig::{Device, Rig, put, refusal, rows, table};

fn device(name: &str) -> Device {
    Device::new(name, vec![table("shadow", Modality::State, Authority::Device)])
}

#[tokio::test]
async fn a_name_and_a_uuid_are_bound_one_to_one() {
    let rig = Rig::new();
    let mut first = device("gw-1");
    first.greet(&rig.hub).await;

    let same_name_other_id = Device { id: SourceId(Uuid::new_v4()), ..first.clone() };
    assert_eq!(same_name_other_id.greet_refused(&rig.hub).await, Refusal::Identity);
    let other_name_same_id = Device { id: first.id, ..device("gw-2") };
    assert_eq!(other_name_same_id.greet_refused(&rig.hub).await, Refusal::Identity);

    first.greet(&rig.hub).await;
    assert_eq!(rig.count("hub.db", "SELECT count(*) FROM devices"), 1);
    assert_eq!(rig.count("hub.db", "SELECT count(*) FROM epochs"), 1);
}

#[tokio::test]
async fn a_device_cannot_write_into_another_ones_epoch() {
    let rig = Rig::new();
    let (mut honest, mut thief) = (device("gw-1"), device("gw-2"));
    honest.greet(&rig.hub).await;
    thief.greet(&rig.hub).await;
    let stolen = Device { credential: thief.credential.clone(), ..honest.clone() };
    let batch = stolen.batch(Lane::State, 0, 1, &[rows("shadow", vec![put(1, "a", 9)])]);
    assert_eq!(stolen.up_refused(&rig.hub, &batch).await, Refusal::UnknownEpoch);
    assert_eq!(refusal(stolen.send(&rig.hub, stolen.down_request(0)).await), Refusal::UnknownEpoch);
    assert_eq!(rig.state_counts("shadow").await, (0, 0, 0));
}

#[tokio::test]
async fn rows_of_two_devices_with_one_key_are_two_rows() {
    let rig = Rig::new();
    for (name, value) in [("gw-1", 1), ("gw-2", 2)] {
        let mut device = device(name);
        device.greet(&rig.hub).await;
        let batch = device.batch(Lane::State, 0, 1, &[rows("shadow", vec![put(1, "a", value)])]);
        assert!(device.up(&rig.hub, &batch).await.outcomes.is_empty());
    }
    assert_eq!(rig.state_counts("shadow").await.0, 2);
}

#[tokio::test]
async fn history_names_the_author() {
    let rig = Rig::new();
    let mut device = device("gw-1");
    device.greet(&rig.hub).await;
    let batch = device.batch(Lane::State, 0, 1, &[rows("shadow", vec![put(1, "a", 1)])]);
    device.up(&rig.hub, &batch).await;
    let found = "SELECT count(*) FROM history WHERE author = 'device:gw-1' AND op = 'put'
        AND outcome = 'applied' AND identity_strength = 'token'
        AND value = '{\"k\":\"a\",\"v\":1}'";
    assert_eq!(rig.count("hub.db", found), 1);
}

#[tokio::test]
async fn reports_show_on_the_devices_page() {
    let rig = Rig::new();
    let mut device = device("gw-1");
    device.greet(&rig.hub).await;
    let report = sync_proto::message::Report {
        database: device.database.clone(),
        epoch: device.epoch,
        tables: vec![TableReport {
            table: "shadow".to_owned(),
            pending: 12,
            quarantine: 3,
            status: "live".to_owned(),
        }],
    };
    assert_eq!(device.send(&rig.hub, ToHub::Report(report)).await, ToDevice::Noted);
    let info =
        rig.hub.lineages().device(&device.credential.project, "gw-1").await.unwrap().unwrap();
    assert_eq!(info.source_id, Some(device.id));
    assert!(info.last_seen.is_some());
    let lineage = &info.lineages[0];
    assert_eq!(lineage.pending, Some(12));
    assert_eq!(lineage.quarantine(), 3);
    assert_eq!(lineage.device_status.as_deref(), Some("live"));
    assert_eq!(lineage.status, "flowing");
    assert_eq!(lineage.last_receipt, None);
    assert_eq!(lineage.fingerprint, device.tables[0].fingerprint());
}
