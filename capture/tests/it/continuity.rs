//! Is it the same file? Restored copies, replaced files, lost state, crashes in the middle of a
//! barrier, hubs that know more or less: each ends in a named state with every row at the hub.

use std::path::{Path, PathBuf};

use capture::{CaptureError, ErrorClass};
use rusqlite::Connection;
use sync_proto::continuity::Continuity;
use sync_proto::{Epoch, Incarnation, Seq};
use uuid::Uuid;

use crate::model::{Device, Hub, connect, folder};

const T: &str = "CREATE TABLE t(id INTEGER PRIMARY KEY, v)";

/// A copy as a backup makes one.
fn backup(device: &Device, name: &str) -> PathBuf {
    let copy = device.dir.path().join(name);
    device.sql(&format!("VACUUM INTO '{}'", copy.display()));
    copy
}

/// Puts a copy at the path of the device's file, as an operator does: the old one goes away.
fn put_in_place(device: &Device, copy: &Path) {
    for suffix in ["-wal", "-shm"] {
        let mut name = device.path().into_os_string();
        name.push(suffix);
        // It may have been checkpointed away.
        let _gone = std::fs::remove_file(name);
    }
    std::fs::rename(copy, device.path()).unwrap();
}

fn epoch(device: &mut Device) -> Epoch {
    device.capture.facts().unwrap().hello.epoch
}

fn alarms(device: &mut Device) -> Vec<String> {
    device.capture.status().unwrap().alarms.into_iter().map(|alarm| alarm.code).collect()
}

fn state_db(device: &Device) -> Connection {
    connect(&device.dir.path().join("state/state.db"))
}

#[test]
fn the_same_file_stays_in_its_epoch() {
    let mut device = Device::new(T);
    device.sql("INSERT INTO t VALUES(1, 'a')");
    device.sync();
    let before = device.capture.facts().unwrap().hello;
    device.reopen();
    let after = device.capture.facts().unwrap().hello;
    assert_eq!((after.epoch, after.instance), (before.epoch, before.instance));
    assert_eq!(after.lanes, before.lanes);
    assert!(!after.lanes.is_empty());
    assert_eq!(alarms(&mut device), [""; 0]);
}

#[test]
fn a_restored_copy_begins_a_new_epoch_and_loses_nothing() {
    let mut device = Device::new(T);
    device.sql("INSERT INTO t VALUES(1, 'a'), (2, 'b')");
    device.sync();
    let copy = backup(&device, "copy.db");
    device.sql("UPDATE t SET v = 'later'; DELETE FROM t WHERE id = 2");
    device.sync();
    let before = epoch(&mut device);
    put_in_place(&device, &copy);
    // The running agent notices by itself.
    let error = device.capture.housekeep().unwrap_err();
    assert!(matches!(error, CaptureError::Moved { .. }), "{error}");
    assert_eq!(error.class(), ErrorClass::Retry);
    device.reopen();
    assert_ne!(epoch(&mut device), before);
    assert_eq!(alarms(&mut device), ["database_restored"]);
    device.sync();
    device.assert_equal("t", &["id"]);
    assert_eq!(alarms(&mut device), [""; 0], "dealt with once every row is sent");
}

#[test]
fn a_copy_restored_through_sqlite_is_noticed_too() {
    let mut device = Device::new(T);
    device.sql("INSERT INTO t VALUES(1, 'a')");
    device.sync();
    let copy = backup(&device, "copy.db");
    device.sql("UPDATE t SET v = 'later'");
    device.sync();
    let restored = std::process::Command::new("sqlite3")
        .arg(device.path())
        .arg(".timeout 2000")
        .arg(format!(".restore {}", copy.display()))
        .output()
        .unwrap();
    assert!(restored.status.success(), "{restored:?}");
    let error = device.capture.fill(&[(sync_proto::Lane::Mutable, Seq::ZERO, 1)], 1000);
    let error = error.err().or_else(|| device.capture.housekeep().err()).unwrap();
    assert!(matches!(error, CaptureError::Moved { .. }), "{error}");
    device.reopen();
    assert_eq!(alarms(&mut device), ["database_restored"]);
    device.sync();
    device.assert_equal("t", &["id"]);
}

