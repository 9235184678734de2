//! Local writes to cloud-authoritative tables: echoes go nowhere, edits are put back, rows that
//! were there first stay (cases APP-08, APP-10, and the attach rules).

use std::time::{Duration, Instant};

use sync_proto::continuity::Continuity;
use sync_proto::message::{Receipt, TableState, ToHub};
use sync_proto::rows::{TableRows, unpack};
use sync_proto::session::OutBatch;
use sync_proto::{Lane, Seq, Value, Version, wire};

use crate::cloud::{Device, cloud_table, gone, int, put, table, text};

const PLAIN: &str = "CREATE TABLE t(id INTEGER PRIMARY KEY, v)";

fn t(rows: Vec<sync_proto::rows::Row>) -> [TableRows; 1] {
    [table("t", &["id", "v"], rows)]
}

fn entries(device: &Device) -> i64 {
    let sql = "SELECT (SELECT count(*) FROM _rowtide_log WHERE t > 0)
                    + (SELECT count(*) FROM _rowtide_pending)";
    let Value::Int(count) = device.rows(sql)[0][0] else { panic!("a count is an integer") };
    count
}

fn reverted(device: &mut Device) -> u64 {
    device.capture.status().unwrap().tables.iter().map(|table| table.reverted).sum()
}

/// Everything that would go up now.
fn fill(device: &mut Device) -> Vec<OutBatch> {
    let lanes = Lane::ALL.map(|lane| (lane, Seq::ZERO, 4));
    device.capture.fill(&lanes, 1 << 20).unwrap()
}

#[test]
fn app_08_an_applied_row_is_not_sent_back() {
    let mut device = Device::new(PLAIN, &["t"]);
    device.take(&t((1..=1_000).map(|id| put(id, vec![int(id), int(id)])).collect()));
    assert!(entries(&device) >= 1_000, "the triggers did log");
    device.settle();
    assert_eq!(entries(&device), 0);
    assert_eq!(fill(&mut device), []);
    assert_eq!(reverted(&mut device), 0);
    // The numbers go on: the newest entry stays as an anchor.
    assert_eq!(device.rows("SELECT count(*) > 0 FROM _rowtide_log WHERE t = 0"), [[int(1)]]);
    // An edit to the value that is there is no edit.
    device.app().execute_batch("UPDATE t SET v = v").unwrap();
    device.settle();
    assert_eq!(entries(&device), 0);
    assert_eq!(reverted(&mut device), 0);
}

#[test]
fn app_10_a_local_edit_is_put_back_within_the_bound_without_a_hub() {
    let mut device = Device::new(PLAIN, &["t"]);
    device.take(&t(vec![put(7, vec![int(1), int(5)]), put(7, vec![int(2), text("two")])]));
    device.settle();
    let started = Instant::now();
    device
        .app()
        .execute_batch(
            "UPDATE t SET v = 9 WHERE id = 1; DELETE FROM t WHERE id = 2;
             INSERT INTO t VALUES(3, 'local'); UPDATE t SET id = 10 WHERE id = 1;",
        )
        .unwrap();
    device.settle();
    assert!(started.elapsed() < Duration::from_secs(2), "took {:?}", started.elapsed());
    assert_eq!(
        device.rows("SELECT * FROM t ORDER BY id"),
        [[int(1), int(5)], [int(2), text("two")],]
    );
    assert_eq!(entries(&device), 0);
    assert_eq!(fill(&mut device), [], "nothing of it goes up");
    let status = device.capture.status().unwrap();
    // The edit, the delete, the insert, and the key that the edit moved to.
    assert_eq!(status.tables[0].reverted, 4);
    let last = status.last_revert.unwrap();
    assert_eq!(last.table, "t");
    assert!(last.at.ends_with('Z'), "{}", last.at);
    // Before, during and after the next version.
    device.app().execute_batch("UPDATE t SET v = 'mine'").unwrap();
    device.take(&t(vec![put(8, vec![int(1), int(6)])]));
    device.app().execute_batch("UPDATE t SET v = 'mine again' WHERE id = 1").unwrap();
    device.settle();
    assert_eq!(
        device.rows("SELECT * FROM t ORDER BY id"),
        [[int(1), int(6)], [int(2), text("two")],]
    );
}

