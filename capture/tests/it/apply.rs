//! Batches of the hub on real tables: what is applied, what is set aside, and what is never done
//! twice (cases APP).

use capture::ApplyOutcome;
use sync_proto::message::DownBatch;
use sync_proto::rows::Row;
use sync_proto::{Cursor, Value, Version};

use crate::cloud::{Device, gone, int, keyed, outcomes, put, table, text};

const COUNTED: &str = "CREATE TABLE t(id INTEGER PRIMARY KEY, v);
    CREATE TABLE fired(n INTEGER);
    INSERT INTO fired VALUES(0);
    CREATE TRIGGER t_i AFTER INSERT ON t BEGIN UPDATE fired SET n = n + 1; END;
    CREATE TRIGGER t_u AFTER UPDATE ON t BEGIN UPDATE fired SET n = n + 1; END;
    CREATE TRIGGER t_d AFTER DELETE ON t BEGIN UPDATE fired SET n = n + 1; END;";

fn one(version: i64, v: i64) -> Vec<Row> {
    vec![put(version, vec![int(1), int(v)])]
}

#[test]
fn the_same_batch_again_writes_nothing_and_fires_nothing() {
    let schema = format!("{COUNTED} CREATE TABLE u(k TEXT PRIMARY KEY, v CHECK(v > 0));");
    let mut device = Device::new(&schema, &["t", "u"]);
    let batch = device.batch(&[
        table("t", &["id", "v"], vec![put(1, vec![int(1), int(1)]), gone(2, vec![int(2), int(0)])]),
        table("u", &["k", "v"], vec![put(1, vec![text("bad"), int(-1)])]),
    ]);
    let first = device.apply(&batch);
    assert_eq!(outcomes(&first), [("t:bad", "rejected", "check")]);
    device.settle();
    let before = device.bytes();
    assert!(!before.1.is_empty(), "the write-ahead log is there to be compared");
    for _time in 0..3 {
        assert_eq!(device.apply(&batch), first, "the answer is the same");
        assert_eq!(device.bytes(), before, "app.db and its WAL are the same to the byte");
    }
    // Also for a new process that knows nothing but the file.
    let mut device = device.restart();
    device.settle();
    let before = device.bytes();
    assert_eq!(device.apply(&batch), first);
    assert_eq!(device.bytes(), before);
    assert_eq!(device.rows("SELECT n FROM fired"), [[int(1)]]);
}

#[test]
fn app_01_stale_and_repeated_rows_change_nothing() {
    let mut device = Device::new(COUNTED, &["t"]);
    device.take(&[table("t", &["id", "v"], one(5, 50))]);
    device.settle();
    let mut device = device.restart();
    for (version, outcome) in [(3, "stale"), (5, "duplicate"), (4, "stale"), (5, "duplicate")] {
        let receipt = device.down(&[table("t", &["id", "v"], one(version, version * 10))]);
        assert_eq!(outcomes(&receipt), [("i:1", outcome, "")], "version {version}");
        assert_eq!(receipt.highest, Version(5));
    }
    assert_eq!(device.rows("SELECT v, n FROM t, fired"), [[int(50), int(1)]]);
    // The same version with other content: the stored row stays, and the hub hears of it.
    let receipt = device.down(&[table("t", &["id", "v"], one(5, 51))]);
    assert_eq!(outcomes(&receipt), [("i:1", "diverged", "")]);
    assert_eq!(device.rows("SELECT v, n FROM t, fired"), [[int(50), int(1)]]);
}

