//! The application: it knows SQL and its own tables, and nothing of Rowtide.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rusqlite::{Connection, params};

/// Work orders that the application opens at first.
pub(crate) const ORDERS: i64 = 200;
/// Work orders that it deletes later.
pub(crate) const DELETED: i64 = 5;
/// Readings that it takes while the hub is away.
pub(crate) const OFFLINE: i64 = 300;

/// One thing that the application does, in a process of its own.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub(crate) enum Job {
    /// Creates its tables, if they are missing, and fills them.
    Setup,
    /// Works on orders and readings.
    Work,
    /// Deletes finished orders.
    Purge,
    /// Changes a setting that only the cloud may change.
    Meddle,
    /// Goes on while the hub is away.
    Offline,
}

impl Job {
    /// The job's name on the command line.
    pub(crate) fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self)
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }
}

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS work_orders(
  order_id TEXT PRIMARY KEY, machine TEXT NOT NULL, status TEXT NOT NULL, hours REAL, note TEXT);
CREATE TABLE IF NOT EXISTS sensors(
  line INTEGER, address BLOB, kind TEXT, last_value REAL, reads INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY(line, address));
CREATE TABLE IF NOT EXISTS settings(
  k TEXT PRIMARY KEY, value TEXT, changed_by TEXT DEFAULT 'factory');
";

/// Does one job.
pub(crate) fn run(database: &Path, job: Job) -> Result<()> {
    let mut connection = Connection::open(database)
        .with_context(|| format!("{} cannot be opened", database.display()))?;
    connection.busy_timeout(Duration::from_secs(2))?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    match job {
        Job::Setup => setup(&mut connection),
        Job::Work => work(&mut connection),
        Job::Purge => purge(&connection),
        Job::Meddle => meddle(&connection),
        Job::Offline => offline(&mut connection),
    }
}

fn setup(connection: &mut Connection) -> Result<()> {
    connection.execute_batch(TABLES)?;
    let transaction = connection.transaction()?;
    for n in 0..ORDERS {
        transaction.execute(
            "INSERT INTO work_orders VALUES(?1, ?2, 'open', ?3, ?4)",
            params![format!("WO-{n:05}"), format!("press-{}", n % 7), n as f64 / 4.0, "as planned"],
        )?;
    }
    for n in 0_u8..24 {
        transaction.execute(
            "INSERT INTO sensors(line, address, kind, last_value) VALUES(?1, ?2, ?3, ?4)",
            params![n % 3, [0x00, 0xC5, n], "temperature", 20.0 + f64::from(n)],
        )?;
    }
    for (k, value) in [("interval_s", "60"), ("mode", "auto"), ("limit_c", "85"), ("site", "n/a")] {
        transaction.execute("INSERT INTO settings(k, value) VALUES(?1, ?2)", [k, value])?;
    }
    transaction.commit()?;
    Ok(())
}

fn work(connection: &mut Connection) -> Result<()> {
    for round in 0..20 {
        let transaction = connection.transaction()?;
        transaction.execute(
            "UPDATE work_orders SET status = 'done', hours = hours + 0.25
             WHERE order_id IN (SELECT order_id FROM work_orders ORDER BY order_id LIMIT 5 OFFSET ?1)",
            [round * 5],
        )?;
        transaction.execute(
            "UPDATE sensors SET last_value = last_value + 0.1, reads = reads + 1 WHERE line = ?1",
            [round % 3],
        )?;
        transaction.commit()?;
    }
    Ok(())
}

fn purge(connection: &Connection) -> Result<()> {
    connection.execute(
        "DELETE FROM work_orders WHERE order_id IN
         (SELECT order_id FROM work_orders WHERE status = 'done' ORDER BY order_id LIMIT ?1)",
        [DELETED],
    )?;
    Ok(())
}

fn meddle(connection: &Connection) -> Result<()> {
    connection
        .execute("UPDATE settings SET value = 'off', changed_by = 'local' WHERE k = 'mode'", [])?;
    Ok(())
}

fn offline(connection: &mut Connection) -> Result<()> {
    for n in 0..OFFLINE {
        connection.execute(
            "INSERT OR REPLACE INTO work_orders VALUES(?1, 'offline', 'open', ?2, NULL)",
            params![format!("OFF-{:05}", n % 250), n],
        )?;
    }
    Ok(())
}
