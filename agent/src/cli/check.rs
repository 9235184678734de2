//! `rowtide check` and `rowtide tables`: what would run and what would not, and why.
//!
//! Every file is opened, looked at and closed; nothing is created or changed.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use capture::CheckReport;
use serde::Serialize;
use serde_json::json;

use crate::config::Config;
use crate::link::https::Https;
use crate::store::{chain, word};

/// Something that a person should mend.
#[derive(Serialize)]
struct Finding {
    code: &'static str,
    message: String,
}

/// Checks everything that `run` needs except the network.
pub(super) fn check(config: &Config, as_json: bool) -> Result<ExitCode> {
    let mut findings = Vec::new();
    let mut finding = |code, message: String| findings.push(Finding { code, message });
    // The client reads the token and the CA as `run` will.
    drop(rustls::crypto::ring::default_provider().install_default());
    if let Err(error) = Https::new(&config.hub) {
        finding("hub", format!("{error:#}"));
    }
    if let Err(error) = state_dir(config) {
        finding("state_dir", format!("{error:#}"));
    }
    let mut reports = Vec::new();
    for database in &config.databases {
        match capture::check(database) {
            Ok(report) => {
                for skipped in report.skipped.iter().filter(|skipped| skipped.refused) {
                    let message =
                        format!("{}, table {}: {}", report.path, skipped.table, skipped.reason);
                    finding("table_refused", message);
                }
                reports.push(report);
            }
            Err(error) => finding(word(&error), chain(&error)),
        }
    }
    if as_json {
        println!(
            "{}",
            json!({ "ok": findings.is_empty(), "findings": findings, "databases": reports })
        );
    } else {
        reports.iter().for_each(print_report);
        for finding in &findings {
            println!("! {}  {}", finding.code, finding.message);
        }
        if findings.is_empty() {
            println!("everything fits");
        }
    }
    Ok(ExitCode::from(u8::from(!findings.is_empty())))
}

/// Lists the tables of every database.
pub(super) fn tables(config: &Config, as_json: bool) -> Result<ExitCode> {
    let mut failed = false;
    let mut entries = Vec::new();
    for database in &config.databases {
        match capture::check(database) {
            Ok(report) => {
                if !as_json {
                    print_report(&report);
                }
                entries.push(json!(report));
            }
            Err(error) => {
                failed = true;
                if !as_json {
                    println!("{}: {}", database.name, chain(&error));
                }
                entries.push(json!({ "name": database.name, "error": chain(&error) }));
            }
        }
    }
    if as_json {
        println!("{}", json!({ "databases": entries }));
    }
    Ok(ExitCode::from(u8::from(failed)))
}

/// Whether the state folder can be used, or made; it is not made here.
fn state_dir(config: &Config) -> Result<()> {
    let exists = config.state_dir.ancestors().find(|folder| folder.exists());
    let folder = exists.unwrap_or(&config.state_dir);
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).with_context(|| {
        format!(
            "{}: the state folder cannot be written by this user; chown {} or set [agent] state_dir",
            config.state_dir.display(),
            folder.display(),
        )
    })
}

fn print_report(report: &CheckReport) {
    println!("{}  {}  journal_mode {}", report.name, report.path, report.journal_mode);
    for table in &report.tables {
        println!(
            "  {:<24} {:<8} {:<9} key ({}) → {}",
            table.table,
            json_word(&table.modality),
            json_word(&table.authority),
            table.key.join(", "),
            table.dataspace,
        );
        for warning in &table.warnings {
            println!("  {:<24} warning: {warning}", "");
        }
    }
    for skipped in &report.skipped {
        let mark = if skipped.refused { "refused:" } else { "left out:" };
        println!("  {:<24} {mark} {}", skipped.table, skipped.reason);
    }
}

/// The word that a value has in JSON.
fn json_word<T: Serialize>(value: &T) -> String {
    json!(value).as_str().unwrap_or_default().to_owned()
}
