//! Enrolment on real schemas: patterns, refusals, and what an application's migrations do to it.

use capture::config::{DatabaseConfig, TableConfig};
use capture::{Capture, CaptureError};
use rusqlite::Connection;
use sync_proto::Lane;
use sync_proto::schema::{Authority, Modality};

use crate::model::{DEVICE, Device, config, connect, folder, keyed, open};

fn ours(conn: &Connection, kind: &str) -> Vec<(String, String)> {
    conn.prepare(
        "SELECT name, sql FROM sqlite_master WHERE name LIKE '\\_rowtide\\_%' ESCAPE '\\' \
         AND type = ?1 AND sql IS NOT NULL ORDER BY name",
    )
    .unwrap()
    .query_map([kind], |row| Ok((row.get(0)?, row.get(1)?)))
    .unwrap()
    .collect::<rusqlite::Result<_>>()
    .unwrap()
}

fn names(device: &mut Device) -> Vec<String> {
    let facts = device.capture.facts().unwrap();
    facts.hello.tables.into_iter().map(|table| table.name).collect()
}

fn skipped(device: &mut Device) -> Vec<(String, bool)> {
    let status = device.capture.status().unwrap();
    status
        .skipped
        .into_iter()
        .filter(|skipped| !skipped.table.starts_with("_rowtide_"))
        .map(|skipped| (skipped.table, skipped.refused))
        .collect()
}

#[test]
fn patterns_choose_and_every_other_table_has_a_reason() {
    let schema = "
        CREATE TABLE readings(id INTEGER PRIMARY KEY AUTOINCREMENT, v);
        CREATE TABLE tmp_a(id INTEGER PRIMARY KEY);
        CREATE TABLE nokey(v);
        CREATE TABLE django_migrations(id INTEGER PRIMARY KEY);
        CREATE TABLE Settings(k TEXT PRIMARY KEY);
        CREATE VIEW seen AS SELECT * FROM readings;
        CREATE VIRTUAL TABLE docs USING fts5(body);
        INSERT INTO readings(v) VALUES(1); ANALYZE;";
    let mut device = Device::with(schema, |config| {
        config.exclude = vec!["TMP_*".to_owned()];
        config.overrides =
            vec![TableConfig { authority: Authority::Cloud, ..TableConfig::new("settings") }];
    });
    assert_eq!(names(&mut device), ["Settings", "readings"]);
    let skipped = skipped(&mut device);
    let refused: Vec<&str> =
        skipped.iter().filter(|(_, refused)| *refused).map(|(name, _)| name.as_str()).collect();
    assert_eq!(refused, ["nokey"]);
    for name in ["tmp_a", "django_migrations", "seen", "docs", "docs_data", "sqlite_sequence"] {
        assert!(skipped.iter().any(|(skipped, _)| skipped == name), "{name} in {skipped:?}");
    }
    let alarms = device.capture.status().unwrap().alarms;
    assert_eq!(alarms.len(), 1, "{alarms:?}");
    assert_eq!(alarms[0].table.as_deref(), Some("nokey"));
    assert!(alarms[0].message.contains("key = ["), "{}", alarms[0].message);
}

#[test]
fn a_framework_table_is_enrolled_when_it_is_named() {
    let mut device = Device::with("CREATE TABLE schema_migrations(v TEXT PRIMARY KEY)", |config| {
        config.tables = vec!["*".to_owned(), "Schema_Migrations".to_owned()];
    });
    assert_eq!(names(&mut device), ["schema_migrations"]);
}

