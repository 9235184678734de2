//! Every kind of table and key: what is written arrives, what is deleted becomes a tombstone, and
//! keys that are only nearly equal stay apart.

use capture::config::DatabaseConfig;

use crate::model::{Device, keyed};

/// Runs a script of three parts on a table: rows that are there before, changes, and deletes.
fn drive(schema: &str, table: &str, key: &[&str], before: &str, changes: &str, deletes: &str) {
    drive_with(schema, table, key, before, changes, deletes, |_config| {});
}

fn drive_with(
    schema: &str,
    table: &str,
    key: &[&str],
    before: &str,
    changes: &str,
    deletes: &str,
    adjust: impl FnOnce(&mut DatabaseConfig),
) {
    let mut device = Device::with(&format!("{schema};{before}"), adjust);
    device.sync();
    device.assert_equal(table, key);
    device.sql(changes);
    device.sync();
    device.assert_equal(table, key);
    device.sql(deletes);
    device.sync();
    device.assert_equal(table, key);
    let (entries, folded) = device.waiting();
    assert_eq!((entries, folded), (0, 0), "everything is settled");
    assert_eq!(device.parked(), [], "nothing is set aside");
}

#[test]
fn integer_primary_key() {
    drive(
        "CREATE TABLE t(id INTEGER PRIMARY KEY, v)",
        "t",
        &["id"],
        "INSERT INTO t VALUES(1, 'a'), (2, NULL), (-9223372036854775808, x'00')",
        "INSERT INTO t(v) VALUES('next'); UPDATE t SET v = 'b' WHERE id = 1;
         UPDATE t SET id = 77 WHERE id = 2; INSERT OR REPLACE INTO t VALUES(1, 'replaced')",
        "DELETE FROM t",
    );
}

#[test]
fn int_primary_key_that_is_no_rowid() {
    drive(
        "CREATE TABLE t(id INT PRIMARY KEY, v)",
        "t",
        &["id"],
        "INSERT INTO t VALUES(1, 'a'), (2.5, 'real'), ('x', 'text')",
        "UPDATE t SET id = id + 10 WHERE id = 1; INSERT INTO t VALUES(1.0, 'again')",
        "DELETE FROM t WHERE typeof(id) = 'text'",
    );
}

#[test]
fn text_and_blob_keys_with_odd_bytes() {
    drive(
        "CREATE TABLE t(k TEXT PRIMARY KEY, v)",
        "t",
        &["k"],
        "INSERT INTO t VALUES('', 1), ('a,b%', 2), (x'00ff', 3), ('ü', 4), (7, 5)",
        "INSERT INTO t VALUES(CAST(x'ff41' AS TEXT), 'invalid'), (char(0) || 'nul', 'nul');
         UPDATE t SET k = 'moved' WHERE k = 'ü'",
        "DELETE FROM t WHERE k = 'a,b%'; DELETE FROM t WHERE k = x'00ff'",
    );
    drive(
        "CREATE TABLE t(k BLOB PRIMARY KEY, v)",
        "t",
        &["k"],
        "INSERT INTO t VALUES(x'', 1), (x'31', 2), ('1', 3), (1, 4)",
        "UPDATE t SET v = v + 100",
        "DELETE FROM t WHERE k = '1'",
    );
}

#[test]
fn untyped_and_real_keys_keep_their_storage_class() {
    drive(
        "CREATE TABLE t(k PRIMARY KEY, v)",
        "t",
        &["k"],
        "INSERT INTO t VALUES(1, 'int'), ('1', 'text'), (x'31', 'blob'), (1.5, 'real')",
        // The same number in another class: a unique index takes them for equal, we do not.
        "UPDATE t SET k = 1.0 WHERE typeof(k) = 'integer'; UPDATE t SET v = 'again' WHERE k = '1'",
        "DELETE FROM t WHERE k = 1",
    );
    drive(
        "CREATE TABLE t(k REAL PRIMARY KEY, v)",
        "t",
        &["k"],
        "INSERT INTO t VALUES(1, 'one'), (0.1, 'tenth'), (1e300, 'big')",
        "UPDATE t SET k = k * 2; INSERT INTO t VALUES(-0.0, 'zero')",
        "DELETE FROM t WHERE k = 2",
    );
}

