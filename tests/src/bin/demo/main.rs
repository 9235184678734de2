//! The demo: a hub, an agent and an application as real processes, and the story of one gateway.
//!
//! Every step measures what it claims; a step that does not hold ends the demo with code 1. What
//! happens in which order is in `story`, the application in `application`, printing in `teller`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the terminal is the product here")]

mod application;
mod gateway;
mod story;
mod teller;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Shows Rowtide at work on this machine: everything runs in a temporary folder, on loopback.
#[derive(Parser, Debug)]
#[command(
    name = "demo",
    after_help = "Examples:\n  cargo run --release --bin demo\n  cargo run --release --bin demo -- \
                  --exit --json\n  cargo run --release --bin demo -- --db ~/app.db"
)]
struct Arguments {
    /// End after the story, with code 0 only if every step held.
    #[arg(long)]
    exit: bool,
    /// Print one last JSON line with what was measured.
    #[arg(long)]
    json: bool,
    /// Run the story on a copy of this SQLite file; the file itself is only read.
    #[arg(long, value_name = "FILE")]
    db: Option<PathBuf>,
    #[command(subcommand)]
    role: Option<Role>,
}

/// What this process is.
#[derive(Subcommand, Debug)]
enum Role {
    /// One job of the application, in a process of its own.
    #[command(hide = true)]
    Application {
        /// The application's database.
        database: PathBuf,
        /// What it does.
        job: application::Job,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.role {
        Some(Role::Application { database, job }) => application::run(database, *job),
        None => story::run(arguments.db.as_deref(), arguments.json, !arguments.exit),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}
