//! Batches: labels over everything logged in the snapshot, lanes, cuts, heads, and what is set
//! aside because no batch can carry it.

use capture::config::TableConfig;
use sync_proto::message::{Outcome, Reason, ToHub, UpBatch};
use sync_proto::schema::{Authority, Modality};
use sync_proto::session::OutBatch;
use sync_proto::{Lane, Value, Version, rows, wire};

use crate::model::{Device, Hub, connect, folder, keyed};

const T: &str = "CREATE TABLE t(id INTEGER PRIMARY KEY, v)";

fn decode(batch: &OutBatch) -> UpBatch {
    let ToHub::Up(batch) = wire::decode_to_hub(&batch.frame).unwrap() else {
        panic!("a frame of fill is an UpBatch");
    };
    batch
}

/// (number, first value, whether it is a tombstone) of every row.
fn rows_in(batch: &OutBatch) -> Vec<(i64, Value, bool)> {
    let tables = rows::unpack(&decode(batch).rows).unwrap();
    tables
        .iter()
        .flat_map(|table| &table.rows)
        .map(|row| (row.number, row.values[0].clone(), row.deleted))
        .collect()
}

#[test]
fn a_key_changed_after_the_prefix_never_goes_under_its_old_number() {
    for folded in [false, true] {
        let mut device = Device::new(T);
        device.sync();
        device.sql(
            "INSERT INTO t VALUES(1, 'old'), (2, 'b'), (3, 'c'), (4, 'd'); UPDATE t SET v = 'new' \
             WHERE id = 1",
        );
        if folded {
            // Four of the five entries are folded; the change of key 1 stays in the tail.
            device.set_bounds(2);
            device.housekeep();
            device.set_bounds(4096);
            assert_eq!(device.waiting(), (1, 4));
        }
        // One row a batch: a prefix that ends before the second entry of key 1.
        let first = device.fill_sized(1, 1).remove(0);
        let rows = rows_in(&first);
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].1, Value::Int(2), "key 1 comes last: {rows:?}");
        device.deliver(&first);
        device.sync();
        device.assert_equal("t", &["id"]);
        let labels: Vec<i64> = device
            .hub
            .rows
            .values()
            .filter(|row| row.values.as_ref().unwrap()["id"] == Value::Int(1))
            .map(|row| row.version.0)
            .collect();
        assert_eq!(labels, [5], "one put under the newest number");
    }
}

#[test]
fn a_receipt_clears_a_key_only_up_to_the_number_that_was_sent() {
    let mut device = Device::new(T);
    device.sql("INSERT INTO t VALUES(1, 'a')");
    let sent = device.fill(1);
    device.sql("UPDATE t SET v = 'b'");
    for batch in &sent {
        device.deliver(batch);
    }
    assert_eq!(device.waiting().0, 1, "the update is still there");
    device.sync();
    device.assert_equal("t", &["id"]);
    // The same with the update folded over the entry that is on its way.
    device.sql("UPDATE t SET v = 'c'");
    let sent = device.fill(1);
    device.sql("UPDATE t SET v = 'd'; INSERT INTO t VALUES(2, 'x'), (3, 'y')");
    device.set_bounds(1);
    device.housekeep();
    for batch in &sent {
        device.deliver(batch);
    }
    device.sync();
    device.assert_equal("t", &["id"]);
}

#[test]
fn lanes_follow_modality_and_a_change_wins_over_a_seed() {
    let schema =
        "CREATE TABLE s(id INTEGER PRIMARY KEY, v); CREATE TABLE m(id INTEGER PRIMARY KEY, v);
                  INSERT INTO s VALUES(1, 'before'); INSERT INTO m VALUES(1, 'before')";
    let mut device = Device::with(schema, |config| {
        let state = TableConfig { modality: Modality::State, ..TableConfig::new("s") };
        config.overrides = vec![state];
    });
    device.housekeep();
    device.sql("UPDATE m SET v = 'changed'; INSERT INTO s VALUES(2, 'live')");
    let batches = device.fill(4);
    let lanes: Vec<Lane> = batches.iter().map(|batch| batch.lane).collect();
    assert_eq!(lanes, [Lane::State, Lane::Mutable, Lane::Backfill]);
    let tables = |batch| {
        let rows = rows::unpack(&decode(batch).rows).unwrap();
        rows.into_iter().map(|table| table.table).collect::<Vec<_>>()
    };
    assert_eq!(tables(&batches[0]), ["s"]);
    assert_eq!(tables(&batches[1]), ["m"], "its seed is overridden by the change");
    assert_eq!(tables(&batches[2]), ["s"]);
    for batch in &batches {
        device.deliver(batch);
    }
    assert_eq!(device.waiting(), (0, 0));
}