#[test]
fn a_revert_survives_a_restart() {
    let mut device = Device::new(PLAIN, &["t"]);
    device.take(&t(vec![put(1, vec![int(1), int(5)])]));
    device.settle();
    device.app().execute_batch("UPDATE t SET v = 9").unwrap();
    let mut device = device.restart();
    device.settle();
    assert_eq!(device.rows("SELECT v FROM t"), [[int(5)]]);
    assert_eq!(reverted(&mut device), 1);
    let mut device = device.restart();
    assert_eq!(reverted(&mut device), 1, "the count is kept in the file");
}

#[test]
fn nothing_to_check_writes_nothing() {
    let mut device = Device::new(PLAIN, &["t"]);
    device.take(&t(vec![put(1, vec![int(1), int(5)])]));
    device.settle();
    let before = device.bytes();
    for _step in 0..5 {
        assert_eq!(device.capture.housekeep().unwrap().again, None);
    }
    assert_eq!(device.bytes(), before);
}

#[test]
fn a_trigger_that_changes_the_row_again_is_no_endless_fight() {
    let schema = "CREATE TABLE t(id INTEGER PRIMARY KEY, v, n DEFAULT 0);
        CREATE TRIGGER bump AFTER UPDATE OF v ON t BEGIN
          UPDATE t SET n = abs(random()) WHERE id = NEW.id; END;";
    let mut device = Device::new(schema, &["t"]);
    device.take(&t(vec![put(1, vec![int(1), int(5)])]));
    device.settle();
    device.app().execute_batch("UPDATE t SET v = 9").unwrap();
    device.settle();
    assert_eq!(device.rows("SELECT v FROM t"), [[int(5)]]);
    assert_eq!(reverted(&mut device), 1, "put back once, then accepted as it stands");
    assert_eq!(entries(&device), 0);
    // The row as it stands is the one to come back to.
    device.app().execute_batch("UPDATE t SET v = 8").unwrap();
    device.settle();
    assert_eq!(device.rows("SELECT v FROM t"), [[int(5)]]);
    assert_eq!(reverted(&mut device), 2);
}

#[test]
fn two_tables_whose_triggers_answer_each_other_fight_slowly() {
    let schema = "CREATE TABLE a(id INTEGER PRIMARY KEY, v);
        CREATE TABLE b(id INTEGER PRIMARY KEY, v);
        CREATE TRIGGER ab AFTER UPDATE ON a BEGIN UPDATE b SET v = random() WHERE id = NEW.id; END;
        CREATE TRIGGER ba AFTER UPDATE ON b BEGIN UPDATE a SET v = random() WHERE id = NEW.id; END;";
    let mut device = Device::new(schema, &["a", "b"]);
    device.take(&[
        table("a", &["id", "v"], vec![put(1, vec![int(1), int(1)])]),
        table("b", &["id", "v"], vec![put(1, vec![int(1), int(1)])]),
    ]);
    device.settle();
    device.app().execute_batch("UPDATE a SET v = 2").unwrap();
    let started = Instant::now();
    let mut steps = 0;
    while started.elapsed() < Duration::from_millis(2_500) {
        let again = device.capture.housekeep().unwrap().again;
        steps += 1;
        std::thread::sleep(again.unwrap_or(Duration::from_millis(50)).min(Duration::from_secs(1)));
    }
    let count = reverted(&mut device);
    assert!((1..=8).contains(&count), "{count} rows were put back in 2.5 s, in {steps} steps");
}