#[test]
fn what_can_never_be_enrolled_is_a_configuration_error() {
    let cases: [(&str, TableConfig, &str); 4] = [
        ("CREATE VIEW w AS SELECT 1", TableConfig::new("w"), "a view"),
        ("CREATE VIRTUAL TABLE w USING fts5(x)", TableConfig::new("w"), "a virtual table"),
        ("CREATE VIRTUAL TABLE v USING fts5(x)", TableConfig::new("v_data"), "a shadow table"),
        ("CREATE TABLE w(a)", keyed("w", &["b"]), "no such column"),
    ];
    for (schema, table, wanted) in cases {
        let dir = folder();
        let path = dir.path().join("app.db");
        connect(&path).execute_batch(schema).unwrap();
        let before = std::fs::read(&path).unwrap();
        let config = DatabaseConfig { overrides: vec![table.clone()], ..config(&path) };
        for error in [
            capture::check(&config).unwrap_err(),
            Capture::open(&config, dir.path(), DEVICE).unwrap_err(),
        ] {
            let CaptureError::Config { table: Some(name), reason, .. } = &error else {
                panic!("{error}");
            };
            assert_eq!(
                (name.as_str(), reason.contains(wanted)),
                (table.name.as_str(), true),
                "{error}"
            );
        }
        assert_eq!(std::fs::read(&path).unwrap(), before, "the file is untouched");
    }
}

#[test]
fn opening_again_changes_nothing() {
    let mut device = Device::new(
        "CREATE TABLE a(x, y, z, PRIMARY KEY(x, y, z)); CREATE TABLE \"b \"\"\"(k PRIMARY KEY);
         CREATE TABLE n(k TEXT COLLATE NOCASE PRIMARY KEY) WITHOUT ROWID",
    );
    device.sync();
    let version = |device: &Device| -> i64 {
        device.app().query_row("PRAGMA schema_version", [], |row| row.get(0)).unwrap()
    };
    let before = version(&device);
    device.reopen();
    device.sync();
    assert_eq!(version(&device), before);
}

#[test]
fn our_objects_parse_on_old_libraries_and_run_nothing_of_ours() {
    let device = Device::new(
        "CREATE TABLE a(x, y, z, PRIMARY KEY(x, y, z)); CREATE TABLE s(k TEXT PRIMARY KEY) STRICT",
    );
    let app = device.app();
    let mut count = 0;
    for kind in ["table", "index", "trigger"] {
        for (name, sql) in ours(&app, kind) {
            count += 1;
            let upper = sql.to_uppercase();
            for word in [
                "AUTOINCREMENT",
                "WITHOUT ROWID",
                "ON CONFLICT",
                "OR REPLACE",
                "STRICT",
                "JSON",
                "GENERATED",
                "RETURNING",
                "WITH ",
                "ROWTIDE_FN",
                "NULLS",
                "FILTER",
                "OVER(",
            ] {
                assert!(!upper.contains(word), "{name} has {word}: {sql}");
            }
            // An index with a condition is newer than 3.8 allows for our purposes.
            assert!(kind != "index" || !upper.contains("WHERE"), "{sql}");
        }
    }
    assert!(count > 12, "{count} objects looked at");
    // The library of the shell runs the triggers too.
    let shell = std::process::Command::new("sqlite3")
        .arg(device.path())
        .arg(".timeout 2000")
        .arg("INSERT INTO a VALUES(1, 2, 3); INSERT INTO s VALUES('k'); DELETE FROM s;")
        .output()
        .unwrap();
    assert!(shell.status.success(), "{shell:?}");
    assert_eq!(device.waiting().0, 3);
}

#[test]
fn new_columns_are_sent_under_new_numbers() {
    let mut device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v)");
    device.sql("INSERT INTO t VALUES(1, 'a'), (2, 'b')");
    device.sync();
    // One row is on its way, one waits, while the application adds a column with a value.
    device.sql("UPDATE t SET v = 'c' WHERE id = 1");
    let sent = device.fill(1);
    device.hub.take(&sent[0].frame);
    device.sql("UPDATE t SET v = 'd' WHERE id = 2; ALTER TABLE t ADD COLUMN w DEFAULT 7");
    assert!(device.fill(1).is_empty(), "nothing goes out before the schema is looked at");
    device.reopen();
    device.sync();
    device.assert_equal("t", &["id"]);
    device.sql("INSERT INTO t VALUES(3, 'e', 8); ALTER TABLE t DROP COLUMN v");
    device.sync();
    device.assert_equal("t", &["id"]);
}

