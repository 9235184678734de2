//! Status: what it counts, what it calls an alarm, and that it says the same without an agent.

use capture::{DatabaseStatus, TableStatus, offline_quarantine, offline_status};
use sync_proto::message::TableState;

use crate::model::{Device, keyed};

const T: &str = "CREATE TABLE t(id INTEGER PRIMARY KEY, v); CREATE TABLE u(k PRIMARY KEY)";

fn table<'a>(status: &'a DatabaseStatus, name: &str) -> &'a TableStatus {
    status.tables.iter().find(|table| table.name == name).unwrap()
}

#[test]
fn pending_counts_keys_once_wherever_they_are() {
    let mut device = Device::new(T);
    device.sync();
    device.sql("INSERT INTO t VALUES(1, 'a'), (2, 'b'), (3, 'c'); INSERT INTO u VALUES('x')");
    device.set_bounds(2);
    device.housekeep();
    device.set_bounds(4096);
    device.sql("UPDATE t SET v = 'again' WHERE id < 3; UPDATE t SET v = 'more'");
    let status = device.capture.status().unwrap();
    let t = table(&status, "t");
    assert_eq!((t.pending, t.pending_more), (3, false));
    assert_eq!(table(&status, "u").pending, 1);
    assert_eq!(t.status, "live");
    let batches = device.fill(1);
    assert_eq!(table(&device.capture.status().unwrap(), "t").pending, 3, "until the receipt");
    for batch in &batches {
        device.deliver(batch);
    }
    let status = device.capture.status().unwrap();
    let t = table(&status, "t");
    assert_eq!(t.pending, 0);
    assert!(t.last_receipt.as_ref().is_some_and(|at| at.ends_with('Z') && at.len() == 20));
    assert_eq!(t.watermark, batches[0].last.0);
    assert_eq!(t.oldest_pending_s, None);
    assert_eq!(status.status, "healthy");
    assert_eq!(status.alarms, []);
}

#[test]
fn counting_a_long_backlog_stops_at_a_bound() {
    let mut device = Device::new(T);
    device.sync();
    device.sql(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40000)
         INSERT INTO t SELECT i, i FROM n",
    );
    let long_tail = device.capture.status().unwrap();
    assert!(table(&long_tail, "t").pending_more);
    device.housekeep();
    let folded = device.capture.status().unwrap();
    let t = table(&folded, "t");
    assert!(t.pending_more && t.pending >= 10_000 && t.pending < 20_000, "{t:?}");
}

#[test]
fn the_oldest_pending_key_ages() {
    let mut device = Device::new(T);
    device.sync();
    device.sql("INSERT INTO t VALUES(1, 'a')");
    device.housekeep();
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    device.sql("INSERT INTO t VALUES(2, 'b')");
    device.housekeep();
    let status = device.capture.status().unwrap();
    assert_eq!(table(&status, "t").oldest_pending_s, Some(1));
}

#[test]
fn what_does_not_progress_is_an_alarm() {
    let mut device = Device::new(T);
    device.sync();
    let states = [
        (TableState::Paused, "paused", "table_paused"),
        (
            TableState::AuthorityMismatch { hub: "cloud".to_owned() },
            "authority_mismatch",
            "authority_mismatch",
        ),
        (TableState::Refused { message: "too wide".to_owned() }, "refused", "table_refused_by_hub"),
    ];
    for (state, word, code) in states {
        device.hub.states.insert("t".to_owned(), state);
        device.greet();
        let status = device.capture.status().unwrap();
        assert_eq!(table(&status, "t").status, word);
        let alarm = &status.alarms[0];
        assert_eq!((alarm.code.as_str(), alarm.table.as_deref()), (code, Some("t")));
        assert_eq!(status.status, "degraded");
    }
    device.hub.states.clear();
    device.greet();
    assert_eq!(device.capture.status().unwrap().status, "healthy");
}

#[test]
fn the_file_says_the_same_without_an_agent() {
    let mut device =
        Device::with("CREATE TABLE t(a, b, PRIMARY KEY(a, b)); CREATE TABLE n(x)", |c| {
            c.overrides = vec![keyed("n", &[])];
        });
    device.sync();
    device.sql("INSERT INTO t VALUES(1, NULL), (2, 3)");
    device.sync();
    device.sql("INSERT INTO n VALUES(1)");
    let online = device.capture.status().unwrap();
    let rows = device.capture.quarantine().unwrap();
    let (path, config) = (device.path(), device.config.clone());
    let _dir = device.close();
    let offline = offline_status(&config).unwrap();
    assert_eq!(offline.epoch, online.epoch);
    assert_eq!(offline.alarms, online.alarms);
    assert_eq!(offline.alarms[0].code, "quarantine");
    for (offline, online) in offline.tables.iter().zip(&online.tables) {
        assert_eq!(offline.pending, online.pending);
        assert_eq!(offline.quarantine, online.quarantine);
        assert_eq!(offline.last_error, online.last_error);
        assert_eq!(offline.watermark, online.watermark);
    }
    assert_eq!(offline_quarantine(&path).unwrap(), rows);
    assert_eq!(rows.len(), 1);
}
