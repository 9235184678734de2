//! P4: what comes twice, late or out of order changes no row and no line of history.

use hub::plane::{PageRequest, UpRow};
use sync_proto::message::{Receipt, UpBatch};
use sync_proto::schema::{Authority, Modality};
use sync_proto::{Lane, Seq, Value, Version};

use crate::rig::{Device, Rig, gone, live, outcomes, put, rows, table};

/// Deterministic shuffles: every run sees the same orders, and they are named in a failure.
fn shuffled<T: Clone>(items: &[T], seed: u64) -> Vec<T> {
    let mut items = items.to_vec();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for at in (1..items.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        items.swap(at, usize::try_from(state % (at as u64 + 1)).unwrap());
    }
    items
}

fn batches(device: &Device) -> Vec<UpBatch> {
    let state = |prev, last, list| device.batch(Lane::State, prev, last, &[rows("shadow", list)]);
    let mutable =
        |prev, last, list| device.batch(Lane::Mutable, prev, last, &[rows("orders", list)]);
    vec![
        state(0, 4, vec![put(2, "a", 1), put(3, "b", 1)]),
        state(4, 8, vec![put(5, "a", 2), gone(7, "b")]),
        state(8, 9, vec![put(9, "b", 3)]),
        mutable(0, 5, vec![put(1, "x", 1), put(4, "y", 1)]),
        mutable(5, 11, vec![gone(6, "x"), put(10, "y", 2), put(11, "z", 1)]),
    ]
}

#[tokio::test]
async fn five_deliveries_in_any_order_are_one_application() {
    for seed in 1..=8 {
        let rig = Rig::new();
        let mut device = Device::new(
            "gw",
            vec![
                table("shadow", Modality::State, Authority::Device),
                table("orders", Modality::Mutable, Authority::Device),
            ],
        );
        device.greet(&rig.hub).await;
        let once = batches(&device);
        for batch in shuffled(&once, seed) {
            device.up(&rig.hub, &batch).await;
        }
        let end_state = vec![("t:a".to_owned(), Value::Int(2)), ("t:b".to_owned(), Value::Int(3))];
        let end_mutable =
            vec![("t:y".to_owned(), Value::Int(2)), ("t:z".to_owned(), Value::Int(1))];
        assert_eq!(live(&rig, "shadow").await, end_state, "seed {seed}");
        assert_eq!(live(&rig, "orders").await, end_mutable, "seed {seed}");

        let stored = contents(&rig).await;
        let counts = rig.state_counts("shadow").await;
        let five_times: Vec<UpBatch> = std::iter::repeat_n(once, 5).flatten().collect();
        for batch in shuffled(&five_times, seed + 100) {
            let receipt = device.up(&rig.hub, &batch).await;
            let end = if batch.lane == Lane::State { 9 } else { 11 };
            assert_eq!(receipt.watermark, Seq(end), "seed {seed}");
        }
        assert_eq!(rig.state_counts("shadow").await, counts, "seed {seed}");
        assert_eq!(contents(&rig).await, stored, "seed {seed}: rows keep version and time");
    }
}

/// Every stored row with its version and the time of its last write.
async fn contents(rig: &Rig) -> Vec<String> {
    let page = PageRequest { after: None, source: None, limit: 1000 };
    let (shadow, orders) = (rig.dataspace("shadow").await, rig.dataspace("orders").await);
    let mut rows = rig.hub.state().list(&shadow, page.clone()).await.unwrap().rows;
    rows.extend(rig.hub.mutable().list(&orders, page).await.unwrap().rows);
    rows.into_iter().map(|row| format!("{row:?}")).collect()
}

#[tokio::test]
async fn a_device_authoritative_table_feeds_nobody() {
    let rig = Rig::new();
    let mut device = Device::new("gw", vec![table("shadow", Modality::State, Authority::Device)]);
    device.greet(&rig.hub).await;
    let batch = device.batch(Lane::State, 0, 1, &[rows("shadow", vec![put(1, "a", 1)])]);
    device.up(&rig.hub, &batch).await;
    assert_eq!(rig.state_counts("shadow").await, (1, 1, 0));
}

#[tokio::test]
async fn the_same_bytes_get_the_same_receipt_with_its_rejections() {
    let rig = Rig::new();
    let mut device = Device::new("gw", vec![table("shadow", Modality::State, Authority::Device)]);
    device.greet(&rig.hub).await;
    let no_key = sync_proto::rows::Row {
        number: 2,
        base: None,
        values: vec![Value::Null, Value::Int(1)],
        deleted: false,
    };
    let batch = device.batch(Lane::State, 0, 3, &[rows("shadow", vec![put(1, "a", 1), no_key])]);
    let first = device.up(&rig.hub, &batch).await;
    assert_eq!(outcomes(&first), [(2, "null_key")]);
    let again: Vec<Receipt> =
        vec![device.up(&rig.hub, &batch).await, device.up(&rig.hub, &batch).await];
    assert_eq!(again, [first.clone(), first]);
    let lineage =
        &rig.hub.lineages().devices(&device.credential.project).await.unwrap()[0].lineages;
    assert_eq!((lineage[0].orphans, lineage[0].quarantine()), (1, 1));
    let counted: Vec<u64> = lineage[0].lanes[0].counters.iter().map(|(_, count)| *count).collect();
    // applied, duplicate, stale, diverged, conflict, rejected
    assert_eq!(counted, [1, 4, 0, 0, 0, 1]);
}

