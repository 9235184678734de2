//! Commands that change an application's file directly: `reseed` and `uninstall`.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use capture::config::DatabaseConfig;

use super::Answer;
use crate::config::Config;
use crate::lock::Lock;

/// Sends every row of a table again. Works beside a running agent: it is a change of the file.
pub(super) fn reseed(config: &Config, table: &str, database: Option<&str>) -> Result<Answer> {
    let mut tried = Vec::new();
    for candidate in chosen(config, database)? {
        match capture::reseed(&candidate.path, table) {
            Ok(()) => {
                let text = format!("{}: {table} is sent again\n", candidate.name);
                return Ok(Answer { text, code: 0 });
            }
            Err(error) => {
                tried.push(format!("{}: {}", candidate.name, crate::store::chain(&error)));
            }
        }
    }
    bail!("{}", tried.join("\n         "))
}

/// Takes everything of ours out of the files.
pub(super) fn uninstall(config: &Config, database: Option<&str>) -> Result<Answer> {
    // A running agent would install everything again.
    let lock = Lock::take(&config.state_dir).context("stop the agent before uninstalling")?;
    let mut text = String::new();
    let mut code = 0;
    for database in chosen(config, database)? {
        match capture::uninstall(&database.path) {
            Ok(true) => writeln!(
                text,
                "{}: nothing of ours is left in {}",
                database.name,
                database.path.display()
            )?,
            Ok(false) => writeln!(text, "{}: nothing of ours was there", database.name)?,
            // The other files are cleaned all the same.
            Err(error) => {
                code = 1;
                writeln!(text, "{}: {}", database.name, crate::store::chain(&error))?;
            }
        }
    }
    drop(lock);
    Ok(Answer { text, code })
}

fn chosen<'a>(config: &'a Config, name: Option<&str>) -> Result<Vec<&'a DatabaseConfig>> {
    let Some(name) = name else { return Ok(config.databases.iter().collect()) };
    match config.databases.iter().find(|database| database.name == name) {
        Some(database) => Ok(vec![database]),
        None => {
            let names: Vec<&str> =
                config.databases.iter().map(|database| database.name.as_str()).collect();
            bail!("no database is named {name:?}; configured are: {}", names.join(", "))
        }
    }
}