#[test]
fn app_02_a_late_update_does_not_bring_a_deleted_row_back() {
    let mut device = Device::new(COUNTED, &["t"]);
    device.take(&[table("t", &["id", "v"], one(1, 1))]);
    device.take(&[table("t", &["id", "v"], vec![gone(6, vec![int(1), Value::Null])])]);
    for version in [4, 5] {
        let receipt = device.down(&[table("t", &["id", "v"], one(version, 9))]);
        assert_eq!(outcomes(&receipt), [("i:1", "stale", "")]);
        assert_eq!(device.rows("SELECT * FROM t"), [[]; 0]);
    }
    device.take(&[table("t", &["id", "v"], one(7, 7))]);
    assert_eq!(device.rows("SELECT * FROM t"), [[int(1), int(7)]]);
    // A delete of a row that was never here counts all the same.
    device.take(&[table("t", &["id", "v"], vec![gone(9, vec![int(2), Value::Null])])]);
    let late = put(8, vec![int(2), int(1)]);
    assert_eq!(
        outcomes(&device.down(&[table("t", &["id", "v"], vec![late])])),
        [("i:2", "stale", "")]
    );
}

#[test]
fn app_03_a_key_comes_back_after_its_delete_in_any_order() {
    let orders: [&[usize]; 6] =
        [&[0, 1, 2], &[0, 2, 1], &[1, 0, 2], &[1, 2, 0], &[2, 0, 1], &[2, 1, 0]];
    let row = |at: usize| match at {
        0 => put(1, vec![int(1), int(1)]),
        1 => gone(2, vec![int(1), Value::Null]),
        _ => put(3, vec![int(1), int(3)]),
    };
    for order in orders {
        let mut device = Device::new(COUNTED, &["t"]);
        device.down(&[table("t", &["id", "v"], order.iter().map(|at| row(*at)).collect())]);
        assert_eq!(device.rows("SELECT * FROM t"), [[int(1), int(3)]], "one batch, {order:?}");
        // Only the newest of one batch is written.
        assert_eq!(device.rows("SELECT n FROM fired"), [[int(1)]]);

        let mut device = Device::new(COUNTED, &["t"]);
        for at in order {
            device.down(&[table("t", &["id", "v"], vec![row(*at)])]);
        }
        assert_eq!(device.rows("SELECT * FROM t"), [[int(1), int(3)]], "batches, {order:?}");
    }
}

#[test]
fn app_05_two_bad_rows_of_a_hundred_are_set_aside() {
    let schema = "CREATE TABLE t(id INTEGER PRIMARY KEY, v CHECK(v > 0), u UNIQUE, n NOT NULL)";
    let mut device = Device::new(schema, &["t"]);
    device.app().execute("INSERT INTO t VALUES(1000, 1, 'taken', 1)", []).unwrap();
    device.settle();
    device.take(&[table(
        "t",
        &["id", "v", "u", "n"],
        vec![put(1, vec![int(1_000), int(1), text("taken"), int(1)])],
    )]);
    let rows = (1..=100).map(|id| {
        let v = if id == 50 { -1 } else { 1 };
        let u = if id == 60 { text("taken") } else { int(id) };
        let n = if id == 70 { Value::Null } else { int(0) };
        put(1, vec![int(id), int(v), u, n])
    });
    let receipt = device.down(&[table("t", &["id", "v", "u", "n"], rows.collect())]);
    assert_eq!(
        outcomes(&receipt),
        [
            ("i:50", "rejected", "check"),
            ("i:60", "rejected", "unique"),
            ("i:70", "rejected", "not_null"),
        ]
    );
    assert_eq!(device.rows("SELECT count(*) FROM t WHERE id <= 100"), [[int(97)]]);
    let parked = device.quarantine();
    assert_eq!(parked.len(), 3);
    let unique = &parked[1];
    assert_eq!((unique.table.as_str(), unique.direction.as_str(), unique.number), ("t", "down", 1));
    assert!(unique.message.contains("t.u"), "{}", unique.message);
    // A newer version settles one, a value that becomes free the other.
    device.take(&[table(
        "t",
        &["id", "v", "u", "n"],
        vec![
            put(2, vec![int(50), int(5), int(50), int(0)]),
            gone(2, vec![int(1_000), int(0), int(0), int(0)]),
        ],
    )]);
    assert_eq!(device.parked(), [("i:70".to_owned(), "not_null".to_owned())]);
    assert_eq!(
        device.rows("SELECT v, u FROM t WHERE id IN (50, 60) ORDER BY id"),
        [[int(5), int(50)], [int(1), text("taken")],]
    );
}