#[test]
fn a_file_that_was_created_anew_is_another_installation() {
    let mut device = Device::new(T);
    device.sql("INSERT INTO t VALUES(1, 'a')");
    device.sync();
    let before = device.capture.facts().unwrap().hello;
    let fresh = device.dir.path().join("fresh.db");
    connect(&fresh).execute_batch(&format!("{T}; INSERT INTO t VALUES(5, 'new')")).unwrap();
    put_in_place(&device, &fresh);
    device.reopen();
    let after = device.capture.facts().unwrap().hello;
    assert_ne!(after.instance, before.instance);
    assert_ne!(after.epoch, before.epoch);
    assert_eq!(alarms(&mut device), ["database_replaced"]);
    device.sync();
    let live = device.hub.live("t");
    assert!(live.contains_key("i:5") && live.contains_key("i:1"), "absence is no delete: {live:?}");
}

#[test]
fn a_missing_or_emptied_file_is_waited_for() {
    let mut device = Device::new(T);
    device.sync();
    let aside = device.dir.path().join("aside.db");
    std::fs::rename(device.path(), &aside).unwrap();
    let error = device.capture.housekeep().unwrap_err();
    assert!(matches!(error, CaptureError::Missing { .. }), "{error}");
    assert_eq!(error.class(), ErrorClass::Wait);
    assert!(!device.path().exists(), "nothing is created");
    std::fs::write(device.path(), b"").unwrap();
    let error = device.capture.facts().unwrap_err();
    assert!(matches!(error, CaptureError::Empty { .. }), "{error}");
    std::fs::rename(&aside, device.path()).unwrap();
    device.capture.housekeep().unwrap();
}

#[test]
fn a_lost_state_directory_keeps_the_installation() {
    let mut device = Device::new(T);
    device.sql("INSERT INTO t VALUES(1, 'a')");
    device.sync();
    let before = device.capture.facts().unwrap().hello;
    std::fs::remove_dir_all(device.dir.path().join("state")).unwrap();
    device.reopen();
    let after = device.capture.facts().unwrap().hello;
    assert_eq!(after.instance, before.instance);
    assert_ne!(after.epoch, before.epoch);
    assert_eq!(alarms(&mut device), ["state_lost"]);
    device.sync();
    device.assert_equal("t", &["id"]);
}

#[test]
fn a_crash_between_the_two_commits_of_a_barrier_is_no_other_history() {
    let mut device = Device::new(T);
    device.sql("INSERT INTO t VALUES(1, 'a')");
    let stamp = |device: &Device| -> Vec<u8> {
        state_db(device).query_row("SELECT stamp FROM databases", [], |row| row.get(0)).unwrap()
    };
    let before = stamp(&device);
    let epoch_before = epoch(&mut device);
    assert!(!device.fill(1).is_empty());
    assert_ne!(stamp(&device), before, "every barrier replaces it");
    state_db(&device).execute("UPDATE databases SET stamp = ?1", [&before]).unwrap();
    device.reopen();
    assert_eq!(epoch(&mut device), epoch_before);
    assert_eq!(alarms(&mut device), [""; 0]);
    device.sync();
    // Two barriers behind is another history.
    state_db(&device).execute("UPDATE databases SET stamp = ?1", [&before]).unwrap();
    device.reopen();
    assert_ne!(epoch(&mut device), epoch_before);
}

#[test]
fn state_that_cannot_be_written_hands_nothing_out_and_loses_nothing() {
    let mut device = Device::new(T);
    device.sql("INSERT INTO t VALUES(1, 'a')");
    let lanes = [(sync_proto::Lane::Mutable, Seq::ZERO, 1)];
    state_db(&device)
        .execute_batch(
            "CREATE TRIGGER no BEFORE INSERT ON databases BEGIN SELECT RAISE(ABORT, 'full'); END",
        )
        .unwrap();
    for _again in 0..3 {
        let error = device.capture.fill(&lanes, 1000).unwrap_err();
        assert!(error.to_string().contains("state.db"), "{error}");
    }
    state_db(&device).execute_batch("DROP TRIGGER no").unwrap();
    let before = epoch(&mut device);
    device.reopen();
    assert_eq!(epoch(&mut device), before, "the failed barriers did not pile up");
    device.sync();
    device.assert_equal("t", &["id"]);
}

