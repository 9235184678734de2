//! The feed down: in commit order, complete from its start, and no position is ever missed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hub::catalog::NewDataspace;
use hub::plane::FeedRequest;
use sync_proto::message::{
    Control, DownOutcome, DownReceipt, Outcome, Reason, Refusal, ToDevice, ToHub,
};
use sync_proto::rows::{TableRows, unpack};
use sync_proto::schema::{Affinity, Authority, Modality, Scope};
use sync_proto::{Cursor, Value, Version};

use crate::rig::{Device, Rig, cloud_dataspace, column, refusal, table, text_key, write_of};

fn settings_device(name: &str) -> Device {
    Device::new(name, vec![table("settings", Modality::State, Authority::Cloud)])
}

/// (key, version, deleted) of what came down.
fn fed(tables: &[TableRows]) -> Vec<(String, i64, bool)> {
    let rows = tables.iter().flat_map(|table| table.rows.iter().map(move |row| (table, row)));
    rows.map(|(table, row)| (table.key_of(row).to_string(), row.number, row.deleted)).collect()
}

#[tokio::test]
async fn changes_come_down_once_and_the_newest_only() {
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let mut device = settings_device("gw");
    device.greet(&rig.hub).await;
    assert!(device.pull(&rig.hub).await.is_empty());
    assert_eq!(device.cursor, Cursor::ZERO);

    rig.put(&settings, &text_key("a"), &[("v", Value::Int(1))]).await.unwrap();
    rig.put(&settings, &text_key("b"), &[("v", Value::Int(1))]).await.unwrap();
    rig.put(&settings, &text_key("a"), &[("v", Value::Int(2))]).await.unwrap();
    let down = device.pull(&rig.hub).await;
    assert_eq!(fed(&down), [("t:b".to_owned(), 1, false), ("t:a".to_owned(), 2, false)]);
    assert_eq!(down[0].rows[1].values, [Value::text("a"), Value::Int(2)]);
    assert!(device.pull(&rig.hub).await.is_empty());

    rig.delete(&settings, &text_key("a")).await.unwrap();
    assert_eq!(fed(&device.pull(&rig.hub).await), [("t:a".to_owned(), 3, true)]);

    let mut late = settings_device("gw-2");
    late.greet(&rig.hub).await;
    let snapshot = fed(&late.pull(&rig.hub).await);
    assert_eq!(snapshot, [("t:b".to_owned(), 1, false), ("t:a".to_owned(), 3, true)]);
}

#[tokio::test]
async fn a_repeated_request_gets_the_same_batch() {
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let mut device = settings_device("gw");
    device.greet(&rig.hub).await;
    rig.put(&settings, &text_key("a"), &[("v", Value::Int(1))]).await.unwrap();
    let first = device.send(&rig.hub, device.down_request(0)).await;
    assert_eq!(device.send(&rig.hub, device.down_request(0)).await, first);
}

#[tokio::test]
async fn a_large_feed_comes_in_bounded_batches() {
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let mut device = settings_device("gw");
    device.greet(&rig.hub).await;
    let large = Value::Blob(vec![7; 60_000]);
    for n in 0..12 {
        rig.put(&settings, &text_key(&n.to_string()), &[("v", large.clone())]).await.unwrap();
    }
    let huge = Value::Blob(vec![7; 2_000_000]);
    rig.put(&settings, &text_key("huge"), &[("v", huge)]).await.unwrap();
    let mut sizes = Vec::new();
    loop {
        let batch = device.pull_batch(&rig.hub, 0).await;
        let rows: usize = unpack(&batch.rows).unwrap().iter().map(|table| table.rows.len()).sum();
        if rows == 0 {
            break;
        }
        sizes.push(rows);
    }
    assert_eq!(sizes, [4, 4, 4, 1], "256 KiB a batch, and a larger row alone");
}

