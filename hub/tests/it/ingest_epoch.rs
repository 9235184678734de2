//! Epochs: a base each, given once, above everything before; a closed epoch writes nothing.

use std::collections::BTreeSet;

use sync_proto::message::{Refusal, ToDevice, ToHub};
use sync_proto::schema::{Authority, Modality};
use sync_proto::{Lane, Seq, Value, Version};

use crate::rig::{Device, Rig, live, put, rows, table};

fn shadow_device() -> Device {
    Device::new("gw", vec![table("shadow", Modality::State, Authority::Device)])
}

#[tokio::test]
async fn the_first_epoch_starts_at_zero_and_keeps_its_base() {
    let rig = Rig::new();
    let mut device = shadow_device();
    assert_eq!(device.greet(&rig.hub).await.base, Version(0));
    device.floor = Version(500);
    assert_eq!(device.greet(&rig.hub).await.base, Version(0), "a repeated Hello, the same answer");
}

#[tokio::test]
async fn a_floor_lifts_the_base_of_an_unknown_database() {
    let rig = Rig::new();
    let mut device = shadow_device();
    device.floor = Version(5_000);
    assert_eq!(device.greet(&rig.hub).await.base, Version(5_000));
}

#[tokio::test]
async fn an_absurd_floor_leaves_room_for_rows() {
    let rig = Rig::new();
    let mut device = shadow_device();
    device.floor = Version(i64::MAX);
    let base = device.greet(&rig.hub).await.base;
    assert_eq!(base, Version(1 << 39));
    let batch = device.batch(Lane::State, 0, 1, &[rows("shadow", vec![put(1, "a", 1)])]);
    assert!(device.up(&rig.hub, &batch).await.outcomes.is_empty());
}

#[tokio::test]
async fn a_new_epoch_closes_the_one_before() {
    let rig = Rig::new();
    let mut old = shadow_device();
    old.greet(&rig.hub).await;
    let first = old.batch(Lane::State, 0, 1, &[rows("shadow", vec![put(1, "a", 1)])]);
    old.up(&rig.hub, &first).await;
    let mut new = old.next_epoch();
    let welcome = new.greet(&rig.hub).await;
    assert!(welcome.base >= Version(1), "{}", welcome.base);
    assert!(welcome.lanes.is_empty(), "lanes start anew");

    let late = old.batch(Lane::State, 1, 2, &[rows("shadow", vec![put(2, "a", 2)])]);
    let counts = rig.state_counts("shadow").await;
    assert_eq!(old.up_refused(&rig.hub, &late).await, Refusal::EpochClosed);
    assert_eq!(old.up_refused(&rig.hub, &first).await, Refusal::EpochClosed, "replays too");
    assert_eq!(old.greet_refused(&rig.hub).await, Refusal::EpochClosed);
    assert_eq!(rig.state_counts("shadow").await, counts);

    let fresh = new.batch(Lane::State, 0, 1, &[rows("shadow", vec![put(1, "a", 3)])]);
    assert!(new.up(&rig.hub, &fresh).await.outcomes.is_empty(), "above every earlier version");
    assert_eq!(live(&rig, "shadow").await, [("t:a".to_owned(), Value::Int(3))]);
}

#[tokio::test]
async fn a_late_batch_of_a_mutable_table_writes_nothing() {
    let rig = Rig::new();
    let mut old = Device::new("gw", vec![table("orders", Modality::Mutable, Authority::Device)]);
    old.greet(&rig.hub).await;
    let late = old.batch(Lane::Mutable, 0, 2, &[rows("orders", vec![put(2, "a", 2)])]);
    old.next_epoch().greet(&rig.hub).await;
    assert_eq!(old.up_refused(&rig.hub, &late).await, Refusal::EpochClosed);
    assert!(live(&rig, "orders").await.is_empty());
}

