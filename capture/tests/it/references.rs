//! Rows that refer to each other, in any order and across transactions (case APP-04).

use sync_proto::Value;

use crate::cloud::{Device, gone, int, outcomes, put, table};

const FAMILY: &str = "CREATE TABLE p(id INTEGER PRIMARY KEY, v);
    CREATE TABLE c(id INTEGER PRIMARY KEY, pid REFERENCES p(id), v);
    CREATE TABLE n(id INTEGER PRIMARY KEY, up REFERENCES n(id));";

#[test]
fn app_04_children_and_parents_come_in_any_order() {
    let mut device = Device::new(FAMILY, &["p", "c", "n"]);
    let c = |rows| table("c", &["id", "pid", "v"], rows);
    let p = |rows| table("p", &["id", "v"], rows);
    let n = |rows| table("n", &["id", "up"], rows);
    device.take(&[
        c(vec![put(1, vec![int(1), int(9), int(0)])]),
        p(vec![put(1, vec![int(9), int(0)])]),
        // A cycle, a chain from its end, and a row that refers to itself.
        n(vec![
            put(1, vec![int(1), int(2)]),
            put(1, vec![int(2), int(1)]),
            put(1, vec![int(4), int(3)]),
            put(1, vec![int(3), Value::Null]),
            put(1, vec![int(5), int(5)]),
        ]),
    ]);
    assert_eq!(device.rows("SELECT count(*) FROM n"), [[int(5)]]);
    device.take(&[
        p(vec![gone(2, vec![int(9), Value::Null])]),
        c(vec![gone(2, vec![int(1), Value::Null, Value::Null])]),
        n(vec![gone(2, vec![int(1), Value::Null]), gone(2, vec![int(2), Value::Null])]),
    ]);
    assert_eq!(device.rows("SELECT * FROM p UNION ALL SELECT id, pid FROM c"), [[]; 0]);
    assert_eq!(device.rows("SELECT id FROM n ORDER BY id"), [[int(3)], [int(4)], [int(5)]]);
}

#[test]
fn app_04_only_the_rows_that_break_a_reference_wait() {
    let mut device = Device::new(FAMILY, &["p", "c", "n"]);
    let c = |rows| table("c", &["id", "pid", "v"], rows);
    let p = |rows| table("p", &["id", "v"], rows);
    let receipt = device.down(&[
        c((1..=40).map(|id| put(1, vec![int(id), int(id % 4), int(0)])).collect()),
        // A cycle beside them must not suffer.
        table("n", &["id", "up"], vec![put(1, vec![int(1), int(2)]), put(1, vec![int(2), int(1)])]),
        p((1..=3).map(|id| put(1, vec![int(id), int(0)])).collect()),
    ]);
    let refused = outcomes(&receipt);
    assert_eq!(refused.len(), 10, "{refused:?}");
    assert!(refused.iter().all(|row| row.1 == "rejected" && row.2 == "foreign_key"));
    assert_eq!(device.rows("SELECT count(*) FROM c"), [[int(30)]]);
    assert_eq!(device.rows("SELECT count(*) FROM n"), [[int(2)]]);
    // Their parent comes in a later batch.
    device.take(&[p(vec![put(2, vec![int(0), int(0)])])]);
    assert_eq!(device.rows("SELECT count(*) FROM c"), [[int(40)]]);
    assert_eq!(device.parked(), []);
    // A parent goes while its children stay: that delete waits, the rest of its batch does not.
    let receipt =
        device.down(&[p(vec![gone(3, vec![int(1), Value::Null]), put(3, vec![int(2), int(7)])])]);
    assert_eq!(outcomes(&receipt), [("i:1", "rejected", "foreign_key")]);
    assert_eq!(
        device.rows("SELECT v FROM p WHERE id <= 2 ORDER BY id"),
        [[int(0)], [int(0)], [int(7)]]
    );
    let children = (1..=40).filter(|id| id % 4 == 1);
    device.take(&[c(children.map(|id| gone(4, vec![int(id), int(0), int(0)])).collect())]);
    assert_eq!(device.rows("SELECT count(*) FROM p WHERE id = 1"), [[int(0)]]);
    assert_eq!(device.parked(), []);
}

#[test]
fn app_04_references_reach_across_transactions() {
    let mut device = Device::new(FAMILY, &["p", "c", "n"]);
    let n = 4_000;
    let ids = || 1..=n;
    // Every child comes before every parent, in more rows than one transaction takes.
    device.take(&[
        table("c", &["id", "pid"], ids().map(|id| put(1, vec![int(id), int(id)])).collect()),
        table("p", &["id"], ids().map(|id| put(1, vec![int(id)])).collect()),
    ]);
    assert_eq!(device.rows("SELECT count(*) FROM c JOIN p ON p.id = c.pid"), [[int(n)]]);
    // Every parent goes before every child.
    let gone = |id| gone(2, vec![int(id)]);
    device.take(&[
        table("p", &["id"], ids().map(gone).collect()),
        table("c", &["id"], ids().map(gone).collect()),
    ]);
    assert_eq!(device.rows("SELECT count(*) FROM c, p"), [[int(0)]]);
    assert_eq!(device.parked(), []);
}
