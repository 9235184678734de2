//! A good neighbour: no read transaction over a network wait, and no WAL that grows with it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use system_tests::writer;

use crate::{BOUND, ORDERS, pair};

const TABLE: &str = "PRAGMA journal_mode=wal; CREATE TABLE orders(id INTEGER PRIMARY KEY, v TEXT);";

/// SQLite's default: a checkpoint every 1,000 pages of 4 KiB, plus the WAL's own headers.
const AUTOCHECKPOINT_BYTES: u64 = 1_000 * (4_096 + 24) + 32;

/// Between two transactions of 20 rows: a busy application, some 10,000 rows a second. Without any
/// pause it is the scheduler of a shared machine that says how much is written during one read.
const PAUSE: Duration = Duration::from_millis(1);

#[test]
fn the_wal_stays_bounded_with_the_hub_away() -> Result<()> {
    let (_folder, mut hub, mut device) = pair(&[ORDERS])?;
    writer::shell(&device.app_db, TABLE)?;
    device.start()?;
    device.wait_drained(BOUND)?;
    hub.kill()?;
    let wal = device.app_db.with_extension("db-wal");
    let mut application = device.open()?;
    let start = Instant::now();
    let (mut largest, mut rows) = (0, 0_u32);
    while start.elapsed() < Duration::from_secs(15) {
        let transaction = application.transaction()?;
        for _ in 0..20 {
            transaction.execute("INSERT INTO orders(v) VALUES(hex(randomblob(100)))", [])?;
            rows += 1;
        }
        transaction
            .execute("UPDATE orders SET v = 'seen' WHERE id = abs(random()) % ?1", [rows])?;
        transaction.commit()?;
        std::thread::sleep(PAUSE);
        largest = largest.max(std::fs::metadata(&wal)?.len());
    }
    println!("{rows} rows, largest WAL {largest} bytes");
    ensure!(rows > 1_000, "only {rows} rows were written");
    ensure!(largest <= 2 * AUTOCHECKPOINT_BYTES, "the WAL grew to {largest} bytes");
    Ok(())
}

#[test]
fn no_read_transaction_is_open_while_the_network_waits() -> Result<()> {
    // A hub that takes every connection and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0")?;
    let folder = tempfile::tempdir()?;
    let url = format!("http://{}", silent.local_addr()?);
    let mut device =
        system_tests::Device::with_hub(folder.path(), "gw-07", &url, "", "token", &[ORDERS])?;
    writer::shell(&device.app_db, TABLE)?;
    writer::shell(&device.app_db, "INSERT INTO orders(v) VALUES('a'),('b')")?;
    device.start()?;
    silent.accept().context("the agent did not connect")?;
    let application = device.open()?;
    for round in 0..20 {
        application.execute("INSERT INTO orders(v) VALUES(?1)", [round])?;
        // TRUNCATE needs every reader gone; it waits for short ones within the busy timeout.
        let busy: i64 =
            application.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        ensure!(busy == 0, "a reader held the WAL in round {round}");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

#[test]
fn an_application_with_a_short_busy_timeout_never_fails() -> Result<()> {
    for mode in ["wal", "delete"] {
        let (_folder, hub, mut device) = pair(&[ORDERS])?;
        writer::shell(&device.app_db, TABLE)?;
        writer::shell(&device.app_db, &format!("PRAGMA journal_mode={mode}"))?;
        device.start()?;
        let application = device.open()?;
        application.busy_timeout(Duration::from_millis(100))?;
        let start = Instant::now();
        let mut commits = 0;
        while start.elapsed() < Duration::from_secs(10) {
            application
                .execute("INSERT INTO orders(v) VALUES(hex(randomblob(20)))", [])
                .with_context(|| format!("journal_mode={mode}, after {commits} commits"))?;
            commits += 1;
        }
        println!("journal_mode={mode}: {commits} commits, none refused");
        device.wait_drained(BOUND * 2)?;
        system_tests::oracle::assert_equal(&device.app_db, "orders", &hub, Some(device.id))?;
    }
    Ok(())
}
