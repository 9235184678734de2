//! `rowtide`: parses the command line and ends with its exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    agent::cli::main()
}