#[test]
fn rows_that_the_applications_triggers_derive_elsewhere_go_up() {
    let schema = "CREATE TABLE orders(id INTEGER PRIMARY KEY, n);
        CREATE TABLE stock(id INTEGER PRIMARY KEY, left);
        INSERT INTO stock VALUES(1, 100);
        CREATE TRIGGER o AFTER INSERT ON orders BEGIN
          UPDATE stock SET left = left - NEW.n; END;";
    let stock = capture::config::TableConfig::new("stock");
    let mut device = Device::with(schema, vec![cloud_table("orders"), stock], false);
    drop(fill(&mut device));
    device.take(&[table("orders", &["id", "n"], vec![put(1, vec![int(1), int(7)])])]);
    device.settle();
    let sent: Vec<TableRows> = rows_of(&fill(&mut device));
    assert!(sent.iter().all(|table| table.table == "stock"), "{sent:?}");
    assert!(sent.iter().any(|table| table.rows.iter().any(|row| row.values[1] == int(93))));
}

#[test]
fn reverts_obey_foreign_keys_and_unique_values() {
    let schema = "CREATE TABLE p(id INTEGER PRIMARY KEY, u UNIQUE);
        CREATE TABLE c(id INTEGER PRIMARY KEY, pid REFERENCES p(id) ON DELETE CASCADE);";
    let mut device = Device::new(schema, &["p", "c"]);
    device.take(&[
        table("c", &["id", "pid"], (1..=20).map(|id| put(1, vec![int(id), int(id)])).collect()),
        table("p", &["id", "u"], (1..=20).map(|id| put(1, vec![int(id), int(id)])).collect()),
    ]);
    device.settle();
    // The parents go, their children with them; a local row takes a value of theirs; two rows of
    // the hub swap theirs.
    device
        .app()
        .execute_batch(
            "DELETE FROM p WHERE id <= 10; INSERT INTO p VALUES(100, 5);
             INSERT INTO c VALUES(100, 100);
             UPDATE p SET u = -u WHERE id IN (19, 20); UPDATE p SET u = 20 WHERE id = 19;
             UPDATE p SET u = 99 WHERE id = 20;",
        )
        .unwrap();
    device.settle();
    assert_eq!(device.rows("SELECT count(*), sum(id = u) FROM p"), [[int(20), int(20)]]);
    assert_eq!(device.rows("SELECT count(*), sum(id = pid) FROM c"), [[int(20), int(20)]]);
    assert_eq!(device.parked(), []);
}

#[test]
fn a_row_that_cannot_be_put_back_waits_in_quarantine() {
    let schema = "CREATE TABLE t(id INTEGER PRIMARY KEY, v);
        CREATE TABLE locked(id INTEGER);
        CREATE TRIGGER guard BEFORE UPDATE ON t WHEN (SELECT count(*) FROM locked) > 0 BEGIN
          SELECT RAISE(ABORT, 'closed'); END;";
    let mut device = Device::new(schema, &["t"]);
    device.take(&t(vec![put(3, vec![int(1), int(5)])]));
    device.settle();
    let app = device.app();
    app.execute_batch("UPDATE t SET v = 9; INSERT INTO locked VALUES(1)").unwrap();
    device.settle();
    assert_eq!(device.parked(), [("i:1".to_owned(), "trigger".to_owned())]);
    assert_eq!(entries(&device), 0);
    assert_eq!(device.rows("SELECT v FROM t"), [[int(9)]]);
    // The guard goes: the row comes back without a word of the hub.
    app.execute_batch("DROP TRIGGER guard").unwrap();
    device.settle();
    assert_eq!(device.rows("SELECT v FROM t"), [[int(5)]]);
    assert_eq!(device.parked(), []);
    // A local insert that cannot be deleted waits as well, and goes when it can.
    app.execute_batch(
        "CREATE TRIGGER keep BEFORE DELETE ON t BEGIN SELECT RAISE(ABORT, 'kept'); END;
         INSERT INTO t VALUES(2, 'local')",
    )
    .unwrap();
    device.settle();
    assert_eq!(device.parked(), [("i:2".to_owned(), "trigger".to_owned())]);
    app.execute_batch("DROP TRIGGER keep").unwrap();
    device.settle();
    assert_eq!(device.rows("SELECT id FROM t"), [[int(1)]]);
    assert_eq!(device.parked(), []);
}

