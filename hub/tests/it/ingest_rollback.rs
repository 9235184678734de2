//! P11: a store that was put back to an earlier state is noticed, and leads to a new incarnation.

use std::path::{Path, PathBuf};

use sync_proto::Cursor;
use sync_proto::message::{Control, ToDevice};
use sync_proto::schema::{Authority, Modality};
use sync_proto::{Lane, Value};

use crate::rig::{Device, Rig, cloud_dataspace, live, put, rows, table, text_key};

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn replace(with: &Path, at: &Path) {
    std::fs::remove_dir_all(at).unwrap();
    copy(with, at);
}

fn settings_device(name: &str) -> Device {
    Device::new(name, vec![table("settings", Modality::State, Authority::Cloud)])
}

/// A hub whose two devices have applied everything, and a copy of its stores from before that.
async fn advanced_past_a_copy() -> (Rig, PathBuf, Device, Device) {
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    rig.put(&settings, &text_key("a"), &[("v", Value::Int(1))]).await.unwrap();
    let (mut one, mut two) = (settings_device("gw-1"), settings_device("gw-2"));
    one.greet(&rig.hub).await;
    two.greet(&rig.hub).await;
    one.pull(&rig.hub).await;
    let backup = rig.dir.path().join("backup");
    let rig = rig.reopen_after(|data| copy(data, &backup));
    for n in 2..6 {
        rig.put(&settings, &text_key("a"), &[("v", Value::Int(n))]).await.unwrap();
    }
    one.pull(&rig.hub).await;
    two.pull(&rig.hub).await;
    (rig, backup, one, two)
}

#[tokio::test]
async fn a_restart_alone_keeps_the_incarnation_and_the_cursor() {
    let (rig, _, mut one, _) = advanced_past_a_copy().await;
    let before = (one.incarnation, one.cursor);
    let rig = rig.reopen_after(|_| {});
    let welcome = one.greet(&rig.hub).await;
    assert_eq!((Some(welcome.incarnation), one.cursor), before);
    assert!(one.pull(&rig.hub).await.is_empty());
    assert!(welcome.term > before.1.term, "terms rise with each start");
}

#[tokio::test]
async fn a_restored_store_gets_one_new_incarnation() {
    let (rig, backup, mut one, mut two) = advanced_past_a_copy().await;
    let rig = rig.reopen_after(|data| replace(&backup, data));
    let known = one.incarnation;
    let renewed = one.greet(&rig.hub).await.incarnation;
    assert_ne!(Some(renewed), known);
    assert_eq!(two.greet(&rig.hub).await.incarnation, renewed, "one rollback, one incarnation");
    let rig = rig.reopen_after(|_| {});
    one.cursor = Cursor::ZERO;
    assert_eq!(one.greet(&rig.hub).await.incarnation, renewed, "it is durable");
}

#[tokio::test]
async fn positions_that_the_restored_store_gives_out_again_are_not_mistaken() {
    let (rig, backup, mut one, _) = advanced_past_a_copy().await;
    let rig = rig.reopen_after(|data| replace(&backup, data));
    let settings = rig.dataspace("settings").await;
    // As many changes as were lost: the ids of the outbox reach the same numbers again.
    for n in 12..20 {
        rig.put(&settings, &text_key("a"), &[("v", Value::Int(n))]).await.unwrap();
    }
    let before = one.cursor;
    let answer = one.send(&rig.hub, one.down_request(0)).await;
    assert_eq!(answer, ToDevice::Control(Control::Resnapshot));
    let known = one.incarnation;
    assert_ne!(Some(one.greet(&rig.hub).await.incarnation), known);
    one.cursor = Cursor::ZERO;
    let fed = one.pull(&rig.hub).await;
    assert_eq!(fed[0].rows[0].values, [Value::text("a"), Value::Int(19)]);
    assert_ne!(one.cursor, before, "the same number under another term");
}

#[tokio::test]
async fn a_copy_that_was_taken_while_the_hub_ran_is_noticed() {
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let mut device = settings_device("gw-1");
    device.greet(&rig.hub).await;
    rig.put(&settings, &text_key("a"), &[("v", Value::Int(1))]).await.unwrap();
    device.pull(&rig.hub).await;
    let backup = rig.dir.path().join("backup");
    copy(&rig.data(), &backup);
    rig.put(&settings, &text_key("a"), &[("v", Value::Int(2))]).await.unwrap();
    device.pull(&rig.hub).await;
    let rig = rig.reopen_after(|data| replace(&backup, data));
    let known = device.incarnation;
    assert_ne!(Some(device.greet(&rig.hub).await.incarnation), known);
}

#[tokio::test]
async fn a_wrong_cursor_without_the_incarnation_renews_nothing() {
    let (rig, _, mut one, _) = advanced_past_a_copy().await;
    let current = one.incarnation;
    let mut stranger = settings_device("gw-3");
    stranger.cursor = Cursor { term: 77, hi: 1, lo: 0 };
    assert_eq!(Some(stranger.greet(&rig.hub).await.incarnation), current);
    let answer = stranger.send(&rig.hub, stranger.down_request(0)).await;
    assert_eq!(answer, ToDevice::Control(Control::Resnapshot));
    assert_eq!(Some(one.greet(&rig.hub).await.incarnation), current);
}

#[tokio::test]
async fn a_replaced_mutable_store_is_noticed() {
    let rig = Rig::new();
    let mut device = Device::new("gw", vec![table("orders", Modality::Mutable, Authority::Device)]);
    device.greet(&rig.hub).await;
    let batch = device.batch(Lane::Mutable, 0, 1, &[rows("orders", vec![put(1, "a", 1)])]);
    device.up(&rig.hub, &batch).await;
    let known = device.incarnation;
    let rig = rig.reopen_after(|data| {
        for file in ["mutable.db", "mutable.db-wal", "mutable.db-shm"] {
            let gone = std::fs::remove_file(data.join(file));
            assert!(gone.is_ok() || file != "mutable.db");
        }
    });
    let welcome = device.greet(&rig.hub).await;
    assert_ne!(Some(welcome.incarnation), known);
    assert!(live(&rig, "orders").await.is_empty(), "it is usable, and empty");
    let again = device.batch(Lane::Backfill, 0, 2, &[rows("orders", vec![put(2, "a", 1)])]);
    device.up(&rig.hub, &again).await;
    assert_eq!(live(&rig, "orders").await, [("t:a".to_owned(), Value::Int(1))]);
}

#[tokio::test]
async fn a_restored_mutable_store_is_noticed() {
    let rig = Rig::new();
    let mut device = Device::new("gw", vec![table("orders", Modality::Mutable, Authority::Device)]);
    device.greet(&rig.hub).await;
    let backup = rig.dir.path().join("backup");
    let rig = rig.reopen_after(|data| copy(data, &backup));
    let known = device.incarnation;
    assert_eq!(Some(device.greet(&rig.hub).await.incarnation), known);
    let rig = rig.reopen_after(|data| {
        std::fs::copy(backup.join("mutable.db"), data.join("mutable.db")).unwrap();
    });
    assert_ne!(Some(device.greet(&rig.hub).await.incarnation), known);
}