#[test]
fn app_06_columns_that_differ() {
    let schema = "CREATE TABLE t(id INTEGER PRIMARY KEY, a, b, d NOT NULL DEFAULT 'dflt');
                  CREATE TABLE m(id INTEGER PRIMARY KEY, a, must NOT NULL)";
    let mut device = Device::new(schema, &["t", "m"]);
    // An unknown column is dropped; a missing one takes its default.
    device.take(&[table("t", &["id", "a", "z"], vec![put(1, vec![int(1), int(1), int(26)])])]);
    assert_eq!(device.rows("SELECT * FROM t"), [[int(1), int(1), Value::Null, text("dflt")]]);
    // On update it keeps the local value, whatever case the names come in.
    device.take(&[table("t", &["ID", "B", "D"], vec![put(2, vec![int(1), int(2), text("x")])])]);
    device.take(&[table("t", &["id", "a"], vec![put(3, vec![int(1), int(9)])])]);
    assert_eq!(device.rows("SELECT * FROM t"), [[int(1), int(9), int(2), text("x")]]);
    // NOT NULL without a default refuses an insert, and nothing on update.
    let receipt = device.down(&[table("m", &["id", "a"], vec![put(1, vec![int(1), int(1)])])]);
    assert_eq!(outcomes(&receipt), [("i:1", "rejected", "not_null")]);
    device.take(&[table("m", &["id", "a", "must"], vec![put(2, vec![int(1), int(1), int(5)])])]);
    device.take(&[table("m", &["id", "a"], vec![put(3, vec![int(1), int(2)])])]);
    assert_eq!(device.rows("SELECT * FROM m"), [[int(1), int(2), int(5)]]);
    assert_eq!(device.parked(), []);
    // Only the key came, and the row is there.
    device.take(&[table("m", &["id"], vec![put(4, vec![int(1)])])]);
    assert_eq!(device.rows("SELECT * FROM m"), [[int(1), int(2), int(5)]]);
}

#[test]
fn app_07_rows_of_a_missing_table_wait_for_it() {
    let schema =
        "CREATE TABLE q(id INTEGER PRIMARY KEY, v); CREATE TABLE t(id INTEGER PRIMARY KEY)";
    let mut device = Device::new(schema, &["q", "t"]);
    device.app().execute_batch("DROP TABLE q").unwrap();
    let rows = || {
        [
            table(
                "q",
                &["id", "v"],
                vec![put(1, vec![int(1), int(1)]), put(2, vec![int(2), int(2)])],
            ),
            table("t", &["id"], vec![put(1, vec![int(1)])]),
        ]
    };
    let receipt = device.down(&rows());
    assert_eq!(
        outcomes(&receipt),
        [("i:1", "rejected", "no_table"), ("i:2", "rejected", "no_table")]
    );
    device.settle();
    assert_eq!(device.parked().len(), 2);
    assert_eq!(device.rows("SELECT * FROM t"), [[int(1)]]);
    device.app().execute_batch("CREATE TABLE q(id INTEGER PRIMARY KEY, v)").unwrap();
    device.settle();
    device.welcome();
    device.settle();
    assert_eq!(device.rows("SELECT * FROM q"), [[int(1), int(1)], [int(2), int(2)]]);
    assert_eq!(device.parked(), []);
}