#[test]
fn a_parked_revert_gives_way_to_a_newer_version() {
    let schema = "CREATE TABLE t(id INTEGER PRIMARY KEY, v);
        CREATE TRIGGER guard BEFORE UPDATE ON t WHEN NEW.v = 5 BEGIN
          SELECT RAISE(ABORT, 'not five'); END;";
    let mut device = Device::new(schema, &["t"]);
    device.take(&t(vec![put(3, vec![int(1), int(5)])]));
    device.settle();
    device.app().execute_batch("UPDATE t SET v = 9").unwrap();
    device.settle();
    assert_eq!(device.parked(), [("i:1".to_owned(), "trigger".to_owned())]);
    device.take(&t(vec![put(4, vec![int(1), int(6)])]));
    device.settle();
    assert_eq!(device.rows("SELECT v FROM t"), [[int(6)]]);
    assert_eq!(device.parked(), []);
}

#[test]
fn rows_that_were_there_first_stay_and_are_counted() {
    let schema = "CREATE TABLE t(id INTEGER PRIMARY KEY, v);
        INSERT INTO t VALUES(1, 'local one'), (2, 'local two'), (3, 'local three')";
    let mut device = Device::new(schema, &["t"]);
    assert_eq!(fill(&mut device), [], "the hub has the table: nothing is offered");
    assert_eq!(device.capture.status().unwrap().tables[0].surplus, 3);
    device.take(&t(vec![put(1, vec![int(2), text("cloud")])]));
    device.settle();
    assert_eq!(
        device.rows("SELECT v FROM t ORDER BY id"),
        [[text("local one")], [text("cloud")], [text("local three")],]
    );
    assert_eq!(device.capture.status().unwrap().tables[0].surplus, 2);
    // From here on the table is the cloud's: an edit of a surplus row is put back as well.
    device
        .app()
        .execute_batch("UPDATE t SET v = 'edited'; INSERT INTO t VALUES(4, 'new')")
        .unwrap();
    device.settle();
    assert_eq!(
        device.rows("SELECT v FROM t ORDER BY id"),
        [[text("local one")], [text("cloud")], [text("local three")],]
    );
    // The hub's delete of a row that only the device had counts.
    device.take(&t(vec![gone(5, vec![int(1), Value::Null])]));
    assert_eq!(device.capture.status().unwrap().tables[0].surplus, 1);
    assert_eq!(device.rows("SELECT id FROM t ORDER BY id"), [[int(2)], [int(3)]]);
}

fn rows_of(batches: &[OutBatch]) -> Vec<TableRows> {
    let mut rows = Vec::new();
    for batch in batches {
        let ToHub::Up(up) = wire::decode_to_hub(&batch.frame).unwrap() else {
            panic!("a frame to send is a batch")
        };
        rows.extend(unpack(&up.rows).unwrap());
    }
    rows
}

