//! The command line: `rowtide run|check|status|tables|quarantine|reseed|uninstall`.
//!
//! Exit codes: 0 done (or healthy), 1 failed (or degraded, or findings), 2 wrong usage or
//! configuration (or stalled). What a command finds goes to standard output, errors to standard
//! error.
#![expect(clippy::print_stderr, reason = "errors of a command go to standard error")]

mod check;
mod file;
mod show;

use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};

use crate::config::{Config, DEFAULT_PATH};
use crate::{daemon, logging};

/// Keeps the tables of SQLite files in step with a hub, without a change to their application.
#[derive(Parser, Debug)]
#[command(
    name = "rowtide",
    version,
    after_help = "Examples:\n  rowtide check\n  rowtide run --config ./agent.toml\n  rowtide status --json\n  rowtide reseed work_orders"
)]
struct Arguments {
    /// The configuration file.
    #[arg(long, global = true, value_name = "FILE", default_value = DEFAULT_PATH)]
    config: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the agent until SIGTERM or SIGINT.
    #[command(
        after_help = "Examples:\n  rowtide run\n  RUST_LOG=debug rowtide run --config ./agent.toml"
    )]
    Run,
    /// Check configuration, files and tables; changes nothing.
    #[command(
        after_help = "Exit code: 0 fine, 1 findings, 2 the configuration is wrong.\n\nExamples:\n  rowtide check\n  rowtide check --online\n  rowtide check --json | jq .findings"
    )]
    Check {
        #[command(flatten)]
        output: Output,
        /// Ask the hub too whether it is ready.
        #[arg(long)]
        online: bool,
    },
    /// How every database and table is.
    #[command(
        after_help = "Exit code: 0 healthy, 1 degraded, 2 stalled.\n\nExamples:\n  rowtide status\n  rowtide status --json | jq .alarms"
    )]
    Status(Output),
    /// Which tables are enrolled, how, and why others are not.
    #[command(after_help = "Examples:\n  rowtide tables\n  rowtide tables --json")]
    Tables(Output),
    /// Rows that are set aside.
    #[command(subcommand)]
    Quarantine(Quarantine),
    /// Send every row of a table again, under new versions.
    #[command(
        after_help = "Examples:\n  rowtide reseed work_orders\n  rowtide reseed sensors --database app"
    )]
    Reseed {
        /// The table.
        table: String,
        /// The database, when several are configured.
        #[arg(long, value_name = "NAME")]
        database: Option<String>,
    },
    /// Take everything of ours out of the application's files.
    #[command(
        after_help = "Stop the agent first. The schema is then byte for byte as before.\n\nExamples:\n  systemctl stop rowtide && rowtide uninstall\n  rowtide uninstall --database app"
    )]
    Uninstall {
        /// Only this database.
        #[arg(long, value_name = "NAME")]
        database: Option<String>,
    },
}

#[derive(Subcommand, Debug)]
enum Quarantine {
    /// List them with their reasons.
    #[command(
        after_help = "Examples:\n  rowtide quarantine list\n  rowtide quarantine list --json"
    )]
    List(Output),
}

#[derive(clap::Args, Debug, Clone, Copy)]
struct Output {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What a command found.
struct Answer {
    /// For standard output.
    text: String,
    /// The exit code.
    code: u8,
}

/// Runs the command line.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let config = match Config::load(&arguments.config) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("rowtide: {error}");
            return ExitCode::from(2);
        }
    };
    match run(&arguments.command, &config).and_then(|answer| print(&answer)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("rowtide: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn print(answer: &Answer) -> Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    match out.write_all(answer.text.as_bytes()).and_then(|()| out.flush()) {
        // Whoever reads may have read enough.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("standard output cannot be written")
        }
        Ok(()) | Err(_) => Ok(ExitCode::from(answer.code)),
    }
}

fn run(command: &Command, config: &Config) -> Result<Answer> {
    match command {
        Command::Run => {
            logging::start(config.log.as_deref());
            // The first one wins; there is no other in this process.
            drop(rustls::crypto::ring::default_provider().install_default());
            daemon::run(config)?;
            Ok(Answer { text: String::new(), code: 0 })
        }
        Command::Check { output, online } => check::check(config, output.json, *online),
        Command::Tables(output) => check::tables(config, output.json),
        Command::Status(output) => show::status(config, output.json),
        Command::Quarantine(Quarantine::List(output)) => show::quarantine(config, output.json),
        Command::Reseed { table, database } => file::reseed(config, table, database.as_deref()),
        Command::Uninstall { database } => file::uninstall(config, database.as_deref()),
    }
}