#[test]
fn a_folded_change_is_not_taken_back_to_backfill_by_a_later_seed() {
    let mut device = Device::new(T);
    device.sync();
    device.sql("INSERT INTO t VALUES(1, 'live'), (2, 'live')");
    device.set_bounds(1);
    device.housekeep();
    capture::reseed(&device.path(), "t").unwrap();
    device.set_bounds(4096);
    device.housekeep();
    let lanes: Vec<Lane> = device.fill(4).iter().map(|batch| batch.lane).collect();
    assert_eq!(lanes, [Lane::Mutable]);
}

#[test]
fn batches_chain_are_cut_by_bytes_and_end_at_the_head() {
    let mut device = Device::new(T);
    device.sync();
    device.sql(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
         INSERT INTO t SELECT i, zeroblob(100) FROM n",
    );
    let batches = device.fill_sized(4, 10_000);
    assert_eq!(batches.len(), 4);
    let newest = decode(&batches[0]).head;
    for batch in &batches {
        let decoded = decode(batch);
        assert!(decoded.rows.raw_len < 12_000, "{}", decoded.rows.raw_len);
        assert_eq!(decoded.head, newest, "one snapshot, one head");
        device.deliver(batch);
    }
    device.sync();
    device.assert_equal("t", &["id"]);
    assert_eq!(device.hub.heads[&Lane::Mutable], newest);
    let epoch = device.hub.batches[0].epoch;
    assert_eq!(device.hub.watermark(epoch, Lane::Mutable), newest, "the lane is consistent");
}

#[test]
fn a_row_that_no_batch_can_carry_is_set_aside_and_comes_back_when_it_shrinks() {
    let mut device = Device::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v, w)");
    device.sync();
    // One value above the limit, and two that are above it together.
    device.sql(
        "INSERT INTO t VALUES(1, 'small', NULL), (2, zeroblob(17000000), NULL),
         (3, zeroblob(9000000), zeroblob(9000000)), (4, 'after', NULL)",
    );
    device.sync();
    let code = "row_too_large".to_owned();
    let expected = [
        ("t".to_owned(), "i:2".to_owned(), code.clone()),
        ("t".to_owned(), "i:3".to_owned(), code),
    ];
    assert_eq!(device.parked(), expected);
    assert_eq!(device.hub.live("t").len(), 2, "the others flow");
    assert_eq!(device.waiting(), (0, 0));
    device.sql("UPDATE t SET v = 'fits', w = NULL");
    device.sync();
    assert_eq!(device.parked(), []);
    device.assert_equal("t", &["id"]);
}

#[test]
fn a_large_row_goes_alone() {
    let mut device = Device::new(T);
    device.sync();
    device.sql("INSERT INTO t VALUES(1, 'a'), (2, zeroblob(3000000)), (3, 'c')");
    let batches = device.fill(4);
    let sizes: Vec<usize> = batches.iter().map(|batch| rows_in(batch).len()).collect();
    assert_eq!(sizes, [1, 1, 1]);
    for batch in &batches {
        device.deliver(batch);
    }
    device.assert_equal("t", &["id"]);
}

#[test]
fn null_keys_are_set_aside_while_they_last() {
    for folded in [false, true] {
        let mut device = Device::new("CREATE TABLE t(a, b, v, PRIMARY KEY(a, b))");
        device.sync();
        device.sql("INSERT INTO t VALUES(1, NULL, 'x'), (1, NULL, 'y'), (1, 2, 'fine')");
        if folded {
            device.set_bounds(1);
            device.housekeep();
            device.set_bounds(4096);
        }
        device.sync();
        let expected = ("t".to_owned(), "i:1,n:".to_owned(), "null_key".to_owned());
        assert_eq!(device.parked(), std::slice::from_ref(&expected));
        assert_eq!(device.hub.live("t").len(), 1);
        device.sql("DELETE FROM t WHERE v = 'x'");
        device.sync();
        assert_eq!(device.parked(), [expected], "there is still one");
        device.sql("UPDATE t SET b = 3 WHERE v = 'y'");
        if folded {
            device.set_bounds(1);
            device.housekeep();
        }
        device.sync();
        assert_eq!(device.parked(), []);
        device.assert_equal("t", &["a", "b"]);
    }
}

