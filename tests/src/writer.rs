//! Applications: the `sqlite3` shell and Python's sqlite3, each with its own SQLite library.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// Runs SQL in the `sqlite3` shell with a busy timeout; a failing statement is an error.
pub fn shell(database: &Path, sql: &str) -> Result<String> {
    let mut child = Command::new("sqlite3")
        .args(["-batch", "-bail", "-cmd", ".timeout 5000"])
        .arg(database)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("sqlite3 did not start; install it: apt-get install sqlite3")?;
    let mut input = child.stdin.take().context("the shell has no input")?;
    input.write_all(sql.as_bytes())?;
    drop(input);
    finish("sqlite3", sql, &child.wait_with_output()?)
}

/// Runs a Python program with `database` as its first argument.
pub fn python(database: &Path, program: &str) -> Result<String> {
    let output = Command::new("python3")
        .args(["-c", program])
        .arg(database)
        .output()
        .context("python3 did not start; install it: apt-get install python3")?;
    finish("python3", program, &output)
}

fn finish(name: &str, input: &str, output: &std::process::Output) -> Result<String> {
    ensure!(
        output.status.success(),
        "{name} failed on {input:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