#[test]
fn a_rebuilt_table_is_sent_again_and_absence_is_no_delete() {
    let mut device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v)");
    device.sql("INSERT INTO t VALUES(1, 'a'), (2, 'b'), (3, 'c')");
    device.sync();
    device.sql("UPDATE t SET v = 'unsent' WHERE id IN (1, 2)");
    device.sql(
        "BEGIN; CREATE TABLE t2(id INTEGER PRIMARY KEY, v, w); INSERT INTO t2 SELECT id, v, 'new' \
         FROM t WHERE id <> 2; DROP TABLE t; ALTER TABLE t2 RENAME TO t; COMMIT",
    );
    device.sync();
    let live = device.hub.live("t");
    assert_eq!(live.len(), 3, "row 2 and its last known state stay at the hub: {live:?}");
    assert_eq!(live["i:1"]["w"], sync_proto::Value::text("new"));
    assert_eq!(device.parked(), [("t".into(), "i:2".into(), "row_absent".into())]);
    // Deletes after the rebuild are deletes.
    device.sql("DELETE FROM t WHERE id = 3; INSERT INTO t VALUES(2, 'back', 1)");
    device.sync();
    assert_eq!(device.parked(), []);
    device.assert_equal("t", &["id"]);
}

#[test]
fn a_dropped_table_deletes_nothing_and_may_come_back() {
    let mut device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v)");
    device.sql("INSERT INTO t VALUES(1, 'a'), (2, 'b')");
    device.sync();
    device.sql("DELETE FROM t WHERE id = 1; DROP TABLE t");
    device.sync();
    assert_eq!(device.hub.live("t").len(), 2);
    let status = device.capture.status().unwrap();
    assert_eq!(status.tables[0].status, "gone");
    assert_eq!(status.alarms[0].code, "table_gone");
    device.sql("CREATE TABLE t(id INTEGER PRIMARY KEY, v); INSERT INTO t VALUES(2, 'new')");
    device.sync();
    assert_eq!(device.hub.live("t")["i:2"]["v"], sync_proto::Value::text("new"));
    assert_eq!(device.parked(), [("t".into(), "i:1".into(), "row_absent".into())]);
}

#[test]
fn a_renamed_table_is_another_table() {
    let mut device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v)");
    device.sql("INSERT INTO t VALUES(1, 'a')");
    device.sync();
    device.sql("ALTER TABLE t RENAME TO u; INSERT INTO u VALUES(2, 'b')");
    device.sync();
    device.assert_equal("u", &["id"]);
    assert_eq!(device.hub.live("t").len(), 1);
    let triggers = ours(&device.app(), "trigger");
    assert_eq!(triggers.len(), 4, "{triggers:?}");
    assert!(triggers.iter().all(|(_, sql)| sql.contains("ON \"u\"")), "{triggers:?}");
}

#[test]
fn damaged_triggers_are_put_right_and_the_table_is_seeded() {
    let mut device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v)");
    device.sync();
    let before = ours(&device.app(), "trigger");
    let (name, _) = &before[0];
    device.sql(&format!("DROP TRIGGER {name}; INSERT INTO t VALUES(1, 'unseen'); DELETE FROM t"));
    device.sql("INSERT INTO t VALUES(2, 'unseen')");
    device.sync();
    assert_eq!(ours(&device.app(), "trigger"), before);
    device.assert_equal("t", &["id"]);
}