#[tokio::test]
async fn without_a_hello_nothing_is_taken() {
    let rig = Rig::new();
    let mut device = shadow_device();
    let batch = device.batch(Lane::State, 0, 1, &[rows("shadow", vec![put(1, "a", 1)])]);
    assert_eq!(device.up_refused(&rig.hub, &batch).await, Refusal::UnknownEpoch);
    device.greet(&rig.hub).await;
    let other = device.next_epoch();
    let batch = other.batch(Lane::State, 0, 1, &[rows("shadow", vec![put(1, "a", 1)])]);
    assert_eq!(other.up_refused(&rig.hub, &batch).await, Refusal::UnknownEpoch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_hellos_of_one_epoch_get_one_base() {
    let rig = Rig::new();
    let mut before = shadow_device();
    before.greet(&rig.hub).await;
    let device = before.next_epoch();
    let mut hellos = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let (hub, mut device) = (rig.hub.clone(), device.clone());
        hellos.spawn(async move { device.greet(&hub).await.base });
    }
    let bases: BTreeSet<Version> = hellos.join_all().await.into_iter().collect();
    assert_eq!(bases.len(), 1, "{bases:?}");
    assert_eq!(rig.count("hub.db", "SELECT count(*) FROM epochs"), 2);
}

/// Versions of different epochs must never meet, also when rows are on their way while the next
/// epochs open.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_epochs_write_disjoint_versions() {
    let rig = Rig::new();
    let mut first = Device::new(
        "gw",
        vec![
            table("shadow", Modality::State, Authority::Device),
            table("orders", Modality::Mutable, Authority::Device),
        ],
    );
    first.greet(&rig.hub).await;
    let mut lives = tokio::task::JoinSet::new();
    for n in 0..24 {
        let (hub, mut device) = (rig.hub.clone(), first.next_epoch());
        lives.spawn(async move {
            let ToDevice::Welcome(welcome) = device.send(&hub, ToHub::Hello(device.hello())).await
            else {
                panic!("a new epoch was refused");
            };
            device.generation = welcome.generation;
            let both = [
                rows("shadow", vec![put(1, "a", n), put(2, "b", n)]),
                rows("orders", vec![put(3, "a", n), put(4, "b", n)]),
            ];
            let sent =
                device.send(&hub, ToHub::Up(device.batch(Lane::Backfill, 0, 4, &both))).await;
            (welcome.base, matches!(sent, ToDevice::Receipt(_)))
        });
    }
    let ends = lives.join_all().await;
    let bases: BTreeSet<Version> = ends.iter().map(|(base, _)| *base).collect();
    assert_eq!(bases.len(), 24, "every epoch has its own base");
    let mut sorted: Vec<Version> = bases.into_iter().collect();
    sorted.sort();
    assert!(sorted.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 4), "{sorted:?}");
    let highest = ends.iter().filter(|(_, taken)| *taken).map(|(base, _)| *base).max();
    let open = "SELECT base FROM epochs WHERE closed_at IS NULL";
    let open = Version(rig.count("hub.db", open));
    assert!(highest <= Some(open));
    let version = format!("SELECT max(version) FROM s_{}", rig.dataspace("shadow").await.number);
    let stored = rig.count("hub.db", &version);
    assert!(stored <= open.0 + 4, "no closed epoch wrote above the open one's numbers");
}

#[tokio::test]
async fn bases_stay_above_rows_of_the_mutable_plane() {
    let rig = Rig::new();
    let mut device = Device::new("gw", vec![table("orders", Modality::Mutable, Authority::Device)]);
    device.greet(&rig.hub).await;
    let seq = 300_000;
    let batch = device.batch(Lane::Mutable, 0, seq, &[rows("orders", vec![put(seq, "a", 1)])]);
    assert_eq!(device.up(&rig.hub, &batch).await.watermark, Seq(seq));
    let base = device.next_epoch().greet(&rig.hub).await.base;
    assert!(base.0 >= seq, "{base}");
}