#[test]
fn negative_zero_is_one_row_whatever_its_sign() {
    drive(
        "CREATE TABLE t(k PRIMARY KEY, v)",
        "t",
        &["k"],
        "INSERT INTO t VALUES(-0.0, 'before')",
        "UPDATE t SET v = 'changed'; UPDATE t SET k = 0.0; UPDATE t SET k = -0.0",
        "UPDATE t SET k = 0",
    );
}

#[test]
fn composite_mixed_keys() {
    drive(
        "CREATE TABLE t(b TEXT, v, a INTEGER, c BLOB, PRIMARY KEY(a, b, c))",
        "t",
        &["a", "b", "c"],
        "INSERT INTO t VALUES('x', 1, 1, x'01'), ('x', 2, 1, x'02'), ('y', 3, 1, x'01')",
        "UPDATE t SET c = x'03' WHERE v = 2; UPDATE t SET a = a + 1 WHERE b = 'x'",
        "DELETE FROM t WHERE b = 'y'",
    );
}

#[test]
fn without_rowid_and_strict() {
    drive(
        "CREATE TABLE t(a TEXT, b INTEGER, v, PRIMARY KEY(b DESC, a)) WITHOUT ROWID",
        "t",
        &["b", "a"],
        "INSERT INTO t VALUES('x', 1, 'one'), ('y', 2, 'two')",
        "INSERT INTO t VALUES('z', 3, 'three'); UPDATE t SET a = 'xx' WHERE a = 'x'",
        "DELETE FROM t WHERE b > 1",
    );
    drive(
        "CREATE TABLE t(k ANY PRIMARY KEY, v REAL, w ANY) STRICT",
        "t",
        &["k"],
        "INSERT INTO t VALUES(1, 1, '1'), ('1', 2, x'00')",
        "UPDATE t SET k = 'new' WHERE typeof(k) = 'integer'",
        "DELETE FROM t WHERE k = 'new'",
    );
}

#[test]
fn keys_that_a_collation_calls_equal() {
    drive(
        "CREATE TABLE t(k TEXT COLLATE NOCASE PRIMARY KEY, v)",
        "t",
        &["k"],
        "INSERT INTO t VALUES('Abc', 1), ('d', 2)",
        "UPDATE t SET k = 'aBC' WHERE k = 'abc'; REPLACE INTO t VALUES('d', 3)",
        "DELETE FROM t WHERE k = 'ABC'",
    );
    // Equal under the column's collation, apart under the index's.
    drive(
        "CREATE TABLE t(k TEXT COLLATE NOCASE, v, PRIMARY KEY(k COLLATE BINARY))",
        "t",
        &["k"],
        "INSERT INTO t VALUES('a', 1), ('A', 2), ('b', 3)",
        "UPDATE t SET v = v + 10 WHERE k COLLATE BINARY = 'A'",
        "DELETE FROM t WHERE k COLLATE BINARY = 'a'",
    );
}

#[test]
fn odd_names_and_generated_columns() {
    drive(
        r#"CREATE TABLE "order by ""x"""("select" INTEGER PRIMARY KEY, "a ""b"" [c]" TEXT,
           "group" GENERATED ALWAYS AS ("select" * 2) VIRTUAL, "Ünï" , "end" AS (1) STORED)"#,
        "order by \"x\"",
        &["select"],
        r#"INSERT INTO "order by ""x"""("select", "a ""b"" [c]") VALUES(1, 'one')"#,
        r#"UPDATE "order by ""x""" SET "Ünï" = 5;
           INSERT INTO "order by ""x"""("select") VALUES(9)"#,
        r#"DELETE FROM "order by ""x""" WHERE "group" = 2"#,
    );
}

