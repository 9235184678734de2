//! `rowtide check` and `rowtide tables`: what would run and what would not, and why.
//!
//! Every file is opened, looked at and closed; nothing is created or changed. A finding has to be
//! mended and makes the exit code 1; a warning is for a person to weigh.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result, ensure};
use capture::CheckReport;
use rustix::fs::{Access, access};
use serde::Serialize;
use serde_json::json;

use super::Answer;
use crate::config::Config;
use crate::link::https::Https;
use crate::store::{chain, word};

/// Something for a person to look at.
#[derive(Serialize)]
struct Finding {
    code: &'static str,
    message: String,
}

/// Checks everything that `run` needs; of the network only the hub, and only when asked to.
pub(super) fn check(config: &Config, as_json: bool, online: bool) -> Result<Answer> {
    let mut findings = Vec::new();
    let mut finding = |code, message: String| findings.push(Finding { code, message });
    // The client reads the token and the CA as `run` will.
    drop(rustls::crypto::ring::default_provider().install_default());
    match Https::new(&config.hub) {
        Ok(link) if online => {
            if let Err(error) = ready(&link) {
                finding("hub_unreachable", format!("{error:#}"));
            }
        }
        Ok(_) => {}
        Err(error) => finding("hub", format!("{error:#}")),
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
    let warnings = warnings(config);
    let code = u8::from(!findings.is_empty());
    if as_json {
        let document = json!({
            "ok": findings.is_empty(),
            "findings": findings,
            "warnings": warnings,
            "databases": reports,
        });
        return Ok(Answer { text: format!("{document}\n"), code });
    }
    let mut text = String::new();
    for report in &reports {
        describe(report, &mut text)?;
    }
    for warning in &warnings {
        writeln!(text, "warning: {}  {}", warning.code, warning.message)?;
    }
    for finding in &findings {
        writeln!(text, "! {}  {}", finding.code, finding.message)?;
    }
    if findings.is_empty() {
        writeln!(text, "everything fits")?;
    }
    Ok(Answer { text, code })
}

/// Lists the tables of every database.
pub(super) fn tables(config: &Config, as_json: bool) -> Result<Answer> {
    let mut code = 0;
    let mut text = String::new();
    let mut entries = Vec::new();
    for database in &config.databases {
        match capture::check(database) {
            Ok(report) => {
                describe(&report, &mut text)?;
                entries.push(json!(report));
            }
            Err(error) => {
                code = 1;
                writeln!(text, "{}: {}", database.name, chain(&error))?;
                entries.push(json!({ "name": database.name, "error": chain(&error) }));
            }
        }
    }
    if as_json {
        text = format!("{}\n", json!({ "databases": entries }));
    }
    Ok(Answer { text, code })
}

/// Whether the hub says that it is ready.
fn ready(link: &Https) -> Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime cannot be started")?
        .block_on(link.ready())
}

/// Whether the state folder can be used, or made; it is not made here.
fn state_dir(config: &Config) -> Result<()> {
    let exists = config.state_dir.ancestors().find(|folder| folder.exists());
    let folder = exists.unwrap_or(&config.state_dir);
    let shown = config.state_dir.display();
    ensure!(
        folder.is_dir(),
        "{shown}: the state folder cannot be made, because {} is no folder; set another [agent] \
         state_dir",
        folder.display(),
    );
    access(folder, Access::WRITE_OK | Access::EXEC_OK).with_context(|| {
        format!(
            "{shown}: the state folder cannot be written by this user; chown {} or set another \
             [agent] state_dir",
            folder.display(),
        )
    })
}

/// What works, but is risky.
fn warnings(config: &Config) -> Vec<Finding> {
    let mut warnings = Vec::new();
    if config.hub.is_exposed() {
        let message = format!(
            "{}: token and rows travel in clear text; write https:// unless the network itself is \
             encrypted",
            config.hub.url
        );
        warnings.push(Finding { code: "plaintext", message });
    }
    let secrets = [(&config.hub.token_file, 0o077), (&config.state_dir, 0o022)];
    for (path, too_open) in secrets {
        let mode = std::fs::metadata(path).map(|meta| meta.permissions().mode() & 0o777);
        if let Ok(mode) = mode {
            if mode & too_open != 0 {
                let message = format!(
                    "{}: its mode {mode:o} lets other users in; chmod go-{} it",
                    path.display(),
                    if too_open == 0o077 { "rwx" } else { "w" },
                );
                warnings.push(Finding { code: "open_to_others", message });
            }
        }
    }
    warnings
}

fn describe(report: &CheckReport, text: &mut String) -> std::fmt::Result {
    writeln!(text, "{}  {}  journal_mode {}", report.name, report.path, report.journal_mode)?;
    for table in &report.tables {
        writeln!(
            text,
            "  {:<24} {:<8} {:<9} key ({}) → {}",
            table.table,
            json_word(&table.modality),
            json_word(&table.authority),
            table.key.join(", "),
            table.dataspace,
        )?;
        for warning in &table.warnings {
            writeln!(text, "  {:<24} warning: {warning}", "")?;
        }
    }
    for skipped in &report.skipped {
        let mark = if skipped.refused { "refused:" } else { "left out:" };
        writeln!(text, "  {:<24} {mark} {}", skipped.table, skipped.reason)?;
    }
    Ok(())
}

/// The word that a value has in JSON.
fn json_word<T: Serialize>(value: &T) -> String {
    json!(value).as_str().unwrap_or_default().to_owned()
}
