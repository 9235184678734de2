//! P5: only a closed chain of ranges moves a watermark, whatever is lost, doubled or swapped.

use sync_proto::message::Refusal;
use sync_proto::rows::pack;
use sync_proto::schema::{Authority, Modality};
use sync_proto::{Digest, Lane, Seq};

use crate::rig::{Device, Rig, put, rows, table, token};

async fn greeted(rig: &Rig) -> Device {
    let mut device = Device::new("gw", vec![table("shadow", Modality::State, Authority::Device)]);
    device.greet(&rig.hub).await;
    device
}

async fn up(rig: &Rig, device: &Device, prev: i64, last: i64) -> i64 {
    let list = vec![put(last, &format!("k{last}"), last)];
    let batch = device.batch(Lane::State, prev, last, &[rows("shadow", list)]);
    device.up(&rig.hub, &batch).await.watermark.0
}

#[tokio::test]
async fn a_lost_range_holds_the_watermark_until_it_comes() {
    let rig = Rig::new();
    let mut device = greeted(&rig).await;
    assert_eq!(up(&rig, &device, 0, 3).await, 3);
    assert_eq!(up(&rig, &device, 5, 9).await, 3);
    assert_eq!(up(&rig, &device, 9, 12).await, 3);
    let lanes = device.greet(&rig.hub).await.lanes;
    assert_eq!((lanes[0].seq, lanes[0].token), (Seq(3), token(3)));
    let info = rig.hub.lineages().device(&device.credential.project, "gw").await.unwrap().unwrap();
    assert!(!info.lineages[0].consistent);

    assert_eq!(up(&rig, &device, 3, 5).await, 12);
    let lanes = device.greet(&rig.hub).await.lanes;
    assert_eq!((lanes[0].seq, lanes[0].token), (Seq(12), token(12)));
    let info = rig.hub.lineages().device(&device.credential.project, "gw").await.unwrap().unwrap();
    assert!(info.lineages[0].consistent);
    assert_eq!(info.lineages[0].watermark, Seq(12));
}

#[tokio::test]
async fn waiting_ranges_outlive_a_restart() {
    let rig = Rig::new();
    let device = greeted(&rig).await;
    up(&rig, &device, 2, 4).await;
    let rig = rig.reopen_after(|_| {});
    assert_eq!(up(&rig, &device, 0, 2).await, 4);
}

#[tokio::test]
async fn a_head_above_the_watermark_is_not_consistent() {
    let rig = Rig::new();
    let device = greeted(&rig).await;
    let mut batch = device.batch(Lane::State, 0, 2, &[rows("shadow", vec![put(1, "a", 1)])]);
    batch.head = Seq(7);
    device.up(&rig.hub, &batch).await;
    let project = &device.credential.project;
    let consistent = async |rig: &Rig| {
        rig.hub.lineages().device(project, "gw").await.unwrap().unwrap().lineages[0].consistent
    };
    assert!(!consistent(&rig).await);
    up(&rig, &device, 2, 7).await;
    assert!(consistent(&rig).await);
}

#[tokio::test]
async fn lanes_do_not_wait_for_each_other() {
    let rig = Rig::new();
    let device = greeted(&rig).await;
    let batch = |lane, prev, last| {
        device.batch(lane, prev, last, &[rows("shadow", vec![put(last, "a", 1)])])
    };
    assert_eq!(device.up(&rig.hub, &batch(Lane::Backfill, 4, 5)).await.watermark, Seq(0));
    assert_eq!(device.up(&rig.hub, &batch(Lane::State, 0, 7)).await.watermark, Seq(7));
    assert_eq!(device.up(&rig.hub, &batch(Lane::Backfill, 0, 4)).await.watermark, Seq(5));
}

#[tokio::test]
async fn a_peer_that_ignores_gaps_is_told_to_close_them() {
    let rig = Rig::new();
    let device = greeted(&rig).await;
    for at in 1..=64 {
        assert_eq!(up(&rig, &device, 10 * at, 10 * at + 1).await, 0);
    }
    let batch = device.batch(Lane::State, 9000, 9001, &[rows("shadow", vec![put(9001, "z", 1)])]);
    assert_eq!(device.up_refused(&rig.hub, &batch).await, Refusal::Busy);
    let (stored, _, _) = rig.state_counts("shadow").await;
    assert_eq!(stored, 64, "a refused message has written nothing");
}

#[tokio::test]
async fn what_cannot_be_decoded_is_refused_whole() {
    let rig = Rig::new();
    let device = greeted(&rig).await;
    let good = device.batch(Lane::State, 0, 2, &[rows("shadow", vec![put(1, "a", 1)])]);

    let mut digest = good.clone();
    digest.rows.digest = Digest::of(b"other");
    let mut bytes = good.clone();
    bytes.rows.bytes.truncate(5);
    bytes.rows.digest = Digest::of(&bytes.rows.bytes);
    let mut outside = good.clone();
    outside.rows = pack(&[rows("shadow", vec![put(3, "a", 1)])]).unwrap();
    let mut empty_range = good.clone();
    empty_range.prev = Seq(2);
    let mut below_zero = good.clone();
    below_zero.prev = Seq(-1);
    for (name, batch) in [
        ("digest", digest),
        ("bytes", bytes),
        ("outside", outside),
        ("empty range", empty_range),
        ("below zero", below_zero),
    ] {
        assert_eq!(device.up_refused(&rig.hub, &batch).await, Refusal::Malformed, "{name}");
    }
    let mut generation = good.clone();
    generation.generation += 1;
    assert_eq!(device.up_refused(&rig.hub, &generation).await, Refusal::Generation);
    assert_eq!(rig.state_counts("shadow").await, (0, 0, 0));
    assert!(device.clone().greet(&rig.hub).await.lanes.is_empty());
}

#[tokio::test]
async fn the_same_batch_at_the_same_time_is_one_application() {
    let rig = Rig::new();
    let mut device = Device::new(
        "gw",
        vec![
            table("shadow", Modality::State, Authority::Device),
            table("orders", Modality::Mutable, Authority::Device),
        ],
    );
    device.greet(&rig.hub).await;
    let both = [
        rows("shadow", (1..=50).map(|n| put(n, &format!("k{n}"), n)).collect()),
        rows("orders", (51..=90).map(|n| put(n, &format!("k{n}"), n)).collect()),
    ];
    let batch = device.batch(Lane::Backfill, 0, 90, &both);
    let mut sends = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (hub, device, batch) = (rig.hub.clone(), device.clone(), batch.clone());
        sends.spawn(async move { device.up(&hub, &batch).await });
    }
    let receipts = sends.join_all().await;
    assert!(receipts.iter().all(|receipt| receipt.watermark == Seq(90)));
    assert_eq!(rig.state_counts("shadow").await, (50, 50, 0));
}
