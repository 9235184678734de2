//! Values and keys on their way down: every storage class exact, every name safe, and a key that
//! is only equal to another one never mistaken for it (cases VAL, CAP-18).

use rusqlite::types::ToSqlOutput;
use rusqlite::types::ValueRef;
use sync_proto::Value;
use sync_proto::rows::pack;

use crate::cloud::{Device, cloud_table, gone, int, keyed, put, table, text};

fn every_class() -> Vec<Value> {
    vec![
        Value::Null,
        int(0),
        int(i64::MAX),
        int(i64::MIN),
        int(9_007_199_254_740_993),
        Value::Real(0.0),
        Value::Real(-0.0),
        Value::Real(1.0),
        Value::Real(0.1),
        Value::Real(f64::MIN_POSITIVE / 2.0),
        Value::Real(f64::MAX),
        Value::Real(f64::INFINITY),
        Value::Real(f64::NEG_INFINITY),
        text(""),
        text("plain"),
        text("0012"),
        text("nul\0inside"),
        text("\u{feff}\u{202e}\u{1f600}"),
        text("{ \"b\":1,\"a\":1.0, \"a\":2 }"),
        Value::Text(vec![0xff, 0x41, 0xc3]),
        Value::Text("\u{1f600}".repeat(1 << 18).into_bytes()),
        Value::Blob(Vec::new()),
        Value::Blob(vec![0, 255, 39]),
        Value::Blob(b"abc".to_vec()),
    ]
}

#[test]
fn every_value_of_every_class_comes_down_exact() {
    let mut device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v)", &["t"]);
    let values = every_class();
    let rows = (1..).zip(&values).map(|(id, value)| put(id, vec![int(id), value.clone()]));
    device.take(&[table("t", &["id", "v"], rows.collect())]);
    let stored: Vec<Value> =
        device.rows("SELECT v FROM t ORDER BY id").into_iter().flatten().collect();
    assert_eq!(stored, values);

    // Each value once more, over each other one: no transition is taken for none.
    for (round, shift) in (1..).zip(1..values.len()) {
        let rows = (1..).zip(0..values.len()).map(|(id, at)| {
            let value = values[(at + shift) % values.len()].clone();
            put(id + round * 1_000, vec![int(id), value])
        });
        device.take(&[table("t", &["id", "v"], rows.collect())]);
        let stored: Vec<Value> =
            device.rows("SELECT v FROM t ORDER BY id").into_iter().flatten().collect();
        let wanted: Vec<Value> =
            (0..values.len()).map(|at| values[(at + shift) % values.len()].clone()).collect();
        assert_eq!(stored, wanted, "shifted by {shift}");
    }
    assert_eq!(device.quarantine(), []);
}

#[test]
fn every_value_is_a_key_of_its_own() {
    let mut device = Device::new("CREATE TABLE t(k PRIMARY KEY, v) WITHOUT ROWID", &["t"]);
    let keys: Vec<Value> = every_class()
        .into_iter()
        // 1.0 and 1, 0.0 and 0 are one key to SQLite; that case has a test of its own.
        .filter(|value| !matches!(value, Value::Null | Value::Real(0.0 | 1.0)))
        .collect();
    let rows = (1..).zip(&keys).map(|(n, key)| put(n, vec![key.clone(), int(n)]));
    device.take(&[table("t", &["k", "v"], rows.collect())]);
    assert_eq!(device.rows("SELECT count(*) FROM t"), [[int(i64::try_from(keys.len()).unwrap())]]);
    let rows = (1..).zip(&keys).map(|(n, key)| put(1_000 + n, vec![key.clone(), int(-n)]));
    device.take(&[table("t", &["k", "v"], rows.collect())]);
    assert_eq!(device.rows("SELECT count(*) FROM t WHERE v > 0"), [[int(0)]]);
    let rows = (1..).zip(&keys).map(|(n, key)| gone(2_000 + n, vec![key.clone(), Value::Null]));
    device.take(&[table("t", &["k", "v"], rows.collect())]);
    assert_eq!(device.rows("SELECT count(*) FROM t"), [[int(0)]]);
}

