//! `rowtide-hub`: reads the command line, runs one command, and turns errors into one line and an
//! exit code. Everything that can be tested stands in the library `hub`.

mod cli;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Cli, Failure};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { error, code }) => {
            // Nobody is left to tell when standard error is gone.
            let _told = writeln!(std::io::stderr(), "rowtide-hub: {error:#}");
            ExitCode::from(code)
        }
    }
}
