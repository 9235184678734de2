//! A file that is not the one it was: restored, replaced, re-sent; and rows without identity.

use anyhow::{Result, ensure};
use system_tests::{Device, oracle, until, writer};

use crate::{BOUND, ORDERS, pair};

const TABLE: &str = "PRAGMA journal_mode=wal; CREATE TABLE orders(id INTEGER PRIMARY KEY, v TEXT);";

fn epoch(device: &Device) -> Result<String> {
    Ok(device.status()?["databases"][0]["epoch"].to_string())
}

fn insert(device: &Device, from: u32, to: u32, what: &str) -> Result<String> {
    let rows: Vec<String> = (from..=to).map(|id| format!("({id}, '{what} {id}')")).collect();
    writer::shell(&device.app_db, &format!("INSERT INTO orders VALUES{}", rows.join(",")))
}

#[test]
fn a_restored_backup_is_a_new_epoch_and_deletes_nothing() -> Result<()> {
    let (folder, hub, mut device) = pair(&[ORDERS])?;
    writer::shell(&device.app_db, TABLE)?;
    device.start()?;
    insert(&device, 1, 10, "before")?;
    device.wait_drained(BOUND)?;
    let before = epoch(&device)?;
    let backup = folder.path().join("backup.db");
    writer::shell(&device.app_db, &format!("VACUUM INTO '{}'", backup.display()))?;
    insert(&device, 11, 20, "lost")?;
    device.wait_drained(BOUND)?;

    // The backup takes the file's place under the running agent, as a restore script does it.
    for side in ["db-wal", "db-shm"] {
        std::fs::remove_file(device.app_db.with_extension(side))?;
    }
    std::fs::rename(&backup, &device.app_db)?;
    writer::shell(&device.app_db, "INSERT INTO orders VALUES(11, 'after 11'), (12, 'after 12')")?;

    until("a new epoch", BOUND, || Ok((epoch(&device)? != before).then_some(())))?;
    device.wait_drained(BOUND)?;
    until("the restored rows at the hub", BOUND, || {
        let rows = hub.query("SELECT id, v FROM orders WHERE id IN (11, 12, 20) ORDER BY id")?;
        let values: Vec<&str> = rows.iter().filter_map(|row| row[1].as_str()).collect();
        ensure!(values == ["after 11", "after 12", "lost 20"], "{values:?}");
        Ok(Some(()))
    })?;
    // The alarm ends once every row is there again; the log keeps what happened.
    let log = device.output()?;
    ensure!(log.contains("database_restored"), "{log}");
    Ok(())
}

#[test]
fn a_recreated_database_is_a_new_epoch_and_deletes_nothing() -> Result<()> {
    let (_folder, hub, mut device) = pair(&[ORDERS])?;
    writer::shell(&device.app_db, TABLE)?;
    device.start()?;
    writer::shell(&device.app_db, "INSERT INTO orders VALUES(1, 'old'), (2, 'old')")?;
    device.wait_drained(BOUND)?;
    let before = epoch(&device)?;
    std::fs::rename(&device.app_db, device.app_db.with_extension("corrupt"))?;
    for side in ["db-wal", "db-shm"] {
        std::fs::remove_file(device.app_db.with_extension(side))?;
    }
    writer::shell(&device.app_db, TABLE)?;
    writer::shell(&device.app_db, "INSERT INTO orders VALUES(1, 'new')")?;
    until("a new epoch", BOUND, || Ok((epoch(&device)? != before).then_some(())))?;
    device.wait_drained(BOUND)?;
    let rows = hub.query("SELECT v FROM orders ORDER BY id")?;
    let values: Vec<&str> = rows.iter().filter_map(|row| row[0].as_str()).collect();
    ensure!(values == ["new", "old"], "{values:?}");
    Ok(())
}

#[test]
fn reseed_sends_every_row_again_under_new_versions() -> Result<()> {
    let (_folder, hub, mut device) = pair(&[ORDERS])?;
    writer::shell(&device.app_db, TABLE)?;
    device.start()?;
    writer::shell(&device.app_db, "INSERT INTO orders VALUES(1, 'a'), (2, 'b')")?;
    device.wait_drained(BOUND)?;
    let lowest = || -> Result<Option<i64>> {
        Ok(hub.query("SELECT min(_version) FROM orders")?[0][0].as_i64())
    };
    let before = lowest()?;
    let output = device.rowtide(&["reseed", "orders"])?;
    ensure!(output.status.success(), "{output:?}");
    until("newer versions", BOUND, || Ok((lowest()? > before).then_some(())))?;
    oracle::assert_equal(&device.app_db, "orders", &hub, Some(device.id))?;
    let output = device.rowtide(&["reseed", "nothing"])?;
    ensure!(output.status.code() == Some(1), "{output:?}");
    Ok(())
}

#[test]
fn rows_without_identity_are_set_aside_while_others_flow() -> Result<()> {
    let (_folder, hub, mut device) = pair(&[])?;
    writer::shell(
        &device.app_db,
        "CREATE TABLE t(id INT PRIMARY KEY, v); INSERT INTO t VALUES(NULL, 1);",
    )?;
    device.start()?;
    writer::shell(&device.app_db, "INSERT INTO t VALUES(NULL, 2), (7, 'good'), (8, 'good')")?;
    until("the good rows", BOUND, || {
        Ok((hub.rows("t").unwrap_or_default().len() == 2).then_some(()))
    })?;
    let status = until("the quarantine in status", BOUND, || {
        let status = device.table_status("t")?;
        Ok((status["quarantine"].as_u64() > Some(0)).then_some(status))
    })?;
    ensure!(device.status()?["status"] == "degraded", "{status}");
    let list = device.rowtide(&["quarantine", "list"])?;
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    ensure!(list.contains("null_key"), "{list}");
    Ok(())
}