#[test]
fn declared_keys_on_keyless_tables() {
    let schema = "CREATE TABLE t(a TEXT COLLATE NOCASE, b, v)";
    let before = "INSERT INTO t VALUES('x', 1, 'i'), ('X', 1, 'upper'), ('x', 1.0, 'real'),
                  ('x', '1', 'text'), ('y', x'31', 'blob')";
    drive_with(
        schema,
        "t",
        &["a", "b"],
        before,
        "UPDATE t SET v = v || '!' WHERE a = 'x'; UPDATE t SET a = 'z' WHERE v = 'blob'",
        "DELETE FROM t WHERE typeof(b) = 'real'; DELETE FROM t WHERE a = 'z'",
        |config| config.overrides = vec![keyed("t", &["A", "b"])],
    );
}

#[test]
fn rolled_back_work_leaves_nothing() {
    let mut device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v)");
    device.sync();
    let before = device.waiting();
    let app = device.app();
    app.execute_batch("BEGIN; INSERT INTO t VALUES(1, 'a'); ROLLBACK").unwrap();
    app.execute_batch(
        "BEGIN; INSERT INTO t VALUES(2, 'kept'); SAVEPOINT s; INSERT INTO t VALUES(3, 'not');
         ROLLBACK TO s; COMMIT",
    )
    .unwrap();
    assert_eq!(device.waiting().0, before.0 + 1);
    device.sync();
    device.assert_equal("t", &["id"]);
    assert_eq!(device.hub.live("t").len(), 1);
}

#[test]
fn every_conflict_clause_of_the_application_is_captured() {
    let mut device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v NOT NULL)");
    device.sql("INSERT INTO t VALUES(1, 'a'), (2, 'b')");
    device.sync();
    device.sql(
        "UPDATE OR IGNORE t SET v = 'c' WHERE id = 1; UPDATE OR REPLACE t SET v = 'd' WHERE id = 2;
         INSERT OR IGNORE INTO t VALUES(1, 'no'), (3, 'yes');
         INSERT OR REPLACE INTO t VALUES(3, 'z');
         INSERT INTO t VALUES(1, 'upsert') ON CONFLICT(id) DO UPDATE SET v = excluded.v",
    );
    device.sync();
    device.assert_equal("t", &["id"]);
}

#[test]
fn other_schema_names_and_temporary_objects_do_not_mislead() {
    let mut device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v)");
    device.sync();
    let elsewhere = rusqlite::Connection::open_in_memory().unwrap();
    elsewhere.execute("ATTACH ?1 AS other", [device.path().to_str().unwrap()]).unwrap();
    elsewhere
        .execute_batch(
            "CREATE TABLE t(id INTEGER PRIMARY KEY); INSERT INTO t VALUES(9);
             INSERT INTO other.t VALUES(1, 'attached')",
        )
        .unwrap();
    let app = device.app();
    app.execute_batch(
        "CREATE TEMP TABLE t(id INTEGER PRIMARY KEY, v); INSERT INTO t VALUES(8, 'temporary');
         CREATE TEMP TABLE _rowtide_log(t, k1, k2); INSERT INTO main.t VALUES(2, 'beside it')",
    )
    .unwrap();
    let misled: i64 =
        app.query_row("SELECT count(*) FROM temp._rowtide_log", [], |row| row.get(0)).unwrap();
    assert_eq!(misled, 0);
    device.sync();
    device.assert_equal("t", &["id"]);
    assert_eq!(device.hub.live("t").len(), 2);
}

#[test]
fn an_untrusting_connection_is_served_and_sees_its_own_counts() {
    let mut device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v)");
    let app = device.app();
    app.execute_batch("PRAGMA trusted_schema = OFF; PRAGMA recursive_triggers = ON").unwrap();
    app.execute_batch("INSERT INTO t VALUES(41, 'a'), (42, 'b')").unwrap();
    assert_eq!((app.last_insert_rowid(), app.changes()), (42, 2));
    app.execute_batch("REPLACE INTO t VALUES(42, 'c')").unwrap();
    device.sync();
    device.assert_equal("t", &["id"]);
}