#[tokio::test]
async fn many_small_rows_page_without_a_gap() {
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let mut device = settings_device("gw");
    device.greet(&rig.hub).await;
    for n in 0..2_500 {
        rig.put(&settings, &text_key(&format!("{n:05}")), &[("v", Value::Int(n))]).await.unwrap();
    }
    let mut keys = Vec::new();
    while let Some(rows) = Some(fed(&device.pull(&rig.hub).await)).filter(|rows| !rows.is_empty()) {
        assert!(rows.len() <= 2_000);
        keys.extend(rows.into_iter().map(|(key, ..)| key));
    }
    let expected: Vec<String> = (0..2_500).map(|n| format!("t:{n:05}")).collect();
    assert_eq!(keys, expected);
}

/// Writers of two hubs over one store, and readers that never step back: if an entry became
/// visible below a position that was read already, some reader would miss it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_writers_leave_no_position_behind() {
    const WRITERS: i64 = 8;
    const WRITES: i64 = 60;
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let beside = hub::Hub::open_embedded(&rig.data(), hub::HubOptions::default()).unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let hub = if writer % 2 == 0 { rig.hub.clone() } else { beside.clone() };
        let settings = settings.clone();
        writers.spawn(async move {
            for n in 0..WRITES {
                let key = text_key(&format!("{writer}-{n}"));
                let values = [("v", Value::Int(n))];
                hub.write(write_of(&settings, &key, Some(&values))).await.unwrap();
            }
        });
    }
    let mut readers = tokio::task::JoinSet::new();
    for reader in 0..4 {
        let hub = if reader % 2 == 0 { rig.hub.clone() } else { beside.clone() };
        let dataspaces = [(settings.number, settings.own_source())].into();
        readers.spawn(async move {
            let mut request = FeedRequest { after: Cursor::ZERO, dataspaces, entries_max: 7 };
            let mut seen = Vec::new();
            while seen.len() < usize::try_from(WRITERS * WRITES).unwrap() {
                let page = hub.state().feed(request.clone()).await.unwrap();
                assert!(page.entries.iter().all(|entry| entry.position > request.after));
                request.after = page.end;
                seen.extend(page.entries.into_iter().map(|entry| entry.key.to_string()));
            }
            seen
        });
    }
    let read = tokio::time::timeout(Duration::from_secs(60), readers.join_all()).await;
    let read = read.expect("every reader sees every entry");
    writers.join_all().await;
    assert!(read.windows(2).all(|pair| pair[0] == pair[1]), "all readers see one order");
    let per_writer = |writer: i64| {
        let prefix = format!("t:{writer}-");
        let own = read[0].iter().filter_map(|key| key.strip_prefix(&prefix));
        own.map(|n| n.parse().unwrap()).collect::<Vec<i64>>()
    };
    for writer in 0..WRITERS {
        assert_eq!(per_writer(writer), (0..WRITES).collect::<Vec<i64>>(), "in commit order");
    }
}