#[test]
fn rows_are_offered_where_the_hub_has_none() {
    let schema = "CREATE TABLE t(id INTEGER PRIMARY KEY, v);
        INSERT INTO t VALUES(1, 'one'), (2, 'two')";
    let mut device = Device::with(schema, vec![cloud_table("t")], true);
    // An edit before the hub has them does not take the offer back; the row stays as offered.
    device.app().execute_batch("UPDATE t SET v = 'edited' WHERE id = 1").unwrap();
    device.settle();
    let batches = fill(&mut device);
    let sent = rows_of(&batches);
    assert_eq!(sent.len(), 1);
    let mut rows: Vec<(Value, Option<Version>)> =
        sent[0].rows.iter().map(|row| (row.values[1].clone(), row.base)).collect();
    rows.sort_by_key(|(value, _)| format!("{value:?}"));
    assert_eq!(rows, [(text("one"), Some(Version::NONE)), (text("two"), Some(Version::NONE)),]);
    assert!(batches.iter().all(|batch| batch.lane == Lane::Backfill));
    let batch = &batches[0];
    let facts = device.capture.facts().unwrap();
    device
        .capture
        .settle(&Receipt {
            database: "app".to_owned(),
            epoch: facts.hello.epoch,
            lane: batch.lane,
            prev: batch.prev,
            last: batch.last,
            digest: batch.digest,
            watermark: batch.last,
            term: 1,
            outcomes: Vec::new(),
        })
        .unwrap();
    device.settle();
    assert_eq!(entries(&device), 0);
    // Taken, they come down the feed under the hub's version, which changes nothing but that.
    device.app().execute_batch("CREATE TABLE fired(n)").unwrap();
    let fires = "CREATE TRIGGER fires AFTER UPDATE ON t BEGIN INSERT INTO fired VALUES(1); END";
    device.app().execute_batch(fires).unwrap();
    device.settle();
    assert_eq!(device.capture.status().unwrap().tables[0].surplus, 2);
    device.take(&t(vec![put(1, vec![int(1), text("one")]), put(1, vec![int(2), text("two")])]));
    assert_eq!(device.capture.status().unwrap().tables[0].surplus, 0);
    assert_eq!(device.rows("SELECT * FROM fired"), [[]; 0]);
}

#[test]
fn before_the_hub_spoke_the_application_is_right() {
    let schema = "CREATE TABLE t(id INTEGER PRIMARY KEY, v); INSERT INTO t VALUES(1, 'one')";
    let mut device = Device::unwelcomed(schema, vec![cloud_table("t")], false);
    device.app().execute_batch("UPDATE t SET v = 'two'; INSERT INTO t VALUES(2, 'new')").unwrap();
    device.settle();
    assert_eq!(device.rows("SELECT v FROM t ORDER BY id"), [[text("two")], [text("new")]]);
    assert_eq!(reverted(&mut device), 0);
    device.welcome();
    device.settle();
    device.app().execute_batch("UPDATE t SET v = 'three'; DELETE FROM t WHERE id = 2").unwrap();
    device.settle();
    assert_eq!(device.rows("SELECT v FROM t ORDER BY id"), [[text("two")], [text("new")]]);
    assert_eq!(reverted(&mut device), 2);
}

#[test]
fn a_table_that_is_built_anew_gets_its_rows_back() {
    let mut device = Device::new(PLAIN, &["t"]);
    device.take(&t((1..=600).map(|id| put(id, vec![int(id), int(id)])).collect()));
    device.settle();
    device
        .app()
        .execute_batch(
            "BEGIN; DROP TABLE t; CREATE TABLE t(id INTEGER PRIMARY KEY, v);
             INSERT INTO t VALUES(1, 'other'), (601, 'own'); COMMIT",
        )
        .unwrap();
    device.settle();
    device.welcome();
    device.settle();
    assert_eq!(
        device.rows("SELECT count(*), sum(v = id) FROM t WHERE id <= 600"),
        [[int(600), int(600)]]
    );
    assert_eq!(device.rows("SELECT v FROM t WHERE id = 601"), [[text("own")]]);
    // The feed is taken again from its start; what is there stays untouched.
    let facts = device.capture.facts().unwrap();
    assert_eq!(facts.hello.cursor, sync_proto::Cursor::ZERO);
}

