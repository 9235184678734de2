//! `rowtide run`: everything that runs, put together, and ended together.
//!
//! One thread of tasks for sockets and time, one thread per database for its file. It ends on
//! SIGTERM or SIGINT only; no state of the network or of an application's file ends it.

use anyhow::{Context as _, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::config::Config;
use crate::control;
use crate::engine::Engine;
use crate::link::https::Https;
use crate::lock::Lock;
use crate::service::Service;
use crate::status::{Observed, Observer};
use crate::store::Store;
use crate::watch::{self, Target};

/// Events that wait for an engine: answers of its store and wakes.
const EVENTS_MAX: usize = 64;

/// Runs the agent until it is told to stop.
///
/// # Errors
/// When it cannot start: the lock is held, the state folder or the token cannot be used.
pub(crate) fn run(config: &Config) -> Result<()> {
    let lock = Lock::take(&config.state_dir)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Name look-ups of the HTTP client block; two at a time are plenty.
        .max_blocking_threads(2)
        .thread_stack_size(512 << 10)
        .build()
        .context("the runtime cannot be started")?;
    let outcome = runtime.block_on(serve(config));
    drop(lock);
    outcome
}

async fn serve(config: &Config) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be handled")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be handled")?;
    let service = Service::find();
    let link = Https::new(&config.hub)?;
    let listener = control::listen(&config.state_dir)?;

    let mut engines = JoinSet::new();
    let mut threads = Vec::new();
    let mut observed = Vec::new();
    let mut targets = Vec::new();
    let mut attempts = Vec::new();
    for database in &config.databases {
        let (events, queue) = mpsc::channel(EVENTS_MAX);
        let (tried, attempt) = oneshot::channel();
        let (state_dir, device) = (config.state_dir.clone(), config.device);
        let (store, thread) = Store::start(database.clone(), state_dir, device, events, tried)?;
        let seed = seed(config, &database.name)?;
        let (engine, link_view) =
            Engine::new(&database.name, seed, store.clone(), link.clone(), queue);
        engines.spawn(engine.run());
        threads.push((store.clone(), thread));
        targets.push(Target { path: database.path.clone(), store: store.clone() });
        attempts.push(attempt);
        observed.push(Observed {
            name: database.name.clone(),
            path: database.path.clone(),
            store,
            link: link_view,
        });
    }
    watch::start(targets)?;
    let observer = Observer::new(observed, config.stalled_after);
    let control = tokio::spawn(control::serve(listener, observer));
    tracing::info!(device = config.name, databases = config.databases.len(), "running");

    let ready = async {
        for attempt in attempts {
            // It is dropped, not sent to: both ends of a wait are the same.
            attempt.await.unwrap_or_default();
        }
        service.ready();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = ready => {}
    }
    tracing::info!("stopping");
    service.stopping();
    control.abort();
    // Requests on their way are given up: what has no receipt is sent again.
    engines.abort_all();
    while engines.join_next().await.is_some() {}
    for (store, _) in &threads {
        store.stop();
    }
    for (_, thread) in threads {
        if thread.join().is_err() {
            tracing::error!("a database's thread ended by a panic");
        }
    }
    match std::fs::remove_file(control::socket(&config.state_dir)) {
        Ok(()) => {}
        Err(error) => tracing::debug!("the control socket stays: {error}"),
    }
    Ok(())
}

/// A seed for the jitter of one database's waits: no two devices wait in step.
fn seed(config: &Config, database: &str) -> Result<u64> {
    let random = getrandom::u64().context("the system gives no randomness")?;
    let (high, low) = config.device.0.as_u64_pair();
    let name = database.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31) + u64::from(byte));
    Ok(random ^ high ^ low ^ name)
}
