//! Rows that a device brings to a cloud-authoritative dataspace: compare-and-swap only.

use hub::catalog::{Dataspace, NewDataspace};
use sync_proto::message::TableState;
use sync_proto::rows::Row;
use sync_proto::schema::{Authority, Modality, Scope};
use sync_proto::{Lane, Value, Version};

use crate::rig::{Device, Rig, cloud_dataspace, gone, live, outcomes, put, rows, table, text_key};

fn swap(row: Row) -> Row {
    Row { base: Some(Version::NONE), ..row }
}

fn settings_device(name: &str) -> Device {
    Device::new(name, vec![table("settings", Modality::State, Authority::Cloud)])
}

async fn adopts(rig: &Rig, device: &mut Device) -> bool {
    let welcome = device.greet(&rig.hub).await;
    assert_eq!(welcome.tables[0].state, TableState::Flowing);
    welcome.tables[0].adopt
}

#[tokio::test]
async fn an_untouched_dataspace_adopts_the_first_devices_rows() {
    let rig = Rig::new();
    let mut first = settings_device("gw-1");
    assert!(adopts(&rig, &mut first).await);
    let batch = first.batch(
        Lane::Backfill,
        0,
        2,
        &[rows("settings", vec![swap(put(1, "a", 1)), swap(put(2, "b", 1))])],
    );
    assert!(first.up(&rig.hub, &batch).await.outcomes.is_empty());
    assert_eq!(rig.state_counts("settings").await, (2, 2, 2));

    let settings: Dataspace = rig.dataspace("settings").await;
    let versions = format!("SELECT sum(version) FROM s_{}", settings.number);
    assert_eq!(rig.count("hub.db", &versions), 2, "version 1 each, whatever the commit_seq");
    let owned = format!(
        "SELECT count(*) FROM s_{} WHERE source_id = x'{}'",
        settings.number,
        settings.id.simple()
    );
    assert_eq!(rig.count("hub.db", &owned), 2, "scope all: the dataspace's own id");

    let mut second = settings_device("gw-2");
    assert!(!adopts(&rig, &mut second).await);
    assert_eq!(second.pull(&rig.hub).await[0].rows.len(), 2);
    assert_eq!(first.pull(&rig.hub).await[0].rows.len(), 2, "its author learns the version too");
}

#[tokio::test]
async fn a_swap_against_a_written_row_is_a_conflict() {
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let mut device = settings_device("gw");
    assert!(adopts(&rig, &mut device).await);
    rig.put(&settings, &text_key("a"), &[("v", Value::Int(9))]).await.unwrap();
    rig.put(&settings, &text_key("gone"), &[("v", Value::Int(9))]).await.unwrap();
    rig.delete(&settings, &text_key("gone")).await.unwrap();
    let counts = rig.state_counts("settings").await;
    let list = vec![swap(put(1, "a", 1)), swap(put(2, "gone", 1)), swap(put(3, "b", 1))];
    let batch = device.batch(Lane::Backfill, 0, 3, &[rows("settings", list)]);
    let receipt = device.up(&rig.hub, &batch).await;
    assert_eq!(outcomes(&receipt), [(1, "conflict"), (2, "conflict")]);
    let (stored, history, outbox) = rig.state_counts("settings").await;
    assert_eq!((stored, history, outbox), (counts.0 + 1, counts.1 + 1, counts.2 + 1));
    assert_eq!(live(&rig, "settings").await[0], ("t:a".to_owned(), Value::Int(9)));
    let again = device.up(&rig.hub, &batch).await;
    assert_eq!(again, receipt, "a conflict is repeated in every receipt of the range");
}

#[tokio::test]
async fn a_repeated_swap_in_another_cut_is_a_duplicate() {
    let rig = Rig::new();
    let mut device = settings_device("gw");
    adopts(&rig, &mut device).await;
    let one = vec![swap(put(1, "a", 1))];
    device
        .up(&rig.hub, &device.batch(Lane::Backfill, 0, 1, &[rows("settings", one.clone())]))
        .await;
    let counts = rig.state_counts("settings").await;
    let batch = device.batch(Lane::Backfill, 0, 2, &[rows("settings", one)]);
    assert_eq!(outcomes(&device.up(&rig.hub, &batch).await), [(1, "duplicate")]);
    assert_eq!(rig.state_counts("settings").await, counts);
}

#[tokio::test]
async fn a_row_without_a_swap_is_refused_by_the_clouds_authority() {
    let rig = Rig::new();
    let mut device = settings_device("gw");
    adopts(&rig, &mut device).await;
    let list = vec![put(1, "a", 1), gone(2, "b")];
    let batch = device.batch(Lane::State, 0, 2, &[rows("settings", list)]);
    let receipt = device.up(&rig.hub, &batch).await;
    assert_eq!(outcomes(&receipt), [(1, "cloud_authoritative"), (2, "cloud_authoritative")]);
    assert_eq!(rig.state_counts("settings").await, (0, 0, 0));
}

#[tokio::test]
async fn a_swap_has_no_place_where_the_device_decides() {
    let rig = Rig::new();
    let mut device = Device::new("gw", vec![table("shadow", Modality::State, Authority::Device)]);
    device.greet(&rig.hub).await;
    let batch = device.batch(Lane::State, 0, 1, &[rows("shadow", vec![swap(put(1, "a", 1))])]);
    assert_eq!(outcomes(&device.up(&rig.hub, &batch).await), [(1, "unexpected_base")]);
}

#[tokio::test]
async fn with_scope_source_each_device_adopts_its_own() {
    let rig = Rig::new();
    rig.create(NewDataspace { scope: Scope::Source, ..cloud_dataspace("settings") }).await;
    for name in ["gw-1", "gw-2"] {
        let mut device = settings_device(name);
        device.tables[0].scope = Scope::Source;
        assert!(adopts(&rig, &mut device).await, "{name}");
        let batch =
            device.batch(Lane::Backfill, 0, 1, &[rows("settings", vec![swap(put(1, "a", 1))])]);
        assert!(device.up(&rig.hub, &batch).await.outcomes.is_empty());
        let fed = device.pull(&rig.hub).await;
        assert_eq!(fed[0].rows.len(), 1, "{name}: only its own row");
        assert!(!adopts(&rig, &mut device).await, "{name}");
    }
}

#[tokio::test]
async fn a_mutable_dataspace_of_the_cloud_adopts_nothing() {
    let rig = Rig::new();
    let mut device = Device::new("gw", vec![table("catalog", Modality::Mutable, Authority::Cloud)]);
    assert!(!adopts(&rig, &mut device).await);
    let batch = device.batch(Lane::Backfill, 0, 1, &[rows("catalog", vec![swap(put(1, "a", 1))])]);
    assert_eq!(outcomes(&device.up(&rig.hub, &batch).await), [(1, "cloud_authoritative")]);
    assert!(live(&rig, "catalog").await.is_empty());
}
