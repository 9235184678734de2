//! What the hub's own history says happened: read from its store, not from its API.

use anyhow::{Result, ensure};
use rusqlite::{Connection, OpenFlags};
use system_tests::Hub;

/// What was looked at.
pub(crate) struct Audit {
    /// History entries.
    pub(crate) entries: i64,
}

/// Fails when a version had two contents, or a row was applied over a newer one.
pub(crate) fn history(hub: &Hub) -> Result<Audit> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let store = Connection::open_with_flags(hub.data().join("hub.db"), flags)?;
    let count = |sql: &str| store.query_row(sql, [], |row| row.get::<_, i64>(0));
    let two_contents = count(
        "SELECT count(*) FROM (
           SELECT 1 FROM history GROUP BY dataspace, source_id, natural_key, version
           HAVING count(DISTINCT row_hash) > 1)",
    )?;
    let stale_applied = count(
        "SELECT count(*) FROM (
           SELECT version, lag(version) OVER (
             PARTITION BY dataspace, source_id, natural_key ORDER BY id) AS before
           FROM history WHERE outcome = 'applied') WHERE version <= before",
    )?;
    let diverged = count("SELECT coalesce(sum(diverged), 0) FROM lanes")?;
    let entries = count("SELECT count(*) FROM history")?;
    ensure!(two_contents == 0, "{two_contents} versions had two contents");
    ensure!(stale_applied == 0, "{stale_applied} rows were applied over a newer version");
    ensure!(diverged == 0, "{diverged} rows came under a version that had other content");
    ensure!(entries > 0, "the history is empty: nothing was audited");
    Ok(Audit { entries })
}
