//! Large batches beside an application that works: short locks, and a crash at any point (cases
//! APP-15 and APP-16).

use std::time::{Duration, Instant};

use crate::cloud::{Device, connect, int, put, table, text};

#[test]
fn app_15_a_crash_between_any_two_transactions_is_safe() {
    // Copies of the file and its WAL, taken while a batch is applied, are what a crash leaves.
    let schema = "CREATE TABLE t(id INTEGER PRIMARY KEY, v, pad); CREATE TABLE fired(n);
        CREATE TRIGGER t_i AFTER INSERT ON t BEGIN INSERT INTO fired VALUES(NEW.id); END;";
    let rows: i64 = 6_000;
    let mut device = Device::new(schema, &["t"]);
    let pad = text(&"x".repeat(100));
    let all = (1..=rows).map(|id| put(id, vec![int(id), int(id), pad.clone()])).collect();
    let batch = device.batch(&[table("t", &["id", "v", "pad"], all)]);
    let path = device.path().to_owned();
    let copies = tempfile::TempDir::new().unwrap();
    let target = copies.path().to_owned();
    let (done, stop) = std::sync::mpsc::sync_channel::<()>(1);
    let copier = std::thread::spawn(move || {
        let mut taken = Vec::new();
        while stop.try_recv().is_err() {
            let at = target.join(format!("{}.db", taken.len()));
            // A read transaction holds the file still while it is copied.
            let conn = connect(&path);
            conn.busy_timeout(Duration::from_secs(1)).unwrap();
            conn.execute("VACUUM INTO ?1", [at.to_str().unwrap()]).unwrap();
            taken.push(at);
            std::thread::sleep(Duration::from_millis(5));
        }
        taken
    });
    device.apply(&batch);
    done.send(()).unwrap();
    let taken = copier.join().unwrap();
    let mut partial = 0;
    for at in &taken {
        let conn = connect(at);
        let count: i64 = conn.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
        let known: i64 =
            conn.query_row("SELECT count(*) FROM _rowtide_rows", [], |row| row.get(0)).unwrap();
        let moved: i64 = conn
            .query_row(
                "SELECT count(*) FROM _rowtide_meta WHERE k = 'cursor_hi' AND v > 0",
                [],
                |row| row.get(0),
            )
            .unwrap();
        assert_eq!(count, known, "rows and versions go together");
        assert!(moved == 0 || count == rows, "the cursor moves with the last row");
        partial += i64::from(count > 0 && count < rows);
    }
    assert!(partial > 0, "no copy was taken midway: {} copies", taken.len());
    // The whole batch again, over each half of it: the same end, and no trigger fires twice.
    for at in taken.iter().rev().take(3) {
        let mut again = Device::on_copy(at, &["t"]);
        again.apply(&batch);
        assert_eq!(
            again.rows("SELECT count(*), count(DISTINCT n) FROM fired"),
            [[int(rows), int(rows)]]
        );
        assert_eq!(again.rows("SELECT count(*) FROM t"), [[int(rows)]]);
    }
}

#[test]
fn a_rollback_journal_serves_as_well() {
    let schema = "CREATE TABLE t(id INTEGER PRIMARY KEY, v, pad);
                  CREATE TABLE mine(id INTEGER PRIMARY KEY, at)";
    let mut device = Device::with_rollback_journal(schema, &["t"]);
    let path = device.path().to_owned();
    let (done, stop) = std::sync::mpsc::sync_channel::<()>(1);
    let neighbour = std::thread::spawn(move || {
        let app = connect(&path);
        let mut writes = 0_i64;
        while stop.try_recv().is_err() {
            app.execute("INSERT INTO mine(at) VALUES(?1)", [writes]).expect("no write fails");
            let read = app.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0));
            read.expect("no read fails");
            writes += 1;
            std::thread::sleep(Duration::from_millis(20));
        }
        writes
    });
    let rows = (1..=3_000).map(|id| put(1, vec![int(id), int(id), text("x")])).collect();
    let batch = device.batch(&[table("t", &["id", "v", "pad"], rows)]);
    assert_eq!(device.apply(&batch).outcomes, []);
    device.app().execute("UPDATE t SET v = 0 WHERE id <= 100", []).unwrap();
    device.settle();
    done.send(()).unwrap();
    assert!(neighbour.join().unwrap() > 5);
    assert_eq!(device.rows("SELECT count(*), sum(v = id) FROM t"), [[int(3_000), int(3_000)]]);
    let before = device.bytes();
    device.apply(&batch);
    assert_eq!(device.bytes(), before);
}

#[test]
fn app_16_a_large_snapshot_never_makes_a_writer_wait_too_long() {
    let schema = "CREATE TABLE t(id INTEGER PRIMARY KEY, v, pad);
                  CREATE TABLE mine(id INTEGER PRIMARY KEY, at)";
    let mut device = Device::new(schema, &["t"]);
    let path = device.path().to_owned();
    let (done, stop) = std::sync::mpsc::sync_channel::<()>(1);
    let writer = std::thread::spawn(move || {
        let app = connect(&path);
        let (mut writes, mut longest) = (0_i64, Duration::ZERO);
        while stop.try_recv().is_err() {
            let started = Instant::now();
            app.execute("INSERT INTO mine(at) VALUES(?1)", [writes]).expect("no write fails");
            longest = longest.max(started.elapsed());
            writes += 1;
            std::thread::sleep(Duration::from_millis(10));
        }
        (writes, longest)
    });
    let pad = text(&"x".repeat(60));
    for part in 0..5 {
        let ids = part * 10_000 + 1..=(part + 1) * 10_000;
        let rows = ids.map(|id| put(1, vec![int(id), int(id), pad.clone()])).collect();
        device.take(&[table("t", &["id", "v", "pad"], rows)]);
    }
    done.send(()).unwrap();
    let (writes, longest) = writer.join().unwrap();
    assert_eq!(device.rows("SELECT count(*) FROM t"), [[int(50_000)]]);
    assert_eq!(device.rows("SELECT count(*) FROM mine"), [[int(writes)]]);
    assert!(writes > 20, "the writer hardly ran: {writes} writes");
    assert!(longest < Duration::from_millis(100), "a write took {longest:?}");
    let wal = std::fs::metadata(device.path().with_file_name("app.db-wal")).unwrap().len();
    assert!(wal < 2 * 1_000 * 4_096 + (1 << 20), "the WAL has {wal} bytes");
}
