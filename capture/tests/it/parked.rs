//! Rows that the file refuses: kept, counted, replaced by what is newer, tried again.

use sync_proto::Value;
use sync_proto::rows::{Row, TableRows};

use crate::cloud::{Device, gone, int, put, table, text};

const CHECKED: &str = "CREATE TABLE t(id INTEGER PRIMARY KEY, v CHECK(v > 0), u UNIQUE)";

fn t(rows: Vec<Row>) -> [TableRows; 1] {
    [table("t", &["id", "v", "u"], rows)]
}

#[test]
fn a_newer_version_replaces_what_waits_and_an_older_one_does_not_pass() {
    let mut device = Device::new(CHECKED, &["t"]);
    device.take(&t(vec![put(1, vec![int(1), int(1), Value::Null])]));
    device.down(&t(vec![put(5, vec![int(1), int(-5), Value::Null])]));
    assert_eq!(device.quarantine()[0].number, 5);
    // What is older than the waiting version is stale, though the file holds version 1.
    let receipt = device.down(&t(vec![put(4, vec![int(1), int(4), Value::Null])]));
    assert_eq!(receipt.outcomes[0].outcome.name(), "stale");
    assert_eq!(device.rows("SELECT v FROM t"), [[int(1)]]);
    assert_eq!(receipt.highest.0, 5, "the waiting version is known");
    // A newer one that fails too takes its place; there is one entry a key.
    device.down(&t(vec![put(6, vec![int(1), int(-6), Value::Null])]));
    let parked = device.quarantine();
    assert_eq!((parked.len(), parked[0].number, parked[0].attempts), (1, 6, 1));
    assert!(parked[0].parked_at.ends_with('Z'));
    // A delete settles it.
    device.take(&t(vec![gone(7, vec![int(1), Value::Null, Value::Null])]));
    assert_eq!(device.quarantine(), []);
    assert_eq!(device.rows("SELECT * FROM t"), [[]; 0]);
}

#[test]
fn a_schema_change_lets_waiting_rows_in() {
    let mut device = Device::new(CHECKED, &["t"]);
    let rows = (1..=200).map(|id| put(1, vec![int(id), int(-id), text("x")]));
    device.down(&t(rows.collect()));
    assert_eq!(device.quarantine().len(), 200);
    device
        .app()
        .execute_batch(
            "BEGIN; CREATE TABLE new(id INTEGER PRIMARY KEY, v CHECK(v > -150), u);
             INSERT INTO new SELECT * FROM t; DROP TABLE t; ALTER TABLE new RENAME TO t; COMMIT",
        )
        .unwrap();
    device.settle();
    device.welcome();
    device.settle();
    assert_eq!(device.rows("SELECT count(*), min(v) FROM t"), [[int(149), int(-149)]]);
    let left = device.quarantine();
    assert_eq!(left.len(), 51);
    assert!(left.iter().all(|row| row.code == "check" && row.attempts >= 2), "{:?}", left[0]);
    // The values that came are exact, and the row is the hub's: no surplus, nothing to send.
    assert_eq!(device.rows("SELECT DISTINCT u FROM t"), [[text("x")]]);
    assert_eq!(device.capture.status().unwrap().tables[0].surplus, 0);
}

#[test]
fn what_waits_survives_a_restart_with_every_value_exact() {
    let schema = "CREATE TABLE t(id INTEGER PRIMARY KEY, v, open CHECK(open = 1))";
    let mut device = Device::new(schema, &["t"]);
    let odd = [
        Value::Text(vec![0xff, 0, 0xc3]),
        Value::Blob(Vec::new()),
        Value::Real(-0.0),
        Value::Real(f64::INFINITY),
        int(i64::MIN),
        text(""),
    ];
    let rows = (1..).zip(&odd).map(|(id, value)| put(1, vec![int(id), value.clone(), int(0)]));
    device.down(&[table("t", &["id", "v", "open"], rows.collect())]);
    let mut device = device.restart();
    device.settle();
    assert_eq!(device.quarantine().len(), odd.len());
    device
        .app()
        .execute_batch(
            "BEGIN; CREATE TABLE new(id INTEGER PRIMARY KEY, v, open);
             DROP TABLE t; ALTER TABLE new RENAME TO t; COMMIT",
        )
        .unwrap();
    device.settle();
    device.welcome();
    device.settle();
    let stored: Vec<Value> =
        device.rows("SELECT v FROM t ORDER BY id").into_iter().flatten().collect();
    assert_eq!(stored, odd);
    assert_eq!(device.quarantine(), []);
}

#[test]
fn quarantine_counts_and_degrades_the_status() {
    let mut device = Device::new(CHECKED, &["t"]);
    device.down(&t(vec![
        put(1, vec![int(1), int(-1), Value::Null]),
        put(1, vec![int(2), int(1), Value::Null]),
    ]));
    let status = device.capture.status().unwrap();
    assert_eq!(status.tables[0].quarantine, 1);
    assert_eq!(status.status, "degraded");
}
