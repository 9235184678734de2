//! Drains a long backlog and says what it cost: `cargo run --release -p capture --example drain --
//! 1000000`.
//!
//! An application has logged so many entries while there was no hub. They are folded, sent and
//! settled; printed are the time spent in each, the cost per row, and the peak of memory.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use capture::Capture;
use capture::config::DatabaseConfig;
use sync_proto::continuity::Continuity;
use sync_proto::limits::BATCH_TARGET_BYTES;
use sync_proto::message::{Limits, Receipt, TableState, TableStatus, ToHub, Welcome};
use sync_proto::{Incarnation, Lane, Seq, SourceId, Version, wire};
use uuid::Uuid;

#[derive(Default)]
struct Spent {
    housekeeping: Duration,
    filling: Duration,
    settling: Duration,
    rows: u64,
}

fn main() -> anyhow::Result<()> {
    let entries: u64 = match std::env::args().nth(1) {
        Some(number) => number.parse().context("the argument is a number of entries")?,
        None => 100_000,
    };
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("app.db");
    let config = DatabaseConfig {
        name: "app".to_owned(),
        path: path.clone(),
        tables: vec!["*".to_owned()],
        exclude: Vec::new(),
        overrides: Vec::new(),
    };
    shell(
        &path,
        "PRAGMA journal_mode = WAL; CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT, n REAL);",
    )?;
    let mut capture = Capture::open(&config, dir.path(), SourceId(Uuid::from_u128(1)))?;
    welcome(&mut capture)?;
    while capture.housekeep()?.again.is_some() {}
    shell(
        &path,
        &format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {entries}) \
             INSERT INTO t SELECT i, 'value ' || i, i * 0.5 FROM n;"
        ),
    )?;
    let started = Instant::now();
    let spent = drain(&mut capture)?;
    ensure!(spent.rows == entries, "{} rows went up, {entries} were written", spent.rows);
    let per_row = |time: Duration| time.as_secs_f64() * 1e6 / spent.rows as f64;
    report(&format!(
        "entries {entries}\nelapsed {:.1} s, pauses included\nhousekeeping {:.2} µs/row\n\
         filling {:.2} µs/row\nsettling {:.2} µs/row\npeak of memory {} KiB\n",
        started.elapsed().as_secs_f64(),
        per_row(spent.housekeeping),
        per_row(spent.filling),
        per_row(spent.settling),
        peak_kib()?,
    ))
}

fn drain(capture: &mut Capture) -> anyhow::Result<Spent> {
    let mut spent = Spent::default();
    let mut end = Seq::ZERO;
    loop {
        let started = Instant::now();
        let step = capture.housekeep()?;
        spent.housekeeping += started.elapsed();
        let started = Instant::now();
        let batches = capture.fill(&[(Lane::Mutable, end, 4)], BATCH_TARGET_BYTES)?;
        spent.filling += started.elapsed();
        if batches.is_empty() && step.again.is_none() {
            return Ok(spent);
        }
        for batch in batches {
            end = batch.last;
            let started = Instant::now();
            let (receipt, rows) = receipt(&batch.frame)?;
            spent.rows += rows;
            capture.settle(&receipt)?;
            spent.settling += started.elapsed();
        }
    }
}

fn receipt(frame: &[u8]) -> anyhow::Result<(Receipt, u64)> {
    let ToHub::Up(batch) = wire::decode_to_hub(frame)? else {
        anyhow::bail!("a frame of fill is an UpBatch");
    };
    let tables = sync_proto::rows::unpack(&batch.rows)?;
    let rows = tables.iter().map(|table| table.rows.len() as u64).sum();
    let receipt = Receipt {
        database: batch.database,
        epoch: batch.epoch,
        lane: batch.lane,
        prev: batch.prev,
        last: batch.last,
        digest: batch.rows.digest,
        watermark: batch.last,
        term: 1,
        outcomes: Vec::new(),
    };
    Ok((receipt, rows))
}

fn welcome(capture: &mut Capture) -> anyhow::Result<()> {
    let hello = capture.facts()?.hello;
    let tables = hello.tables.into_iter().map(|table| TableStatus {
        table: table.name,
        state: TableState::Flowing,
        adopt: false,
    });
    let welcome = Welcome {
        database: hello.database,
        epoch: hello.epoch,
        incarnation: Incarnation(Uuid::from_u128(2)),
        term: 1,
        base: Version(0),
        generation: 1,
        lanes: Vec::new(),
        tables: tables.collect(),
        limits: Limits {
            frame_bytes_max: 17 << 20,
            batch_bytes_max: 16 << 20,
            batch_rows_max: 16_384,
            window: 4,
        },
    };
    capture.adopt_welcome(&welcome, &Continuity::Same { lost_receipts: Vec::new() })?;
    Ok(())
}

/// Writes as another process does, so that its memory is not counted here.
fn shell(path: &Path, sql: &str) -> anyhow::Result<()> {
    let done = std::process::Command::new("sqlite3").arg(path).arg(sql).output()?;
    ensure!(done.status.success(), "sqlite3: {}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

fn peak_kib() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.context("the kernel tells the peak of memory")?.parse()?)
}

fn report(text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