#[test]
fn affinities_have_the_last_word_and_nothing_flaps() {
    let schema = "CREATE TABLE t(id INTEGER PRIMARY KEY, i INTEGER, n NUMERIC, r REAL, x TEXT)";
    let mut device = Device::new(schema, &["t"]);
    let sent = vec![int(1), Value::Real(1.0), text("0012"), int(7), int(5)];
    let batch = device.batch(&[table("t", &["id", "i", "n", "r", "x"], vec![put(1, sent)])]);
    assert_eq!(device.apply(&batch).outcomes, []);
    let stored = [vec![int(1), int(1), int(12), Value::Real(7.0), text("5")]];
    assert_eq!(device.rows("SELECT * FROM t"), stored);
    device.settle();
    assert_eq!(device.rows("SELECT * FROM t"), stored);
    assert_eq!(device.quarantine(), []);
}

#[test]
fn val_02_big_integers_are_keys_of_their_own() {
    let mut device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v)", &["t"]);
    let (a, b) = (int(9_007_199_254_740_993), int(9_007_199_254_740_992));
    let row = |n, key: &Value, v| put(n, vec![key.clone(), int(v)]);
    device.take(&[table("t", &["id", "v"], vec![row(1, &a, 1), row(2, &b, 2)])]);
    device.take(&[table("t", &["id", "v"], vec![row(3, &a, 3)])]);
    assert_eq!(
        device.rows("SELECT * FROM t ORDER BY id"),
        [vec![b.clone(), int(2)], vec![a, int(3)]]
    );
    device.take(&[table("t", &["id", "v"], vec![gone(4, vec![b, Value::Null])])]);
    assert_eq!(device.rows("SELECT v FROM t"), [[int(3)]]);
}

#[test]
fn val_04_nan_never_travels() {
    // SQLite would store it as NULL, so the wire has no form for it: the hub answers its author.
    let rows = vec![put(1, vec![int(1), Value::Real(f64::NAN)])];
    assert!(pack(&[table("t", &["id", "v"], rows)]).is_err());
}

#[test]
fn val_15_strict_tables_park_the_wrong_class_alone() {
    let schema = "CREATE TABLE t(k TEXT PRIMARY KEY, i INT, r REAL, x TEXT, b BLOB, a ANY) STRICT";
    let mut device = Device::new(schema, &["t"]);
    let columns = ["k", "i", "r", "x", "b", "a"];
    let good = |n, key: &str| {
        let blob = Value::Blob(vec![1]);
        put(n, vec![text(key), int(1), Value::Real(1.5), text("x"), blob, text("007")])
    };
    let with = |n, key: &str, at: usize, value: Value| {
        let mut row = good(n, key);
        row.values[at] = value;
        row
    };
    let rows = vec![
        good(1, "first"),
        with(2, "real in int", 1, Value::Real(1.5)),
        with(3, "text in blob", 4, text("x")),
        with(4, "blob in text", 3, Value::Blob(vec![1])),
        good(5, "last"),
    ];
    let receipt = device.down(&[table("t", &columns, rows)]);
    let refused: Vec<&str> = receipt.outcomes.iter().map(|row| row.key.as_str()).collect();
    assert_eq!(refused, ["t:real in int", "t:text in blob", "t:blob in text"]);
    assert!(device.parked().iter().all(|(_, code)| code == "datatype"));
    assert_eq!(
        device.rows("SELECT k, a, typeof(a) FROM t ORDER BY k"),
        [
            vec![text("first"), text("007"), text("text")],
            vec![text("last"), text("007"), text("text")]
        ]
    );
}

#[test]
fn keys_that_are_only_equal_never_overwrite_each_other() {
    let schema = "CREATE TABLE t(k TEXT COLLATE NOCASE PRIMARY KEY, v);
                  CREATE TABLE u(k PRIMARY KEY, v);
                  CREATE TABLE w(k TEXT PRIMARY KEY, v)";
    let mut device = Device::new(schema, &["t", "u", "w"]);
    device.take(&[
        table("t", &["k", "v"], vec![put(1, vec![text("abc"), int(1)])]),
        table("u", &["k", "v"], vec![put(1, vec![int(1), int(1)])]),
    ]);
    let receipt = device.down(&[
        table("t", &["k", "v"], vec![put(2, vec![text("ABC"), int(2)])]),
        table("u", &["k", "v"], vec![put(2, vec![Value::Real(1.0), int(2)])]),
        // Stored as '7', so the row that came would not be found again.
        table("w", &["k", "v"], vec![put(2, vec![int(7), int(2)])]),
    ]);
    assert_eq!(receipt.outcomes.len(), 3);
    assert_eq!(device.rows("SELECT * FROM t"), [vec![text("abc"), int(1)]]);
    assert_eq!(device.rows("SELECT * FROM u"), [vec![int(1), int(1)]]);
    assert_eq!(device.rows("SELECT * FROM w"), [[]; 0]);
    // A delete of the other spelling leaves the row alone.
    device.take(&[table("t", &["k", "v"], vec![gone(3, vec![text("aBc"), Value::Null])])]);
    assert_eq!(device.rows("SELECT * FROM t"), [vec![text("abc"), int(1)]]);
}