/// The quickest of several waits counts: a busy machine delays some, but only a signal makes any
/// quicker than the next look at the store.
#[tokio::test]
async fn a_waiting_request_is_woken_by_a_write() {
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let mut device = settings_device("gw");
    device.greet(&rig.hub).await;
    let mut quickest = Duration::MAX;
    for n in 0..5 {
        let (hub, mut waiting) = (rig.hub.clone(), device.clone());
        let wait = tokio::spawn(async move { waiting.pull_batch(&hub, 20_000).await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        let written = Instant::now();
        rig.put(&settings, &text_key("a"), &[("v", Value::Int(n))]).await.unwrap();
        let batch = wait.await.unwrap();
        quickest = quickest.min(written.elapsed());
        assert_eq!(fed(&unpack(&batch.rows).unwrap()).len(), 1);
        device.cursor = batch.next;
    }
    assert!(quickest < Duration::from_millis(400), "{quickest:?}");
}

#[tokio::test]
async fn a_waiting_request_sees_what_another_process_wrote() {
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let mut device = settings_device("gw");
    device.greet(&rig.hub).await;
    let beside = hub::Hub::open_embedded(&rig.data(), hub::HubOptions::default()).unwrap();
    let hub = rig.hub.clone();
    let wait = tokio::spawn(async move { device.pull_batch(&hub, 20_000).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let values = [("v", Value::Int(1))];
    beside.write(write_of(&settings, &text_key("a"), Some(&values))).await.unwrap();
    let batch = tokio::time::timeout(Duration::from_secs(3), wait).await.unwrap().unwrap();
    assert_eq!(fed(&unpack(&batch.rows).unwrap()).len(), 1);
}

#[tokio::test]
async fn an_empty_wait_ends_where_it_began() {
    let rig = Rig::new();
    let mut device = settings_device("gw");
    device.greet(&rig.hub).await;
    let started = Instant::now();
    let batch = device.pull_batch(&rig.hub, 300).await;
    assert_eq!((batch.prev, batch.next), (Cursor::ZERO, Cursor::ZERO));
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert!(unpack(&batch.rows).unwrap().is_empty());
}

#[tokio::test]
async fn a_wait_ends_when_the_epoch_is_closed() {
    let rig = Rig::new();
    let mut device = settings_device("gw");
    device.greet(&rig.hub).await;
    let (hub, waiting) = (rig.hub.clone(), device.clone());
    let wait = tokio::spawn(async move { waiting.send(&hub, waiting.down_request(20_000)).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    device.next_epoch().greet(&rig.hub).await;
    let answer = tokio::time::timeout(Duration::from_secs(3), wait).await.unwrap().unwrap();
    assert_eq!(refusal(answer), Refusal::EpochClosed);
}

#[tokio::test]
async fn scope_source_feeds_each_device_its_own_rows() {
    let rig = Rig::new();
    let new = NewDataspace { scope: Scope::Source, ..cloud_dataspace("settings") };
    let settings = rig.create(new).await;
    let mut devices = [settings_device("gw-1"), settings_device("gw-2")];
    for (n, device) in devices.iter_mut().enumerate() {
        device.tables[0].scope = Scope::Source;
        device.greet(&rig.hub).await;
        let values = [("v", Value::Int(i64::try_from(n).unwrap()))];
        let mut write = write_of(&settings, &text_key("a"), Some(&values));
        write.source_id = device.id;
        rig.hub.write(write).await.unwrap();
    }
    for (n, device) in devices.iter_mut().enumerate() {
        let down = device.pull(&rig.hub).await;
        let value = Value::Int(i64::try_from(n).unwrap());
        assert_eq!(down[0].rows.len(), 1);
        assert_eq!(down[0].rows[0].values[1], value);
    }
}

#[tokio::test]
async fn rows_come_under_the_devices_own_names() {
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let mut spec = table("app_settings", Modality::State, Authority::Cloud);
    spec.dataspace = "Settings".to_owned();
    spec.columns = vec![
        column("V", Affinity::Blob, 0),
        column("K", Affinity::Text, 1),
        column("local_only", Affinity::Text, 0),
    ];
    let mut device = Device::new("gw", vec![spec]);
    device.greet(&rig.hub).await;
    let values = [("v", Value::Int(1)), ("unknown_there", Value::Int(5))];
    rig.put(&settings, &text_key("a"), &values).await.unwrap();
    let down = device.pull(&rig.hub).await;
    assert_eq!(down[0].table, "app_settings");
    assert_eq!(down[0].columns, ["V", "K", "local_only"]);
    assert_eq!(down[0].key, [1]);
    assert_eq!(down[0].rows[0].values, [Value::Int(1), Value::text("a"), Value::Null]);
}

#[tokio::test]
async fn a_table_that_is_attached_later_gets_a_snapshot() {
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let limits = rig.create(cloud_dataspace("limits")).await;
    rig.put(&limits, &text_key("early"), &[("v", Value::Int(1))]).await.unwrap();
    rig.put(&settings, &text_key("a"), &[("v", Value::Int(1))]).await.unwrap();
    let mut device = settings_device("gw");
    device.greet(&rig.hub).await;
    device.pull(&rig.hub).await;

    device.tables.push(table("limits", Modality::State, Authority::Cloud));
    device.greet(&rig.hub).await;
    let order = ToDevice::Control(Control::Resnapshot);
    assert_eq!(device.send(&rig.hub, device.down_request(0)).await, order);
    assert_eq!(device.send(&rig.hub, device.down_request(0)).await, order, "until it is obeyed");
    device.cursor = Cursor::ZERO;
    let tables: Vec<String> =
        device.pull(&rig.hub).await.into_iter().map(|table| table.table).collect();
    assert_eq!(tables, ["limits", "settings"]);
    device.greet(&rig.hub).await;
    assert!(device.pull(&rig.hub).await.is_empty(), "once");
}

#[tokio::test]
async fn a_paused_table_gets_nothing_and_then_everything() {
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let mut device = settings_device("gw");
    device.greet(&rig.hub).await;
    rig.put(&settings, &text_key("a"), &[("v", Value::Int(1))]).await.unwrap();
    device.pull(&rig.hub).await;
    let lineages = rig.hub.lineages();
    lineages.set_paused(device.id, "app", "settings", true).await.unwrap();
    rig.put(&settings, &text_key("b"), &[("v", Value::Int(1))]).await.unwrap();
    assert!(device.pull(&rig.hub).await.is_empty());
    lineages.set_paused(device.id, "app", "settings", false).await.unwrap();
    let order = ToDevice::Control(Control::Resnapshot);
    assert_eq!(device.send(&rig.hub, device.down_request(0)).await, order);
    device.cursor = Cursor::ZERO;
    assert_eq!(fed(&device.pull(&rig.hub).await).len(), 2);
}

#[tokio::test]
async fn what_a_device_could_not_apply_stays_visible_until_it_is_superseded() {
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let mut device = settings_device("gw");
    device.greet(&rig.hub).await;
    rig.put(&settings, &text_key("a"), &[("v", Value::Null)]).await.unwrap();
    device.pull(&rig.hub).await;
    let reason = Reason { code: "constraint".to_owned(), message: "v is NOT NULL".to_owned() };
    let receipt = DownReceipt {
        database: device.database.clone(),
        epoch: device.epoch,
        cursor: device.cursor,
        outcomes: vec![DownOutcome {
            table: "settings".to_owned(),
            key: "t:a".to_owned(),
            version: Version(1),
            outcome: Outcome::Rejected(reason),
        }],
        highest: Version(1),
    };
    device.send(&rig.hub, ToHub::DownReceipt(receipt)).await;
    let project = device.credential.project.clone();
    let lineage = async |rig: &Rig| {
        rig.hub.lineages().device(&project, "gw").await.unwrap().unwrap().lineages.remove(0)
    };
    let shown = lineage(&rig).await;
    assert_eq!(shown.applied_cursor, device.cursor);
    assert_eq!(shown.down_outcomes[0].key, "t:a");
    assert_eq!(shown.down_outcomes[0].message, "constraint: v is NOT NULL");

    rig.put(&settings, &text_key("a"), &[("v", Value::Int(1))]).await.unwrap();
    assert_eq!(lineage(&rig).await.down_outcomes.len(), 1, "the device has not passed it yet");
    device.pull(&rig.hub).await;
    assert!(lineage(&rig).await.down_outcomes.is_empty());
}

#[tokio::test]
async fn values_of_every_class_come_down_exactly() {
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let mut device = settings_device("gw");
    device.greet(&rig.hub).await;
    let mut sent: BTreeMap<String, Value> = BTreeMap::new();
    for (n, value) in crate::ingest_values::every_class().into_iter().enumerate() {
        let key = format!("k{n:02}");
        let write = write_of(&settings, &text_key(&key), Some(&[("v", value.clone())]));
        rig.hub.write(write).await.unwrap();
        sent.insert(format!("t:{key}"), value);
    }
    let down = device.pull(&rig.hub).await;
    let came: BTreeMap<String, Value> = down[0]
        .rows
        .iter()
        .map(|row| (down[0].key_of(row).to_string(), row.values[1].clone()))
        .collect();
    assert_eq!(came, sent);
}