#[test]
fn rows_of_other_tables_are_never_written() {
    let schema =
        "CREATE TABLE t(id INTEGER PRIMARY KEY, v); CREATE TABLE other(id INTEGER PRIMARY KEY, v);
                  CREATE TABLE two(a, b, PRIMARY KEY(a, b))";
    let mut device = Device::new(schema, &["t", "two"]);
    let receipt = device.down(&[
        table("other", &["id", "v"], one(1, 1)),
        table("_rowtide_meta", &["k", "v"], vec![put(1, vec![text("epoch"), int(1)])]),
        table("sqlite_master", &["name", "sql"], vec![put(1, vec![text("x"), text("y")])]),
        table("two", &["a", "b"], vec![put(1, vec![int(1), int(1)])]),
        keyed("two", &["a", "b"], &[1, 0], vec![put(1, vec![int(1), int(1)])]),
        keyed("two", &["a", "b"], &[0, 1], vec![put(1, vec![int(1), Value::Null])]),
        table("t", &["id", "v"], one(1, 1)),
    ]);
    let codes: Vec<&str> = outcomes(&receipt).iter().map(|row| row.2).collect();
    assert_eq!(
        codes,
        ["not_cloud", "not_cloud", "not_cloud", "key_mismatch", "key_mismatch", "null_key"]
    );
    assert_eq!(device.rows("SELECT * FROM other"), [[]; 0]);
    assert_eq!(device.rows("SELECT * FROM t"), [[int(1), int(1)]]);
}

#[test]
fn app_11_children_local_columns_and_rowids_survive_an_update() {
    let schema = "CREATE TABLE p(k TEXT PRIMARY KEY, v, u UNIQUE);
        CREATE TABLE c(id INTEGER PRIMARY KEY, k REFERENCES p(k) ON DELETE CASCADE);
        CREATE TABLE r(k TEXT PRIMARY KEY ON CONFLICT REPLACE, u UNIQUE ON CONFLICT REPLACE)";
    let mut device = Device::new(schema, &["p", "r"]);
    device.take(&[table("p", &["k", "v", "u"], vec![put(1, vec![text("a"), int(1), int(1)])])]);
    device.app().execute_batch("INSERT INTO c(k) VALUES('a'), ('a'), ('a')").unwrap();
    device.app().execute_batch("ALTER TABLE p ADD COLUMN here DEFAULT 'local'").unwrap();
    device.settle();
    let rowid = device.rows("SELECT rowid FROM p");
    device.take(&[table("p", &["k", "v", "u"], vec![put(2, vec![text("a"), int(2), int(1)])])]);
    assert_eq!(device.rows("SELECT v, here FROM p"), [[int(2), text("local")]]);
    assert_eq!(device.rows("SELECT count(*) FROM c"), [[int(3)]]);
    assert_eq!(device.rows("SELECT rowid FROM p"), rowid);
    // A constraint that replaces by itself must not evict another row either.
    device.take(&[table("r", &["k", "u"], vec![put(1, vec![text("a"), int(1)])])]);
    let receipt = device.down(&[table("r", &["k", "u"], vec![put(1, vec![text("b"), int(1)])])]);
    assert_eq!(outcomes(&receipt), [("t:b", "rejected", "unique")]);
    assert_eq!(device.rows("SELECT * FROM r"), [[text("a"), int(1)]]);
}

#[test]
fn app_12_a_schema_that_only_the_application_understands_refuses_its_rows() {
    let schema =
        "CREATE TABLE t(id INTEGER PRIMARY KEY, v); CREATE TABLE ok(id INTEGER PRIMARY KEY);
        CREATE TRIGGER t_i BEFORE INSERT ON t BEGIN SELECT app_function(NEW.v); END";
    let mut device = Device::new(schema, &["t", "ok"]);
    let receipt = device.down(&[
        table("t", &["id", "v"], one(1, 1)),
        table("ok", &["id"], vec![put(1, vec![int(1)])]),
    ]);
    assert_eq!(outcomes(&receipt), [("i:1", "rejected", "schema")]);
    assert!(device.quarantine()[0].message.contains("app_function"));
    assert_eq!(device.rows("SELECT * FROM ok"), [[int(1)]]);
    device.app().execute_batch("DROP TRIGGER t_i").unwrap();
    device.settle();
    assert_eq!(device.rows("SELECT * FROM t"), [[int(1), int(1)]]);
    assert_eq!(device.parked(), []);
}

