//! A long backlog costs no more per row than a short one, and holds the write lock no longer.

use std::time::{Duration, Instant};

use crate::model::Device;

/// Time that filling takes for each row, with so many entries waiting.
fn fill_cost(entries: u32) -> f64 {
    let mut device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v)");
    device.sync();
    device.sql(&format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {entries})
         INSERT INTO t SELECT i, 'value' || i FROM n"
    ));
    device.housekeep();
    let (mut spent, mut rows) = (Duration::ZERO, 0);
    for _round in 0..4 {
        // The pause that the last lock asked for is not filling's.
        std::thread::sleep(Duration::from_millis(100));
        let started = Instant::now();
        let batches = device.fill(1);
        spent += started.elapsed();
        for batch in &batches {
            let before: usize = device.hub.counts.values().sum();
            device.deliver(batch);
            rows += device.hub.counts.values().sum::<usize>() - before;
        }
    }
    assert!(rows > 400, "{rows}");
    spent.as_secs_f64() / rows as f64
}

#[test]
fn labelling_cost_per_row_does_not_grow_with_the_backlog() {
    let short = fill_cost(10_000);
    let long = fill_cost(300_000);
    let ratio = long / short;
    assert!(ratio < 3.0, "{:.1} µs and {:.1} µs a row", short * 1e6, long * 1e6);
}

#[test]
fn a_writer_with_a_short_timeout_never_fails_beside_a_drain() {
    for mode in ["WAL", "DELETE"] {
        let dir = crate::model::folder();
        crate::model::connect(&dir.path().join("app.db"))
            .execute_batch(&format!(
                "PRAGMA journal_mode = {mode}; CREATE TABLE t(id INTEGER PRIMARY KEY, v);
                 WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
                 INSERT INTO t SELECT i, i FROM n"
            ))
            .unwrap();
        let mut device = Device::on(dir, |_config| {});
        device.set_bounds(500);
        let path = device.path();
        let writer = std::thread::spawn(move || {
            let app = crate::model::connect(&path);
            app.busy_timeout(Duration::from_millis(100)).unwrap();
            for n in 0..400 {
                app.execute("UPDATE t SET v = ?1 WHERE id = ?1 % 50 + 1", [n]).unwrap();
                app.query_row("SELECT count(*) FROM t WHERE id < 100", [], |_row| Ok(())).unwrap();
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        while !writer.is_finished() {
            device.capture.housekeep().unwrap();
            for batch in device.fill(2) {
                device.deliver(&batch);
            }
        }
        writer.join().unwrap();
        device.sync();
        device.assert_equal("t", &["id"]);
    }
}

#[test]
fn the_wal_stays_short_when_only_we_write() {
    let mut device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v)");
    device.sql(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)
         INSERT INTO t SELECT i, i FROM n; PRAGMA wal_checkpoint(TRUNCATE)",
    );
    let wal = device.dir.path().join("app.db-wal");
    let mut longest = 0;
    for _step in 0..100_000 {
        let step = device.capture.housekeep().unwrap();
        longest = std::fs::metadata(&wal).unwrap().len().max(longest);
        if step.again.is_none() {
            break;
        }
    }
    let (_, folded) = device.waiting();
    assert!(folded > 50_000, "{folded}");
    // Twice SQLite's own bound of 1000 frames of 4,120 bytes.
    assert!(longest < 2 * 1000 * 4_120, "{longest}");
}
