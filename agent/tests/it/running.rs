//! The running daemon without a hub: files that come late, wakes, signals, and what it costs.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::place::{Place, sql, until};

const TABLE: &str = "CREATE TABLE t(id INTEGER PRIMARY KEY, v)";

#[test]
fn a_file_that_is_missing_empty_or_none_is_waited_for_while_another_goes_on() {
    let place = Place::new();
    let more = format!("[[database]]\npath = \"{}\"\n", place.path("other.db").display());
    place.configure(&more);
    sql(&place.path("other.db"), TABLE);
    let _agent = place.run();
    until("the wait for the file", || place.database() == "waiting_for_file");
    assert!(!place.path("app.db").exists(), "the agent made the file");
    std::fs::write(place.path("app.db"), "").unwrap();
    assert_eq!(place.database(), "waiting_for_file");
    std::fs::write(place.path("app.db"), "{\"not\": \"a database\"}\n".repeat(100)).unwrap();
    until("the verdict", || place.database() == "not_a_database");
    assert_eq!(place.status()["status"], "stalled");
    std::fs::remove_file(place.path("app.db")).unwrap();
    sql(&place.path("app.db"), TABLE);
    until("the opened file", || place.status()["databases"][0]["tables"][0]["name"] == "t");
    assert_eq!(place.status()["databases"][1]["tables"][0]["name"], "t");
}

#[test]
fn a_file_that_cannot_be_enrolled_costs_nothing_and_a_change_is_seen_at_once() {
    let place = Place::new();
    place.configure("[[database.table]]\nname = \"v\"\n");
    // Opening a WAL database makes side files, closing it removes them: both would wake.
    sql(
        &place.path("app.db"),
        &format!("PRAGMA journal_mode=WAL; {TABLE}; CREATE VIEW v AS SELECT 1"),
    );
    let _agent = place.run();
    until("the verdict", || place.database() == "misconfigured");
    // An attempt shows in the folder's own time.
    let changed = || std::fs::metadata(place.path("")).unwrap().modified().unwrap();
    let before = changed();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(changed(), before, "the file was opened again without a reason");
    sql(&place.path("app.db"), "DROP VIEW v; CREATE TABLE v(id INTEGER PRIMARY KEY)");
    until("the opened file", || place.status()["databases"][0]["tables"].get(1).is_some());
}

#[test]
fn an_idle_agent_rests() {
    let place = Place::new();
    sql(&place.path("app.db"), &format!("PRAGMA journal_mode=WAL; {TABLE}"));
    let agent = place.run();
    until("the opened file", || place.status()["databases"][0]["tables"][0]["name"] == "t");
    std::thread::sleep(Duration::from_secs(1));
    let before = agent.cpu();
    std::thread::sleep(Duration::from_secs(3));
    let spent = agent.cpu() - before;
    assert!(spent < Duration::from_millis(150), "{spent:?} of processor time in 3 s");
}

#[test]
fn a_busy_writer_crowds_out_neither_steps_nor_status() {
    let place = Place::new();
    sql(&place.path("app.db"), &format!("PRAGMA journal_mode=WAL; {TABLE}"));
    let agent = place.run();
    let mut shell = Command::new("sqlite3")
        .arg(place.path("app.db"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut writes = shell.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        writeln!(writes, ".timeout 5000\nPRAGMA synchronous=OFF;").unwrap();
        for _ in 0..60_000 {
            writeln!(writes, "INSERT INTO t(v) VALUES(1);").unwrap();
        }
    });
    while !writer.is_finished() {
        let status = place.status();
        assert!(!status.to_string().contains("does not answer"), "{status}");
    }
    writer.join().unwrap();
    assert!(shell.wait().unwrap().success());
    assert!(agent.terminate().success());
    assert!(!place.log().contains("is behind"), "{}", place.log());
}

#[test]
fn the_service_manager_hears_of_start_and_stop() {
    let place = Place::new();
    let manager = UnixDatagram::bind(place.path("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let hear = || {
        let mut buffer = [0; 256];
        let length = manager.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    // The file is missing: to wait for it is to be ready.
    let agent = place.run_with("NOTIFY_SOCKET", &place.path("notify"));
    assert!(hear().contains("READY=1"));
    assert_eq!(place.database(), "waiting_for_file");
    let ended = agent.terminate();
    assert_eq!(ended.code(), Some(0));
    assert!(hear().contains("STOPPING=1"));
    assert!(!place.path("state/control.sock").exists());
}

#[test]
fn ready_is_told_after_the_first_attempt_on_every_file() {
    let place = Place::new();
    sql(&place.path("app.db"), TABLE);
    let mut holder = Command::new("sqlite3")
        .arg(place.path("app.db"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut order = holder.stdin.take().unwrap();
    writeln!(order, "BEGIN EXCLUSIVE; SELECT 'held';").unwrap();
    let mut held = [0; 4];
    holder.stdout.as_mut().unwrap().read_exact(&mut held).unwrap();
    let manager = UnixDatagram::bind(place.path("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let _agent = place.spawn("NOTIFY_SOCKET", &place.path("notify"));
    assert!(manager.recv(&mut [0; 256]).unwrap() > 0);
    // The attempt waited for the lock and was given up before anything was told.
    assert!(place.log().contains("holds the database's lock"), "{}", place.log());
    drop(order);
    assert!(holder.wait().unwrap().success());
    until("the opened file", || place.status()["databases"][0]["tables"][0]["name"] == "t");
}

#[test]
fn a_socket_that_a_killed_agent_left_behind_is_no_agent() {
    let place = Place::new();
    sql(&place.path("app.db"), TABLE);
    drop(place.run());
    assert!(place.path("state/control.sock").exists());
    assert_eq!(place.status()["alarms"][0]["code"], "agent_not_running");
    let _again = place.run();
    until("the new agent", || !place.status().to_string().contains("agent_not_running"));
}