#[test]
fn another_primary_key_is_another_table() {
    let mut device = Device::new("CREATE TABLE t(a PRIMARY KEY, b)");
    device.sql("INSERT INTO t VALUES(1, 10), (2, 20)");
    device.sync();
    device.sql("UPDATE t SET b = 30 WHERE a = 1");
    device.sql(
        "CREATE TABLE t2(a, b, PRIMARY KEY(b, a)); INSERT INTO t2 SELECT * FROM t; DROP TABLE t;
         ALTER TABLE t2 RENAME TO t",
    );
    device.sync();
    for (key, _) in device.hub.live("t").iter().filter(|(key, _)| key.contains(',')) {
        assert!(["i:30,i:1", "i:20,i:2"].contains(&key.as_str()), "{key}");
    }
    assert_eq!(device.hub.live("t").keys().filter(|key| key.contains(',')).count(), 2);
}

#[test]
fn new_tables_are_enrolled_while_running_and_the_log_grows_wider() {
    let mut device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v)");
    device.sync();
    device
        .sql("CREATE TABLE w(a, b, c, v, PRIMARY KEY(a, b, c)); INSERT INTO w VALUES(1, 2, 3, 4)");
    let step = device.capture.housekeep().unwrap();
    assert!(step.greet_again, "the hub has to hear of the table");
    device.greet();
    device.sql("INSERT INTO t VALUES(1, 'a'); UPDATE w SET c = 5");
    device.sync();
    device.assert_equal("w", &["a", "b", "c"]);
    device.assert_equal("t", &["id"]);
}

#[test]
fn rows_that_were_there_before_go_by_the_backfill_lane_in_any_key_order() {
    let schema = "CREATE TABLE t(a TEXT COLLATE NOCASE, b, v, PRIMARY KEY(a, b));
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
        INSERT INTO t SELECT printf('%s%d', CASE i % 3 WHEN 0 THEN 'a' WHEN 1 THEN 'A' ELSE 'b' END,
        i / 7), CASE i % 5 WHEN 0 THEN i WHEN 1 THEN i * 1.5 WHEN 2 THEN 't' || i ELSE
        CAST('b' || i AS BLOB) END, i FROM n";
    let mut device = Device::new(schema);
    device.sync();
    device.assert_equal("t", &["a", "b"]);
    assert_eq!(device.hub.live("t").len(), 5000);
    assert!(device.hub.batches.iter().all(|batch| batch.lane == Lane::Backfill));
}

#[test]
fn seeding_goes_on_where_it_stopped() {
    let mut device = Device::new(
        "CREATE TABLE t(id INTEGER PRIMARY KEY, v);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
         INSERT INTO t SELECT i, i FROM n",
    );
    let mut seeded = Vec::new();
    for _reopened in 0..4 {
        device.capture.housekeep().unwrap();
        device.reopen();
        seeded.push(device.waiting().0 + device.waiting().1);
    }
    assert!(seeded[0] > 0 && seeded.windows(2).all(|pair| pair[0] <= pair[1]), "{seeded:?}");
    device.sync();
    device.assert_equal("t", &["id"]);
}

#[test]
fn reseed_sends_everything_again() {
    let mut device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v)");
    device.sql("INSERT INTO t VALUES(1, 'a'), (2, 'b')");
    device.sync();
    let applied = device.hub.counts["applied"];
    capture::reseed(&device.path(), "T").unwrap();
    device.sync();
    assert_eq!(device.hub.counts["applied"], applied + 2, "newer versions of the same rows");
    let error = capture::reseed(&device.path(), "nope").unwrap_err();
    assert!(error.to_string().contains("not enrolled"), "{error}");
}

#[test]
fn another_layout_is_left_alone() {
    let device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY)");
    device.sql("UPDATE _rowtide_meta SET v = 99 WHERE k = 'format'");
    let dir = device.dir.path().to_owned();
    let error = Capture::open(&device.config, &dir.join("state"), DEVICE).unwrap_err();
    assert!(error.to_string().contains("layout 99"), "{error}");
    device.sql("UPDATE _rowtide_meta SET v = 1 WHERE k = 'format'");
    drop(open(&device.config, &dir));
}

