//! After `uninstall` the schema is byte for byte what it was, whatever it was, and the application
//! never noticed.

use rusqlite::Connection;

use crate::model::{Device, connect, folder, keyed};

fn schema(conn: &Connection) -> Vec<(String, String, String, Option<String>)> {
    conn.prepare("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name")
        .unwrap()
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .unwrap()
        .collect::<rusqlite::Result<_>>()
        .unwrap()
}

const SCHEMAS: [&str; 8] = [
    "CREATE TABLE t(id INTEGER PRIMARY KEY, v)",
    "CREATE TABLE t(id INTEGER PRIMARY KEY AUTOINCREMENT, v); INSERT INTO t(v) VALUES(1)",
    "CREATE TABLE t(a, b, PRIMARY KEY(a, b)) WITHOUT ROWID; CREATE INDEX i ON t(b); \
     INSERT INTO t VALUES(1, 2); ANALYZE",
    "CREATE TABLE t(k ANY PRIMARY KEY, g TEXT AS (k || 'x')) STRICT;
     CREATE TRIGGER own AFTER INSERT ON t BEGIN UPDATE t SET k = k WHERE k = NEW.k; END",
    "CREATE TABLE \"t\"\"[`\"('select' PRIMARY KEY); CREATE VIEW v AS SELECT * FROM \"t\"\"[`\"",
    "CREATE VIRTUAL TABLE f USING fts5(x); CREATE TABLE t(id INTEGER PRIMARY KEY)",
    "CREATE TABLE p(id INTEGER PRIMARY KEY);
     CREATE TABLE t(id INTEGER PRIMARY KEY, p REFERENCES p)",
    "CREATE TABLE free(a, b); CREATE TABLE doc(x)",
];

#[test]
fn the_schema_is_what_it_was() {
    for sql in SCHEMAS {
        let dir = folder();
        let app = connect(&dir.path().join("app.db"));
        app.execute_batch(sql).unwrap();
        let before = schema(&app);
        let mut device = Device::on(dir, |config| {
            if sql.contains("free") {
                config.overrides = vec![keyed("free", &["a", "b"]), keyed("doc", &[])];
            }
        });
        device.sync();
        assert_ne!(schema(&app), before);
        // Statistics of our own tables go with them.
        app.execute_batch("ANALYZE").unwrap();
        let had_statistics = before.iter().any(|(_, name, ..)| name == "sqlite_stat1");
        let path = device.path();
        let _dir = device.close();
        assert!(capture::uninstall(&path).unwrap());
        let mut after = schema(&app);
        if !had_statistics {
            after.retain(|(_, name, ..)| !name.starts_with("sqlite_stat"));
        }
        assert_eq!(after, before, "{sql}");
        let leftovers: i64 = app
            .query_row(
                "SELECT count(*) FROM sqlite_stat1 WHERE tbl LIKE '\\_rowtide%' ESCAPE '\\'",
                [],
                |row| row.get(0),
            )
            .unwrap();
        assert_eq!(leftovers, 0);
        assert!(!capture::uninstall(&path).unwrap(), "there is nothing more");
        let check: String = app.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok");
    }
}

#[test]
fn a_long_log_goes_in_short_steps_beside_a_writer() {
    let device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v)");
    device.sql(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)
         INSERT INTO t SELECT i, i FROM n",
    );
    let path = device.path();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (path, stop) = (path.clone(), stop.clone());
        move || {
            let app = connect(&path);
            app.busy_timeout(std::time::Duration::from_millis(200)).unwrap();
            let mut writes = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                app.execute("INSERT INTO t(v) VALUES('beside')", []).unwrap();
                writes += 1;
            }
            writes
        }
    });
    let _dir = device.close();
    assert!(capture::uninstall(&path).unwrap());
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(writer.join().unwrap() > 0);
    assert_eq!(schema(&connect(&path)).len(), 1);
}

#[test]
fn installing_again_begins_another_life() {
    let mut device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v)");
    device.sql("INSERT INTO t VALUES(1, 'a')");
    device.sync();
    let before = device.capture.facts().unwrap().hello;
    capture::uninstall(&device.path()).unwrap();
    let error = device.capture.housekeep().unwrap_err();
    assert!(error.to_string().contains("removed"), "{error}");
    device.sql("UPDATE t SET v = 'meanwhile'");
    device.reopen();
    let after = device.capture.facts().unwrap().hello;
    assert_ne!(after.epoch, before.epoch);
    device.sync();
    device.assert_equal("t", &["id"]);
}
