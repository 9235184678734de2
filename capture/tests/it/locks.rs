//! Locks of others: waited for outside our own, for a bounded time, and then told as busy.

use std::time::{Duration, Instant};

use capture::{CaptureError, ErrorClass};
use sync_proto::{Lane, Seq};

use crate::model::{Device, connect, folder};

/// Runs `during` while an application's connection is inside the transaction that `begin` opens.
fn holding<T>(device: &mut Device, begin: &str, during: impl FnOnce(&mut Device) -> T) -> T {
    let app = device.app();
    app.execute_batch(&format!("{begin}; UPDATE t SET v = v + 1")).unwrap();
    let outcome = during(device);
    app.execute_batch("COMMIT").unwrap();
    outcome
}

fn device(mode: &str) -> Device {
    let dir = folder();
    connect(&dir.path().join("app.db"))
        .execute_batch(&format!(
            "PRAGMA journal_mode = {mode}; CREATE TABLE t(id INTEGER PRIMARY KEY, v);
             INSERT INTO t VALUES(1, 0)"
        ))
        .unwrap();
    let mut device = Device::on(dir, |_config| {});
    device.sync();
    device.sql("UPDATE t SET v = 5");
    device
}

#[test]
fn a_lock_that_is_given_back_is_waited_for() {
    for mode in ["WAL", "DELETE"] {
        let mut device = device(mode);
        let app = device.app();
        app.execute_batch("BEGIN EXCLUSIVE; UPDATE t SET v = v + 1").unwrap();
        let holder = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(400));
            app.execute_batch("COMMIT").unwrap();
        });
        let batches = device.fill(1);
        holder.join().unwrap();
        assert_eq!(batches.len(), 1, "{mode}");
        device.deliver(&batches[0]);
        device.sync();
        device.assert_equal("t", &["id"]);
    }
}

#[test]
fn a_lock_that_is_kept_is_told_and_costs_nothing() {
    for (mode, begin) in [("WAL", "BEGIN IMMEDIATE"), ("DELETE", "BEGIN EXCLUSIVE")] {
        let mut device = device(mode);
        let started = Instant::now();
        let outcome = holding(&mut device, begin, |device| {
            device.capture.fill(&[(Lane::Mutable, Seq::ZERO, 1)], 1000)
        });
        let error = outcome.unwrap_err();
        assert!(matches!(error, CaptureError::Busy { .. }), "{error:?}");
        assert_eq!(error.class(), ErrorClass::Retry);
        assert!(error.to_string().contains("app.db"), "{error}");
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
        device.sync();
        device.assert_equal("t", &["id"]);
    }
}

#[test]
fn a_reader_that_stays_does_not_stop_us() {
    let mut device = device("WAL");
    let reader = device.app();
    reader.execute_batch("BEGIN; SELECT count(*) FROM t").unwrap();
    reader.query_row("SELECT v FROM t", [], |_row| Ok(())).unwrap();
    device.sync();
    device.assert_equal("t", &["id"]);
    reader.execute_batch("COMMIT").unwrap();
}
