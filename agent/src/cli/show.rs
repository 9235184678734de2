//! `rowtide status` and `rowtide quarantine list`: asked of the running agent, or read from the
//! files where none runs.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Value, json};

use super::Answer;
use crate::config::Config;
use crate::control::{self, Question};
use crate::status::{Health, Judge};
use crate::store::{StoreStatus, chain, word};

/// Prints the status.
pub(super) fn status(config: &Config, as_json: bool) -> Result<Answer> {
    let document = match control::ask(&config.state_dir, Question::Status)? {
        Some(document) => document,
        None => serde_json::to_value(without_agent(config))?,
    };
    let text = if as_json { format!("{document}\n") } else { status_text(&document)? };
    let code = match document["status"].as_str() {
        Some("healthy") => Health::Healthy,
        Some("degraded") => Health::Degraded,
        _ => Health::Stalled,
    };
    Ok(Answer { text, code: code.exit_code() })
}

/// What the files say while no agent runs.
fn without_agent(config: &Config) -> crate::status::Document {
    let mut judge = Judge::new(config.stalled_after);
    judge.alarm(
        Health::Stalled,
        "agent_not_running",
        None,
        None,
        format!("no agent runs on {}; start it: rowtide run", config.state_dir.display()),
    );
    for database in &config.databases {
        let status = match capture::offline_status(database) {
            Ok(status) => StoreStatus::Open(Box::new(status)),
            Err(error) => StoreStatus::Closed { status: word(&error), error: chain(&error) },
        };
        judge.database(&database.name, &database.path, &status, None);
    }
    judge.finish()
}

/// Prints the rows that are set aside.
pub(super) fn quarantine(config: &Config, as_json: bool) -> Result<Answer> {
    let document = match control::ask(&config.state_dir, Question::Quarantine)? {
        Some(document) => document,
        None => {
            let entries: Vec<Value> = config
                .databases
                .iter()
                .map(|database| match capture::offline_quarantine(&database.path) {
                    Ok(rows) => json!({ "database": database.name, "rows": rows }),
                    Err(error) => json!({ "database": database.name, "error": chain(&error) }),
                })
                .collect();
            json!({ "databases": entries })
        }
    };
    let entries = array(&document["databases"]);
    // Rows that cannot be listed are not "nothing".
    let code = u8::from(entries.iter().any(|entry| entry["error"].is_string()));
    if as_json {
        return Ok(Answer { text: format!("{document}\n"), code });
    }
    let mut out = String::new();
    let mut count = 0;
    for entry in entries {
        let database = text(&entry["database"]);
        if let Some(error) = entry["error"].as_str() {
            writeln!(out, "{database}: {error}")?;
        }
        for row in array(&entry["rows"]) {
            count += 1;
            writeln!(
                out,
                "{database}.{}  {}  {} {}  {}: {}",
                text(&row["table"]),
                text(&row["key"]),
                text(&row["direction"]),
                row["number"],
                text(&row["code"]),
                text(&row["message"]),
            )?;
        }
    }
    if count == 0 && code == 0 {
        writeln!(out, "nothing is set aside")?;
    }
    Ok(Answer { text: out, code })
}

fn status_text(document: &Value) -> Result<String> {
    let mut out = String::new();
    writeln!(out, "{}", text(&document["status"]))?;
    for database in array(&document["databases"]) {
        writeln!(
            out,
            "\n{}  {}  {}  link {}",
            text(&database["name"]),
            text(&database["status"]),
            text(&database["path"]),
            database["link"].as_str().unwrap_or("none"),
        )?;
        let tables = array(&database["tables"]);
        if tables.is_empty() {
            continue;
        }
        writeln!(
            out,
            "  {:<24} {:<8} {:<9} {:<12} {:>9} {:>9} {:>7} {:>10} {:>8}",
            "table",
            "modality",
            "authority",
            "status",
            "watermark",
            "pending",
            "oldest",
            "quarantine",
            "reverted"
        )?;
        for table in tables {
            let age = table["oldest_pending_s"].as_u64().map(|age| format!("{age} s"));
            writeln!(
                out,
                "  {:<24} {:<8} {:<9} {:<12} {:>9} {:>9} {:>7} {:>10} {:>8}",
                text(&table["name"]),
                text(&table["modality"]),
                text(&table["authority"]),
                text(&table["status"]),
                table["watermark"].to_string(),
                table["pending"].to_string(),
                age.unwrap_or_else(|| "-".to_owned()),
                table["quarantine"].to_string(),
                table["reverted"].to_string(),
            )?;
        }
    }
    let alarms = array(&document["alarms"]);
    if !alarms.is_empty() {
        writeln!(out)?;
    }
    for alarm in alarms {
        let place = [&alarm["database"], &alarm["table"]];
        let place: Vec<&str> = place.into_iter().filter_map(Value::as_str).collect();
        writeln!(
            out,
            "! {}  {}  {}",
            text(&alarm["code"]),
            place.join("."),
            text(&alarm["message"])
        )?;
    }
    Ok(out)
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}