#[test]
fn many_local_writes_are_put_back_beside_a_busy_application() {
    let mut device = Device::new(PLAIN, &["t"]);
    device.take(&t((1..=5_000).map(|id| put(id, vec![int(id), int(id)])).collect()));
    device.settle();
    device
        .app()
        .execute_batch("UPDATE t SET v = -v WHERE id % 2 = 0; DELETE FROM t WHERE id % 5 = 0")
        .unwrap();
    let path = device.path().to_owned();
    let (done, stop) = std::sync::mpsc::sync_channel::<()>(1);
    let writer = std::thread::spawn(move || {
        let app = crate::cloud::connect(&path);
        app.execute_batch("CREATE TABLE mine(id INTEGER PRIMARY KEY)").unwrap();
        let mut writes = 0_i64;
        while stop.try_recv().is_err() {
            app.execute("INSERT INTO mine DEFAULT VALUES", []).expect("no write fails");
            writes += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
        writes
    });
    let until = Instant::now() + Duration::from_secs(60);
    while device.rows("SELECT count(*) FROM t WHERE v = id") != [[int(5_000)]] {
        assert!(Instant::now() < until, "not put back in time");
        device.capture.housekeep().unwrap();
    }
    done.send(()).unwrap();
    assert!(writer.join().unwrap() > 10);
    assert_eq!(reverted(&mut device), 3_000);
}

#[test]
fn a_hub_that_lost_its_history_is_followed_all_the_same() {
    let mut device = Device::new(PLAIN, &["t"]);
    device.take(&t((1..=600).map(|id| put(1_000 + id, vec![int(id), int(id)])).collect()));
    device.take(&t(vec![gone(2_000, vec![int(600), Value::Null])]));
    device.settle();
    // It has older versions than it gave out, and nothing of some rows.
    device.welcome_after_loss(false);
    device.settle();
    assert_eq!(device.capture.status().unwrap().tables[0].surplus, 599);
    device.take(&t(vec![
        put(3, vec![int(1), text("older")]),
        put(3, vec![int(2), int(2)]),
        put(3, vec![int(600), text("back")]),
    ]));
    assert_eq!(
        device.rows("SELECT v FROM t WHERE id IN (1, 2, 600)"),
        [[text("older")], [int(2)], [text("back")],]
    );
    assert_eq!(device.capture.status().unwrap().tables[0].surplus, 597);
    assert_eq!(fill(&mut device), []);
}

#[test]
fn a_hub_that_lost_a_table_is_offered_its_rows() {
    let mut device = Device::new(PLAIN, &["t"]);
    device.take(&t((1..=10).map(|id| put(1_000 + id, vec![int(id), int(id)])).collect()));
    device.settle();
    device.welcome_after_loss(true);
    device.settle();
    let sent = rows_of(&fill(&mut device));
    assert_eq!(sent.iter().map(|table| table.rows.len()).sum::<usize>(), 10);
    assert!(sent.iter().all(|table| table.rows.iter().all(|row| row.base == Some(Version::NONE))));
}

#[test]
fn nothing_is_put_back_while_it_is_disputed_who_is_right() {
    let mut device = Device::new(PLAIN, &["t"]);
    device.take(&t(vec![put(1, vec![int(1), int(5)])]));
    device.settle();
    let disputed = TableState::AuthorityMismatch { hub: "device".to_owned() };
    let same = Continuity::Same { lost_receipts: Vec::new() };
    device.welcome_as(&disputed, &same);
    device.app().execute_batch("UPDATE t SET v = 9").unwrap();
    device.settle();
    assert_eq!(device.rows("SELECT v FROM t"), [[int(9)]]);
    // What comes down waits.
    device.down(&t(vec![put(2, vec![int(2), int(2)])]));
    assert_eq!(device.parked(), [("i:2".to_owned(), "held".to_owned())]);
    device.welcome_as(&TableState::Flowing, &same);
    device.settle();
    assert_eq!(device.rows("SELECT v FROM t ORDER BY id"), [[int(5)], [int(2)]]);
    assert_eq!(device.parked(), []);
}