#[test]
fn null_keys_that_were_there_before_are_found_by_seeding() {
    let mut device = Device::new(
        "CREATE TABLE t(a, b, PRIMARY KEY(a, b)); INSERT INTO t VALUES(NULL, 1), (NULL, 1), (1, 1)",
    );
    device.sync();
    assert_eq!(device.parked(), [("t".into(), "n:,i:1".into(), "null_key".into())]);
    assert_eq!(device.hub.live("t").len(), 1);
}

#[test]
fn a_document_table_has_one_row_or_is_set_aside() {
    let mut device =
        Device::with("CREATE TABLE doc(a, b); INSERT INTO doc VALUES(1, 2)", |config| {
            config.overrides = vec![keyed("doc", &[])];
        });
    device.sync();
    device.assert_equal("doc", &[]);
    device.sql("UPDATE doc SET a = 'changed'");
    device.sync();
    device.assert_equal("doc", &[]);
    device.sql("INSERT INTO doc VALUES(3, 4)");
    device.sync();
    assert_eq!(device.parked(), [("doc".into(), String::new(), "document_rows".into())]);
    device.sql("DELETE FROM doc WHERE a = 'changed'");
    device.sync();
    assert_eq!(device.parked(), []);
    device.assert_equal("doc", &[]);
    device.sql("DELETE FROM doc");
    device.sync();
    assert_eq!(device.hub.live("doc").len(), 0);
    assert_eq!(device.hub.rows.len(), 1, "a tombstone");
}

#[test]
fn rows_that_share_a_declared_key_are_set_aside() {
    let mut device = Device::with("CREATE TABLE t(k, v); INSERT INTO t VALUES('a', 1)", |config| {
        config.overrides = vec![keyed("t", &["k"])];
    });
    device.sync();
    device.sql("INSERT INTO t VALUES('a', 2), ('b', 3)");
    device.sync();
    assert_eq!(device.parked(), [("t".into(), "t:a".into(), "ambiguous_key".into())]);
    device.sql("DELETE FROM t WHERE v = 1");
    device.sync();
    assert_eq!(device.parked(), []);
    device.assert_equal("t", &["k"]);
}

#[test]
fn outcomes_lead_to_what_they_should() {
    let mut device = Device::new(T);
    device.sync();
    let rejected = Reason { code: "constraint".to_owned(), message: "too tall".to_owned() };
    device.hub.answers.insert("i:1".to_owned(), Outcome::Rejected(rejected));
    device.hub.answers.insert("i:2".to_owned(), Outcome::Diverged);
    device.hub.answers.insert("i:3".to_owned(), Outcome::Conflict);
    device.sql("INSERT INTO t VALUES(1, 'r'), (2, 'd'), (3, 'c'), (4, 'fine')");
    device.sync();
    let table = &device.capture.status().unwrap().tables[0];
    assert_eq!(table.quarantine, 1);
    assert_eq!(table.last_error.as_deref(), Some("constraint: too tall"));
    assert_eq!(table.outcomes.get("conflict"), Some(&1));
    assert_eq!(table.outcomes.get("diverged"), Some(&1));
    assert_eq!(device.parked(), [("t".into(), "i:1".into(), "constraint".into())]);
    let live = device.hub.live("t");
    assert_eq!(live.keys().collect::<Vec<_>>(), ["i:2", "i:4"], "the diverged one went again");
    assert_eq!(device.waiting(), (0, 0));
    device.sql("UPDATE t SET v = 'better'");
    device.sync();
    assert_eq!(device.parked(), [], "a newer version that is taken ends the quarantine");
    device.assert_equal("t", &["id"]);
}

