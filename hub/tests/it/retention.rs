//! P8: history and superseded entries end by age; the feed from its start stays complete.

use std::time::Duration;

use hub::{Hub, HubOptions};
use sync_proto::Value;
use sync_proto::schema::{Authority, Modality};

use crate::rig::{Device, Rig, cloud_dataspace, table, text_key};

/// A hub that keeps nothing longer than it must.
fn forgetful() -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let options = HubOptions {
        retention: Duration::ZERO,
        reap_every: Duration::from_millis(20),
        ..HubOptions::default()
    };
    Rig { hub: Hub::open_embedded(&dir.path().join("data"), options).unwrap(), dir }
}

#[tokio::test]
async fn the_newest_entry_of_a_row_outlives_every_retention() {
    let rig = forgetful();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let mut follower =
        Device::new("gw-1", vec![table("settings", Modality::State, Authority::Cloud)]);
    follower.greet(&rig.hub).await;
    rig.put(&settings, &text_key("a"), &[("v", Value::Int(0))]).await.unwrap();
    follower.pull(&rig.hub).await;
    for n in 1..20 {
        rig.put(&settings, &text_key("a"), &[("v", Value::Int(n))]).await.unwrap();
        rig.put(&settings, &text_key("b"), &[("v", Value::Int(n))]).await.unwrap();
    }
    rig.delete(&settings, &text_key("b")).await.unwrap();
    assert_eq!(rig.state_counts("settings").await, (2, 40, 40));

    let hub = rig.hub.clone();
    let reaper = tokio::spawn(async move { hub.run_reaper().await });
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while rig.state_counts("settings").await != (2, 0, 2) {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", rig.state_counts("settings").await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    reaper.abort();

    let mut late = Device::new("gw-2", follower.tables.clone());
    late.greet(&rig.hub).await;
    for device in [&mut late, &mut follower] {
        let down = device.pull(&rig.hub).await;
        let rows: Vec<(i64, bool)> =
            down[0].rows.iter().map(|row| (row.number, row.deleted)).collect();
        assert_eq!(rows, [(20, false), (20, true)], "{}", device.credential.name);
    }
    let rig = rig.reopen_after(|_| {});
    follower.greet(&rig.hub).await;
    assert!(follower.pull(&rig.hub).await.is_empty(), "its cursor is still known");
}
