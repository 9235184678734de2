//! Log lines on standard error, for the journal. Row values and credentials are never among them.
//!
//! Levels: `error` a person must act; `warn` something failed and is tried again; `info` the life
//! of the daemon; `debug` every message; `trace` everything.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// Starts logging at `level`, unless `RUST_LOG` says otherwise.
pub(crate) fn start(level: Option<&str>) {
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_unset| EnvFilter::new(level.unwrap_or("info")));
    let terminal = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(terminal)
        .with_target(false);
    // The journal has times of its own.
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        lines.without_time().init();
    } else {
        lines.init();
    }
}