#[test]
fn a_paused_table_is_captured_held_and_released() {
    for folded in [false, true] {
        let mut device = Device::new(
            "CREATE TABLE p(id INTEGER PRIMARY KEY, v); CREATE TABLE q(id INTEGER PRIMARY KEY, v)",
        );
        device.sync();
        device.sql("INSERT INTO p VALUES(1, 'before'), (2, 'stays')");
        if folded {
            device.set_bounds(1);
            device.housekeep();
            device.set_bounds(4096);
        }
        let pause = sync_proto::message::Control::Pause { table: "p".to_owned() };
        device.capture.obey(&pause).unwrap();
        device.hub.states.insert("p".into(), sync_proto::message::TableState::Paused);
        device.sql("INSERT INTO q VALUES(1, 'flows'); DELETE FROM p WHERE id = 1");
        device.sync();
        assert_eq!(device.hub.live("p").len(), 0);
        device.assert_equal("q", &["id"]);
        assert_eq!(device.capture.status().unwrap().tables[0].status, "paused");
        // A lost receipt of the other table's range must not sweep the held keys away.
        device.sql("INSERT INTO q VALUES(2, 'lost receipt')");
        for batch in device.fill(1) {
            device.hub.take(&batch.frame);
        }
        device.hub.states.clear();
        device.reopen();
        device.sync();
        device.assert_equal("p", &["id"]);
        device.assert_equal("q", &["id"]);
        assert_eq!(device.waiting(), (0, 0));
        assert_eq!(device.capture.status().unwrap().status, "healthy");
    }
}

#[test]
fn lost_receipts_are_settled_by_the_next_welcome() {
    let mut device = Device::new(T);
    device.sync();
    device.sql("INSERT INTO t VALUES(1, 'a'), (2, 'b')");
    for batch in device.fill(1) {
        device.hub.take(&batch.frame);
    }
    device.sql("UPDATE t SET v = 'later' WHERE id = 2");
    device.reopen();
    assert_eq!(device.waiting().0, 2, "what is logged of the key that changed later is left");
    let sent = device.hub.batches.len();
    device.sync();
    device.assert_equal("t", &["id"]);
    assert_eq!(device.hub.batches.len(), sent + 1);
}

#[test]
fn a_receipt_of_an_unknown_batch_settles_nothing() {
    let mut device = Device::new(T);
    device.sync();
    device.sql("INSERT INTO t VALUES(1, 'a')");
    let batch = device.fill(1).remove(0);
    let mut receipt = device.hub.take(&batch.frame);
    receipt.digest = sync_proto::Digest([7; 32]);
    device.capture.settle(&receipt).unwrap();
    assert_eq!(device.waiting().0, 1);
    receipt.epoch = sync_proto::Epoch(uuid::Uuid::new_v4());
    device.capture.settle(&receipt).unwrap();
    assert_eq!(device.waiting().0, 1);
}

#[test]
fn no_transaction_of_ours_is_open_after_a_call() {
    for mode in ["WAL", "DELETE", "TRUNCATE", "PERSIST"] {
        let dir = folder();
        connect(&dir.path().join("app.db"))
            .execute_batch(&format!("PRAGMA journal_mode = {mode}; {T}"))
            .unwrap();
        let mut device = Device::on(dir, |_config| {});
        device.sync();
        device.sql("INSERT INTO t VALUES(1, 'a')");
        let batches = device.fill(1);
        let app = device.app();
        app.busy_timeout(std::time::Duration::ZERO).unwrap();
        // An exclusive lock bears no reader, and a truncating checkpoint neither.
        app.execute_batch("BEGIN EXCLUSIVE; INSERT INTO t VALUES(2, 'b'); COMMIT").unwrap();
        if mode == "WAL" {
            let busy: i64 =
                app.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)).unwrap();
            assert_eq!(busy, 0);
        }
        for batch in &batches {
            device.deliver(batch);
        }
        device.sync();
        device.assert_equal("t", &["id"]);
        let now: String =
            device.app().query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
        // Of the journal modes only WAL is kept in the file.
        assert_eq!(now == "wal", mode == "WAL", "we never set it");
    }
}

#[test]
fn rows_offered_for_adoption_go_as_swaps_against_nothing() {
    let dir = folder();
    connect(&dir.path().join("app.db"))
        .execute_batch("CREATE TABLE c(id INTEGER PRIMARY KEY, v); INSERT INTO c VALUES(1, 'a')")
        .unwrap();
    let mut hub = Hub::new();
    hub.adopt = true;
    let mut device = Device::meet(dir, hub, |config| {
        config.overrides =
            vec![TableConfig { authority: Authority::Cloud, ..TableConfig::new("c") }];
    });
    device.sync();
    device.assert_equal("c", &["id"]);
    assert!(device.hub.rows.values().all(|row| row.base == Some(Version::NONE)));
    assert_eq!(device.hub.batches[0].lane, Lane::Backfill);
    assert_eq!(device.waiting(), (0, 0));
}
