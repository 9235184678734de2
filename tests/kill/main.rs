//! Random kills (-9) of agent and hub during a mixed workload, both ways.
//!
//! At the end device and hub are equal, no version ever had two contents, and no stale row was
//! applied. One seed drives the schedule; it is printed first and replays with `--seed`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a test program reports in print")]

mod audit;
mod workload;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use system_tests::{Device, Hub, Rng, TableOverride, oracle, until, writer};

/// How long the rest may take to arrive once nothing is killed any more.
const DRAIN: Duration = Duration::from_secs(180);

/// Kills agent and hub at random while an application and a cloud user write.
#[derive(Parser, Debug)]
struct Arguments {
    /// How long to go on killing, in minutes, unless `--count` is given.
    #[arg(long, default_value_t = 4.0)]
    minutes: f64,
    /// Stop after so many kills instead.
    #[arg(long)]
    count: Option<u64>,
    /// The schedule's seed; random by default.
    #[arg(long)]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => {
            println!("1 passed, 0 failed");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("kill: {error:#}");
            println!("0 passed, 1 failed");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let seed = match arguments.seed {
        Some(seed) => seed,
        None => Rng::seed()?,
    };
    println!("kill: seed {seed} (replay: cargo test -p system-tests --test kill -- --seed {seed})");
    let folder = tempfile::tempdir()?;
    let mut hub = Hub::start(folder.path())?;
    let overrides = [
        TableOverride { name: "orders", lines: "modality = \"state\"" },
        TableOverride { name: "settings", lines: "modality = \"state\"\nauthority = \"cloud\"" },
    ];
    let mut device = Device::new(folder.path(), "gw-07", &hub, &overrides)?;
    writer::shell(&device.app_db, workload::SCHEMA)?;
    device.start()?;

    let stop = Arc::new(AtomicBool::new(false));
    let application = workload::application(device.app_db.clone(), seed, Arc::clone(&stop));
    let outcome = kill_at_random(arguments, seed, &mut hub, &mut device);
    stop.store(true, Ordering::Relaxed);
    let writes = application.join().map_err(|_panic| anyhow::anyhow!("the writer panicked"))??;
    let totals = outcome?;

    if !hub.runs() {
        hub.restart()?;
    }
    device.wait_drained(DRAIN)?;
    let orders = oracle::assert_equal(&device.app_db, "orders", &hub, Some(device.id))?;
    let readings = oracle::assert_equal(&device.app_db, "readings", &hub, Some(device.id))?;
    let settings = until("equal settings", DRAIN, || {
        oracle::assert_equal(&device.app_db, "settings", &hub, None).map(Some)
    })?;
    let audit = audit::history(&hub)?;
    println!(
        "kill: {} kills (agent {}, hub {}), {writes} application transactions, {} cloud writes, \
         {} history entries, {orders} orders, {readings} readings and {settings} settings equal, \
         0 versions with two contents, 0 stale rows applied",
        totals.agent + totals.hub,
        totals.agent,
        totals.hub,
        totals.cloud_writes,
        audit.entries,
    );
    Ok(())
}

#[derive(Default)]
struct Totals {
    agent: u64,
    hub: u64,
    cloud_writes: u64,
}

fn kill_at_random(
    arguments: &Arguments,
    seed: u64,
    hub: &mut Hub,
    device: &mut Device,
) -> Result<Totals> {
    let mut rng = Rng::new(seed);
    let mut totals = Totals::default();
    let start = Instant::now();
    let bound = Duration::from_secs_f64(arguments.minutes * 60.0);
    loop {
        let kills = totals.agent + totals.hub;
        let done = arguments.count.map_or_else(|| start.elapsed() >= bound, |count| kills >= count);
        if done {
            break;
        }
        pause(&mut rng, 900);
        totals.cloud_writes += workload::cloud_user(hub, &mut rng);
        let victim = rng.below(5);
        if victim < 3 {
            device.kill().context("the agent ended by itself")?;
            totals.agent += 1;
        }
        if victim >= 2 {
            hub.kill().context("the hub ended by itself")?;
            totals.hub += 1;
        }
        pause(&mut rng, 600);
        if victim >= 2 {
            hub.restart()?;
        }
        if victim < 3 {
            device.start()?;
        }
        if kills % 50 == 0 {
            println!("kill: {kills} kills after {:.0} s", start.elapsed().as_secs_f64());
        }
    }
    let kills = totals.agent + totals.hub;
    let wanted = arguments.count.unwrap_or(if arguments.minutes >= 4.0 { 50 } else { 1 });
    ensure!(kills >= wanted, "only {kills} kills in {:?}", start.elapsed());
    Ok(totals)
}

fn pause(rng: &mut Rng, ms_max: u64) {
    std::thread::sleep(Duration::from_millis(rng.below(ms_max)));
}
