//! Who writes: an application on the device, in its own thread, and a cloud user.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use rusqlite::{Connection, params};
use serde_json::json;
use system_tests::{Hub, Rng};

/// The application's tables: a state table, a mutable one, and the cloud's settings.
pub(crate) const SCHEMA: &str = "
PRAGMA journal_mode=wal;
CREATE TABLE orders(id TEXT PRIMARY KEY, status TEXT, n INTEGER);
CREATE TABLE readings(sensor INTEGER, slot, value REAL, raw BLOB, PRIMARY KEY(sensor, slot));
CREATE TABLE settings(k TEXT PRIMARY KEY, value TEXT);
";

/// Writes until told to stop; gives the number of committed transactions.
pub(crate) fn application(
    database: PathBuf,
    seed: u64,
    stop: Arc<AtomicBool>,
) -> JoinHandle<Result<u64>> {
    std::thread::spawn(move || {
        let mut rng = Rng::new(seed ^ 0xA11C);
        let mut connection = Connection::open(database)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        let mut committed = 0;
        while !stop.load(Ordering::Relaxed) {
            let transaction = connection.transaction()?;
            for _ in 0..=rng.below(8) {
                statement(&transaction, &mut rng)?;
            }
            // Some transactions never happen: nothing of them may be seen.
            if rng.below(10) == 0 {
                transaction.rollback()?;
            } else {
                transaction.commit()?;
                committed += 1;
            }
            std::thread::sleep(Duration::from_millis(rng.below(12)));
        }
        Ok(committed)
    })
}

fn statement(connection: &Connection, rng: &mut Rng) -> Result<()> {
    let id = format!("o{}", rng.below(400));
    let n = i64::try_from(rng.below(1 << 40))?;
    let (sensor, slot) = (i64::try_from(rng.below(20))?, i64::try_from(rng.below(100))?);
    match rng.below(8) {
        0 | 1 => connection
            .execute("INSERT OR REPLACE INTO orders VALUES(?1, 'open', ?2)", params![id, n])?,
        2 => {
            connection.execute("UPDATE orders SET n = n + 1 WHERE id > ?1 LIMIT 5", [&id]).or_else(
                // Libraries differ in whether UPDATE takes a LIMIT.
                |_no_limit| connection.execute("UPDATE orders SET n = n + 1 WHERE id = ?1", [&id]),
            )?
        }
        3 => connection.execute("DELETE FROM orders WHERE id = ?1", [&id])?,
        4 => connection.execute(
            "UPDATE OR REPLACE orders SET id = ?2 WHERE id = ?1",
            params![id, format!("o{}", rng.below(400))],
        )?,
        5 | 6 => connection.execute(
            "INSERT INTO readings VALUES(?1, ?2, ?3, randomblob(12))
             ON CONFLICT(sensor, slot) DO UPDATE SET value = excluded.value, raw = excluded.raw",
            params![sensor, slot, f64::from(u32::try_from(rng.below(1 << 30))?) / 7.0],
        )?,
        _ => connection.execute(
            "DELETE FROM readings WHERE sensor = ?1 AND slot % 10 = ?2",
            params![sensor, slot % 10],
        )?,
    };
    Ok(())
}

/// Writes some settings through the API; those that the hub did not take do not count.
pub(crate) fn cloud_user(hub: &Hub, rng: &mut Rng) -> u64 {
    let mut written = 0;
    for _ in 0..rng.below(6) {
        let key = format!("k{}", rng.below(30));
        let path = format!("/dataspaces/settings/rows/{key}");
        let answer = if rng.below(5) == 0 {
            hub.call("DELETE", &path, &[], None)
        } else {
            let body = json!({ "values": { "value": format!("v{}", rng.below(1 << 30)) } });
            hub.call("PUT", &path, &[], Some(&body))
        };
        written += u64::from(answer.is_ok_and(|answer| answer.status < 300));
    }
    written
}