#[test]
fn another_modality_takes_what_waits_along() {
    for folded in [false, true] {
        let mut device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v)");
        device.sql("INSERT INTO t VALUES(1, 'a'), (2, 'b')");
        device.sync();
        device.sql("DELETE FROM t WHERE id = 1; UPDATE t SET v = 'unsent'");
        if folded {
            device.set_bounds(1);
            device.housekeep();
            device.set_bounds(4096);
        }
        device.config.overrides =
            vec![TableConfig { modality: Modality::State, ..TableConfig::new("t") }];
        device.reopen();
        let sent = device.hub.batches.len();
        device.sync();
        device.assert_equal("t", &["id"]);
        assert!(device.hub.batches[sent..].iter().all(|batch| batch.lane != Lane::Mutable));
        assert_eq!(device.waiting(), (0, 0));
    }
}

#[test]
fn authority_that_returns_to_the_device_begins_an_epoch() {
    let mut device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v)");
    device.sql("INSERT INTO t VALUES(1, 'a'), (2, 'b')");
    device.sync();
    let first = device.capture.facts().unwrap().hello.epoch;
    device.config.overrides =
        vec![TableConfig { authority: Authority::Cloud, ..TableConfig::new("t") }];
    device.reopen();
    device.sync();
    assert_eq!(device.capture.facts().unwrap().hello.epoch, first);
    assert_eq!(device.capture.status().unwrap().tables[0].status, "attached");
    device.config.overrides.clear();
    device.sql(
        "UPDATE t SET v = 'while the agent was away' WHERE id = 1; DELETE FROM t WHERE id = 2",
    );
    device.reopen();
    assert_ne!(device.capture.facts().unwrap().hello.epoch, first);
    assert_eq!(device.capture.status().unwrap().alarms[0].code, "authority_returned");
    device.sync();
    device.assert_equal("t", &["id"]);
    assert_eq!(device.waiting(), (0, 0));
}

#[test]
fn no_migration_that_the_plain_schema_allows_is_refused() {
    let mut device = Device::new(
        "CREATE TABLE t(id INTEGER PRIMARY KEY, a, b, c); CREATE INDEX i ON t(b);
         INSERT INTO t VALUES(1, 2, 3, 4)",
    );
    device.sync();
    let migrations = [
        "ALTER TABLE t DROP COLUMN a",
        "ALTER TABLE t RENAME COLUMN c TO d",
        "ALTER TABLE t ADD COLUMN e TEXT NOT NULL DEFAULT 'x'",
        "DROP INDEX i; CREATE UNIQUE INDEX j ON t(b)",
        "CREATE VIEW v AS SELECT * FROM t; CREATE TRIGGER own AFTER UPDATE ON t BEGIN SELECT 1; END",
        "DROP TRIGGER own; DROP VIEW v",
        "ALTER TABLE t RENAME COLUMN id TO key",
        "VACUUM; REINDEX; ANALYZE",
    ];
    for migration in migrations {
        // With the shell's library as well as with ours.
        let shell = std::process::Command::new("sqlite3")
            .arg("-bail")
            .arg(device.path())
            .arg(".timeout 2000")
            .arg(migration)
            .output()
            .unwrap();
        assert!(shell.status.success(), "{migration}: {shell:?}");
        device.sql("UPDATE t SET b = b + 1");
        device.sync();
        assert_eq!(device.waiting(), (0, 0), "{migration}");
    }
    device.sql("ALTER TABLE t RENAME TO u; DROP TABLE u");
    device.sync();
    let last = device.hub.live("t").remove("i:1").unwrap();
    assert_eq!(last["key"], sync_proto::Value::Int(1), "{last:?}");
    assert_eq!(last["b"], sync_proto::Value::Int(11), "{last:?}");
}
