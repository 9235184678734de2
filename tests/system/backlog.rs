//! A long backlog: 1,000,000 log entries drain with flat memory.

use anyhow::{Result, ensure};
use system_tests::{oracle, until, writer};

use crate::{BOUND, pair};

/// KiB of resident memory that the agent may reach on x86-64.
const RSS_KIB_MAX: u64 = 32 << 10;

#[test]
fn a_million_log_entries_drain_with_flat_memory() -> Result<()> {
    let (_folder, mut hub, mut device) = pair(&[])?;
    writer::shell(
        &device.app_db,
        "PRAGMA journal_mode=wal; CREATE TABLE readings(id INTEGER PRIMARY KEY, sensor TEXT, v REAL);",
    )?;
    device.start()?;
    device.wait_drained(BOUND)?;
    hub.kill()?;
    for chunk in 0..50 {
        let start = chunk * 4_000;
        writer::shell(
            &device.app_db,
            &format!(
                "BEGIN; INSERT INTO readings
                 WITH RECURSIVE n(i) AS (SELECT {start} UNION ALL SELECT i + 1 FROM n WHERE i < {start} + 3999)
                 SELECT i, 's' || (i % 40), i / 7.0 FROM n; COMMIT;"
            ),
        )?;
    }
    for round in 0..4 {
        for chunk in 0..10 {
            let (low, high) = (chunk * 20_000, chunk * 20_000 + 20_000);
            writer::shell(
                &device.app_db,
                &format!("UPDATE readings SET v = v + {round} WHERE id >= {low} AND id < {high}"),
            )?;
        }
    }
    let entries: i64 =
        device.open()?.query_row("SELECT max(seq) FROM _rowtide_log", [], |row| row.get(0))?;
    ensure!(entries >= 1_000_000, "only {entries} log entries");
    hub.restart()?;
    let mut last = 0;
    until("the backlog to drain", BOUND * 10, || {
        let pending = device.table_status("readings")?["pending"].as_u64();
        last = pending.unwrap_or(last);
        ensure!(pending == Some(0), "{last} keys pending");
        Ok(Some(()))
    })?;
    device.wait_drained(BOUND)?;
    let peak = device.process()?.memory_kib("VmHWM")?;
    println!("{entries} log entries drained, agent peak RSS {peak} KiB");
    ensure!(peak <= RSS_KIB_MAX, "the agent's memory reached {peak} KiB");
    let rows = oracle::assert_equal(&device.app_db, "readings", &hub, Some(device.id))?;
    ensure!(rows == 200_000, "{rows} rows");
    Ok(())
}