#[test]
fn app_13_triggers_fire_once_and_guards_set_the_row_aside() {
    let schema = "CREATE TABLE orders(id INTEGER PRIMARY KEY, n);
        CREATE TABLE stock(id INTEGER PRIMARY KEY, left);
        INSERT INTO stock VALUES(1, 100);
        CREATE TRIGGER o_i AFTER INSERT ON orders BEGIN
          UPDATE stock SET left = left - NEW.n; END;
        CREATE TRIGGER o_u AFTER UPDATE ON orders BEGIN
          UPDATE stock SET left = left + OLD.n - NEW.n; END;
        CREATE TRIGGER guard BEFORE INSERT ON orders WHEN NEW.n > 50 BEGIN
          SELECT RAISE(ABORT, 'too many'); END;
        CREATE TRIGGER quiet BEFORE INSERT ON orders WHEN NEW.n = 13 BEGIN
          SELECT RAISE(IGNORE); END;
        CREATE TRIGGER quiet_u BEFORE UPDATE ON orders WHEN NEW.n = 13 BEGIN
          SELECT RAISE(IGNORE); END;
        CREATE TRIGGER undo BEFORE INSERT ON orders WHEN NEW.n = 17 BEGIN
          SELECT RAISE(ROLLBACK, 'all of it'); END;
        CREATE TRIGGER keep BEFORE DELETE ON orders WHEN OLD.id = 3 BEGIN
          SELECT RAISE(IGNORE); END;";
    let mut device = Device::new(schema, &["orders"]);
    let orders = |rows| [table("orders", &["id", "n"], rows)];
    let order = |version, id, n| put(version, vec![int(id), int(n)]);
    let batch = device.batch(&orders(vec![order(1, 1, 10)]));
    device.apply(&batch);
    device.apply(&batch);
    assert_eq!(device.rows("SELECT left FROM stock"), [[int(90)]]);
    device.take(&orders(vec![order(2, 1, 20)]));
    assert_eq!(device.rows("SELECT left FROM stock"), [[int(80)]]);
    let receipt = device.down(&orders(vec![
        order(3, 2, 60),
        order(3, 3, 1),
        order(3, 4, 13),
        order(3, 5, 17),
        order(3, 1, 13),
        order(3, 6, 2),
    ]));
    let mut refused = outcomes(&receipt);
    refused.sort_unstable();
    assert_eq!(
        refused,
        [
            ("i:1", "rejected", "ignored"),
            ("i:2", "rejected", "trigger"),
            ("i:4", "rejected", "ignored"),
            ("i:5", "rejected", "trigger"),
        ]
    );
    assert_eq!(
        device.rows("SELECT id, n FROM orders ORDER BY id"),
        [[int(1), int(20)], [int(3), int(1)], [int(6), int(2)],]
    );
    assert_eq!(device.rows("SELECT left FROM stock"), [[int(77)]]);
    let receipt = device.down(&orders(vec![gone(4, vec![int(3), int(0)])]));
    assert_eq!(outcomes(&receipt), [("i:3", "rejected", "ignored")]);
    let parked = device.quarantine();
    assert!(parked.iter().any(|row| row.message.contains("too many")), "{parked:?}");
}

#[test]
fn app_14_generated_columns_are_never_written() {
    let schema = "CREATE TABLE t(id INTEGER PRIMARY KEY, a, g AS (a * 2) STORED, h AS (a + 1))";
    let mut device = Device::new(schema, &["t"]);
    let row = |version, a: i64| put(version, vec![int(1), int(a), int(999), int(999)]);
    device.take(&[table("t", &["id", "a", "g", "h"], vec![row(1, 4)])]);
    assert_eq!(device.rows("SELECT * FROM t"), [[int(1), int(4), int(8), int(5)]]);
    let receipt = device.down(&[table("t", &["id", "a", "g", "h"], vec![row(1, 4)])]);
    assert_eq!(outcomes(&receipt), [("i:1", "duplicate", "")]);
    device.settle();
    device.take(&[table("t", &["id", "a", "g", "h"], vec![row(2, 5)])]);
    assert_eq!(device.rows("SELECT * FROM t"), [[int(1), int(5), int(10), int(6)]]);
}

