//! Commands that change an application's file directly: `reseed` and `uninstall`.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use capture::config::DatabaseConfig;

use crate::config::Config;
use crate::lock::Lock;

/// Sends every row of a table again. Works beside a running agent: it is a change of the file.
pub(super) fn reseed(config: &Config, table: &str, database: Option<&str>) -> Result<ExitCode> {
    let mut tried = Vec::new();
    for candidate in chosen(config, database)? {
        match capture::reseed(&candidate.path, table) {
            Ok(()) => {
                println!("{}: {table} is sent again", candidate.name);
                return Ok(ExitCode::SUCCESS);
            }
            Err(error) => {
                tried.push(format!("{}: {}", candidate.name, crate::store::chain(&error)));
            }
        }
    }
    bail!("{}", tried.join("\n         "))
}

/// Takes everything of ours out of the files.
pub(super) fn uninstall(config: &Config, database: Option<&str>) -> Result<ExitCode> {
    // A running agent would install everything again.
    let lock = Lock::take(&config.state_dir).context("stop the agent before uninstalling")?;
    for database in chosen(config, database)? {
        capture::uninstall(&database.path)
            .map_err(|error| anyhow::anyhow!("{}", crate::store::chain(&error)))?;
        println!("{}: nothing of ours is left in {}", database.name, database.path.display());
    }
    drop(lock);
    Ok(ExitCode::SUCCESS)
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