#[test]
fn a_hub_that_holds_what_this_file_never_sent_forks_it() {
    let mut device = Device::new(T);
    device.sql("INSERT INTO t VALUES(1, 'a')");
    device.sync();
    // A clone with its own state directory sends in the same epoch.
    let twin_dir = folder();
    let copy = backup(&device, "twin.db");
    std::fs::rename(copy, twin_dir.path().join("app.db")).unwrap();
    let state = device.dir.path().join("state");
    std::fs::create_dir(twin_dir.path().join("state")).unwrap();
    connect(&state.join("state.db")).execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    std::fs::copy(state.join("state.db"), twin_dir.path().join("state/state.db")).unwrap();
    let hub = std::mem::replace(&mut device.hub, Hub::new());
    let mut twin = Device::meet(twin_dir, hub, |_config| {});
    twin.sql("INSERT INTO t VALUES(2, 'twin')");
    twin.sync();
    device.hub = twin.hub;
    let before = epoch(&mut device);
    device.sql("INSERT INTO t VALUES(3, 'mine')");
    let continuity = device.greet();
    assert!(matches!(continuity, Continuity::DeviceForked { .. }), "{continuity:?}");
    assert_ne!(epoch(&mut device), before);
    assert_eq!(alarms(&mut device), ["database_forked"]);
    device.sync();
    assert_eq!(device.hub.live("t").len(), 3);
}

#[test]
fn a_hub_that_lost_everything_gets_everything() {
    let mut device = Device::new(T);
    device.sql("INSERT INTO t VALUES(1, 'a'), (2, 'b')");
    device.sync();
    device.sql("DELETE FROM t WHERE id = 2; INSERT INTO t VALUES(3, 'unsent')");
    let before = epoch(&mut device);
    device.hub = Hub::new();
    assert_eq!(device.greet(), Continuity::HubLost);
    assert_eq!(epoch(&mut device), before, "it is the hub's history that broke, not the file's");
    assert_eq!(alarms(&mut device), ["hub_lost"]);
    assert_eq!(device.capture.facts().unwrap().hello.cursor, sync_proto::Cursor::ZERO);
    device.sync();
    device.assert_equal("t", &["id"]);
    assert_eq!(device.hub.rows.len(), 3, "the delete went too");
    assert!(matches!(device.greet(), Continuity::Same { .. }));
    // Only its name changed: the same again.
    device.hub.incarnation = Incarnation(Uuid::new_v4());
    assert_eq!(device.greet(), Continuity::HubLost);
    device.sync();
    device.assert_equal("t", &["id"]);
    assert_eq!(device.waiting(), (0, 0));
}

#[test]
fn a_closed_epoch_is_followed_by_another_one() {
    let mut device = Device::new(T);
    device.sql("INSERT INTO t VALUES(1, 'a')");
    device.sync();
    let closed = epoch(&mut device);
    device.capture.start_epoch(closed, "another file took over").unwrap();
    let next = epoch(&mut device);
    assert_ne!(next, closed);
    device.capture.start_epoch(closed, "said twice").unwrap();
    assert_eq!(epoch(&mut device), next);
    device.greet();
    device.sync();
    device.assert_equal("t", &["id"]);
    let rows: Vec<i64> = device.hub.rows.values().map(|row| row.version.0).collect();
    assert!(rows[0] > 1, "above everything of the closed epoch");
}

#[test]
fn the_floor_covers_every_number_that_was_given() {
    let mut device = Device::new(T);
    device.sql("INSERT INTO t VALUES(1, 'a'), (2, 'b'), (3, 'c')");
    device.sync();
    let first = device.capture.facts().unwrap().hello;
    assert!(first.floor.0 >= 3, "{}", first.floor);
    device.capture.start_epoch(first.epoch, "test").unwrap();
    let second = device.capture.facts().unwrap().hello;
    assert!(second.floor >= first.floor);
    assert_eq!(second.lanes, []);
}