#[tokio::test]
async fn the_same_rows_in_another_cut_are_duplicates() {
    let rig = Rig::new();
    let mut device = Device::new("gw", vec![table("shadow", Modality::State, Authority::Device)]);
    device.greet(&rig.hub).await;
    let list = vec![put(1, "a", 1), put(2, "b", 1), put(4, "c", 1)];
    device
        .up(&rig.hub, &device.batch(Lane::State, 0, 2, &[rows("shadow", list[..2].to_vec())]))
        .await;
    let counts = rig.state_counts("shadow").await;
    let receipt =
        device.up(&rig.hub, &device.batch(Lane::State, 0, 4, &[rows("shadow", list)])).await;
    assert_eq!(outcomes(&receipt), [(1, "duplicate"), (2, "duplicate")]);
    assert_eq!(receipt.watermark, Seq(4));
    let (rows, history, _) = rig.state_counts("shadow").await;
    assert_eq!((rows, history), (counts.0 + 1, counts.1 + 1));
}

#[tokio::test]
async fn one_version_with_two_contents_keeps_the_first() {
    for (name, modality, lane) in
        [("shadow", Modality::State, Lane::State), ("orders", Modality::Mutable, Lane::Mutable)]
    {
        let rig = Rig::new();
        let mut device = Device::new("gw", vec![table(name, modality, Authority::Device)]);
        device.greet(&rig.hub).await;
        device.up(&rig.hub, &device.batch(lane, 0, 1, &[rows(name, vec![put(1, "a", 1)])])).await;
        let other = device.batch(lane, 0, 1, &[rows(name, vec![put(1, "a", 2)])]);
        let receipt = device.up(&rig.hub, &other).await;
        assert_eq!(outcomes(&receipt), [(1, "diverged")]);
        assert_eq!(live(&rig, name).await, [("t:a".to_owned(), Value::Int(1))]);
    }
}

#[tokio::test]
async fn of_two_rows_of_one_key_the_newest_wins() {
    let rig = Rig::new();
    let mut device = Device::new("gw", vec![table("shadow", Modality::State, Authority::Device)]);
    device.greet(&rig.hub).await;
    let list = vec![put(1, "a", 1), put(3, "a", 3), put(2, "a", 2)];
    let receipt =
        device.up(&rig.hub, &device.batch(Lane::State, 0, 3, &[rows("shadow", list)])).await;
    assert_eq!(outcomes(&receipt), [(1, "stale"), (2, "stale")]);
    assert_eq!(rig.state_counts("shadow").await, (1, 1, 0));
    assert_eq!(live(&rig, "shadow").await, [("t:a".to_owned(), Value::Int(3))]);
}

#[tokio::test]
async fn a_taken_row_ends_the_orphan_of_its_older_versions() {
    let rig = Rig::new();
    let mut device = Device::new("gw", vec![table("shadow", Modality::State, Authority::Device)]);
    device.greet(&rig.hub).await;
    let mut nameless = rows("shadow", vec![put(1, "a", 1)]);
    nameless.columns[1] = String::new();
    let receipt = device.up(&rig.hub, &device.batch(Lane::State, 0, 1, &[nameless])).await;
    assert_eq!(outcomes(&receipt), [(1, "column_name")]);
    let orphans = "SELECT count(*) FROM orphans";
    assert_eq!(rig.count("hub.db", orphans), 1);
    let good = device.batch(Lane::State, 1, 2, &[rows("shadow", vec![put(2, "a", 1)])]);
    device.up(&rig.hub, &good).await;
    assert_eq!(rig.count("hub.db", orphans), 0);
}

#[tokio::test]
async fn a_version_too_far_above_is_set_aside() {
    for (name, modality, lane) in
        [("shadow", Modality::State, Lane::State), ("orders", Modality::Mutable, Lane::Mutable)]
    {
        let rig = Rig::new();
        let mut device = Device::new("gw", vec![table(name, modality, Authority::Device)]);
        device.greet(&rig.hub).await;
        let far = (1 << 40) + (1 << 20);
        let list = vec![put(1, "a", 1), put(far, "b", 1)];
        let receipt = device.up(&rig.hub, &device.batch(lane, 0, far, &[rows(name, list)])).await;
        assert_eq!(outcomes(&receipt), [(far, "version_range")]);
        assert_eq!(live(&rig, name).await, [("t:a".to_owned(), Value::Int(1))]);
        // The far version must not have pushed the next epoch's base.
        let welcome = device.next_epoch().greet(&rig.hub).await;
        assert!(welcome.base.0 < 1 << 30, "{}", welcome.base);
    }
}

/// A crash after the mutable plane took the rows and before the state store recorded the range.
#[tokio::test]
async fn rows_without_a_range_come_again_and_change_nothing() {
    let rig = Rig::new();
    let mut device = Device::new(
        "gw",
        vec![
            table("shadow", Modality::State, Authority::Device),
            table("orders", Modality::Mutable, Authority::Device),
        ],
    );
    device.greet(&rig.hub).await;
    let orders = rig.dataspace("orders").await;
    let taken = rows("orders", vec![put(1, "a", 1), put(2, "b", 1)]);
    let stored = taken.rows.iter().map(|row| UpRow {
        source_id: device.id,
        key: taken.key_of(row),
        seq: Seq(row.number),
        version: Version(row.number),
        base: None,
        values: taken.columns.iter().cloned().zip(row.values.clone()).collect(),
        deleted: false,
        hash: taken.hash_of(row),
    });
    rig.hub.mutable().insert(&orders, stored.collect()).await.unwrap();
    let rig = rig.reopen_after(|_| {});
    let before = contents(&rig).await;
    let batch = device.batch(Lane::Backfill, 0, 3, &[taken, rows("shadow", vec![put(3, "a", 1)])]);
    let receipt = device.up(&rig.hub, &batch).await;
    assert_eq!(outcomes(&receipt), [(1, "duplicate"), (2, "duplicate")]);
    assert_eq!(receipt.watermark, Seq(3));
    assert_eq!(contents(&rig).await[1..], before, "the mutable rows were not written again");
}