#[test]
fn app_17_a_corrected_key_ends_right_in_every_order() {
    let schema = "CREATE TABLE t(id INTEGER PRIMARY KEY, u UNIQUE, v)";
    let t = |rows| table("t", &["id", "u", "v"], rows);
    let new = || put(5, vec![int(2), text("same"), int(2)]);
    let old = || gone(6, vec![int(1), Value::Null, Value::Null]);
    let start = || {
        let mut device = Device::new(schema, &["t"]);
        device.take(&[t(vec![put(1, vec![int(1), text("same"), int(1)])])]);
        device
    };
    let end = [vec![int(2), text("same"), int(2)]];
    for rows in [vec![new(), old()], vec![old(), new()]] {
        let mut device = start();
        device.take(&[t(rows)]);
        assert_eq!(device.rows("SELECT * FROM t"), end);
        assert_eq!(device.parked(), []);
    }
    let mut device = start();
    let receipt = device.down(&[t(vec![new()])]);
    assert_eq!(outcomes(&receipt), [("i:2", "rejected", "unique")]);
    device.take(&[t(vec![old()])]);
    assert_eq!(device.rows("SELECT * FROM t"), end);
    assert_eq!(device.parked(), []);

    // A chain in the worst order: each row waits for the next.
    let mut device = Device::new(schema, &["t"]);
    let n = 60;
    let row = |version, id: i64, u: i64| put(version, vec![int(id), int(u), int(0)]);
    device.take(&[t((1..=n).map(|id| row(1, id, id)).collect())]);
    device.take(&[t((1..=n).map(|id| row(2, id, id + 1)).collect())]);
    assert_eq!(device.rows("SELECT count(*) FROM t WHERE u = id + 1"), [[int(n)]]);
}

fn misplaced(device: &mut Device, batch: &DownBatch) -> Option<Cursor> {
    match device.capture.apply(batch).unwrap() {
        ApplyOutcome::Misplaced(cursor) => Some(cursor),
        ApplyOutcome::Applied(_) => None,
    }
}

#[test]
fn a_batch_applies_only_at_its_cursor() {
    let mut device = Device::new(COUNTED, &["t"]);
    let first = device.batch(&[table("t", &["id", "v"], one(1, 1))]);
    device.apply(&first);
    let second = device.batch(&[table("t", &["id", "v"], one(2, 2))]);
    let third = DownBatch {
        prev: second.next,
        next: Cursor { term: 1, hi: 99, lo: 0 },
        ..device.batch(&[table("t", &["id", "v"], one(3, 3))])
    };
    assert_eq!(misplaced(&mut device, &third), Some(first.next));
    device.apply(&second);
    device.apply(&third);
    assert_eq!(device.rows("SELECT v FROM t"), [[int(3)]]);
    // An older hub's cursor, before the stored one in another term, is a duplicate as well.
    assert_eq!(misplaced(&mut device, &second), None);
    // Another generation of authority: nothing at all.
    let mut other = device.batch(&[table("t", &["id", "v"], one(4, 4))]);
    other.generation = 2;
    assert!(device.capture.apply(&other).is_err());
    // Bytes that are no rows.
    let mut broken = device.batch(&[table("t", &["id", "v"], one(4, 4))]);
    broken.rows.bytes[0] ^= 1;
    assert!(device.capture.apply(&broken).is_err());
    assert_eq!(device.rows("SELECT v FROM t"), [[int(3)]]);
    // A version beyond any honest step.
    let far = put(3 + (1 << 40) + 1, vec![int(1), int(9)]);
    let receipt = device.down(&[table("t", &["id", "v"], vec![far])]);
    assert_eq!(outcomes(&receipt), [("i:1", "rejected", "version_range")]);
    assert_eq!(receipt.highest, Version(3));
}