#[test]
fn cap_18_any_name_is_only_a_name() {
    let name = "we\"ird; DROP TABLE x --";
    let quoted = format!("\"{}\"", name.replace('"', "\"\""));
    let schema =
        format!("CREATE TABLE {quoted}(\"sel\"\"ect\" TEXT PRIMARY KEY, \"group by\", \"ü\")");
    let mut device = Device::with(&schema, vec![cloud_table(name)], false);
    let columns = ["sel\"ect", "group by", "ü"];
    device.take(&[table(name, &columns, vec![put(1, vec![text("k"), int(1), int(2)])])]);
    device.take(&[table(name, &columns, vec![put(2, vec![text("k"), int(3), int(4)])])]);
    assert_eq!(device.rows(&format!("SELECT * FROM {quoted}")), [vec![text("k"), int(3), int(4)]]);
    device.take(&[table(name, &columns, vec![gone(3, vec![text("k"), int(0), int(0)])])]);
    assert_eq!(device.rows(&format!("SELECT * FROM {quoted}")), [[]; 0]);
}

#[test]
fn a_declared_key_without_an_index_is_a_key() {
    let mut overrides = cloud_table("t");
    overrides.key = Some(vec!["a".to_owned(), "b".to_owned()]);
    let mut device = Device::with("CREATE TABLE t(b, v, a)", vec![overrides], false);
    let row = |n, a: &str, b: i64, v: i64| put(n, vec![text(a), int(b), int(v)]);
    let rows = |rows| [keyed("t", &["a", "b", "v"], &[0, 1], rows)];
    device.take(&rows(vec![row(1, "x", 1, 10), row(2, "x", 2, 20)]));
    device.take(&rows(vec![row(3, "x", 1, 11)]));
    assert_eq!(
        device.rows("SELECT a, b, v FROM t ORDER BY b"),
        [vec![text("x"), int(1), int(11)], vec![text("x"), int(2), int(20)]]
    );
    device.take(&rows(vec![gone(4, vec![text("x"), int(1), Value::Null])]));
    assert_eq!(device.rows("SELECT b FROM t"), [[int(2)]]);
}

#[test]
fn a_document_table_holds_one_row() {
    let mut overrides = cloud_table("t");
    overrides.key = Some(Vec::new());
    let mut device = Device::with("CREATE TABLE t(v, w)", vec![overrides], false);
    let rows = |rows| [keyed("t", &["v"], &[], rows)];
    device.take(&rows(vec![put(1, vec![int(1)])]));
    device.app().execute("UPDATE t SET w = 5", []).unwrap();
    device.take(&rows(vec![put(2, vec![int(2)])]));
    assert_eq!(device.rows("SELECT v FROM t"), [[int(2)]]);
    device.take(&rows(vec![gone(3, vec![Value::Null])]));
    assert_eq!(device.rows("SELECT v FROM t"), [[]; 0]);
}

#[test]
fn a_raw_key_that_is_not_text_to_rust_is_found() {
    let mut device = Device::new("CREATE TABLE t(k TEXT PRIMARY KEY, v)", &["t"]);
    let key = Value::Text(vec![0xff, 0, 0xc3]);
    device.take(&[table("t", &["k", "v"], vec![put(1, vec![key.clone(), int(1)])])]);
    let app = device.app();
    let bound = ToSqlOutput::Borrowed(ValueRef::Text(&[0xff, 0, 0xc3]));
    assert_eq!(app.execute("UPDATE t SET v = 9 WHERE k = ?1", [bound]).unwrap(), 1);
    device.settle();
    assert_eq!(device.rows("SELECT v FROM t"), [[int(1)]]);
    device.take(&[table("t", &["k", "v"], vec![gone(2, vec![key, Value::Null])])]);
    assert_eq!(device.rows("SELECT v FROM t"), [[]; 0]);
}
