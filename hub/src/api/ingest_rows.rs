//! Cloud-authored rows of a mutable dataspace, in bulk: one JSON object a line.
//!
//! A body is read and checked whole before any row is stored, so a wrong line stores nothing. The
//! rows then go in by parts; since each carries its own version, sending a body again is safe.
//! What becomes of a row is decided behind the hub.

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::{Value as Json_, json};
use sync_proto::message::Outcome;
use sync_proto::schema::{Authority, Modality, Scope};
use sync_proto::{NaturalKey, RowHash, Seq, SourceId, Value, Version};
use uuid::Uuid;

use super::auth::ApiCaller;
use super::dataspaces::find;
use super::error::ApiError;
use super::{Edge, JSON_BYTES_MAX, body};
use crate::catalog::Dataspace;
use crate::json::Columns;
use crate::plane::{UpRow, WriteError};

/// Rows that go into the store at a time: one write transaction each.
const PART_ROWS: usize = 1_000;

/// Refused rows that the answer lists; the rest is only counted.
const LISTED_MAX: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IngestQuery {
    source_id: Option<Uuid>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    row_key: Option<String>,
    key: Option<Columns>,
    source_id: Option<Uuid>,
    version: i64,
    values: Option<Columns>,
    #[serde(default)]
    deleted: bool,
}

/// POST …/ingest
pub(super) async fn ingest(
    State(edge): State<Edge>,
    caller: ApiCaller,
    path: Result<Path<(String, String)>, PathRejection>,
    query: Result<Query<IngestQuery>, QueryRejection>,
    body: Body,
) -> Result<Response, ApiError> {
    let (Path((pid, dsid)), Query(query)) = (path?, query?);
    let dataspace = find(&edge, caller.project(&pid)?, &dsid).await?;
    check_ingestible(&dataspace)?;
    let bytes = body::read(body, JSON_BYTES_MAX).await?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|error| ApiError::bad_request("invalid_body", error.to_string()))?;
    let (numbers, rows): (Vec<usize>, Vec<UpRow>) =
        read_lines(&dataspace, query.source_id.map(SourceId), text)?.into_iter().unzip();
    let mut tally = Tally::default();
    let mut left = rows.into_iter();
    let mut lines = numbers.into_iter();
    loop {
        let part: Vec<UpRow> = left.by_ref().take(PART_ROWS).collect();
        if part.is_empty() {
            break;
        }
        let keys: Vec<NaturalKey> = part.iter().map(|row| row.key.clone()).collect();
        let outcomes = edge
            .hub
            .ingest_rows(&dataspace, part)
            .await
            .map_err(|error| ApiError::of_write(error, &dataspace))?;
        for ((key, line), outcome) in keys.iter().zip(lines.by_ref()).zip(outcomes) {
            tally.add(line, key, &outcome);
        }
    }
    Ok((StatusCode::ACCEPTED, Json(tally.into_json())).into_response())
}

fn check_ingestible(dataspace: &Dataspace) -> Result<(), ApiError> {
    if dataspace.modality == Modality::State {
        let message = format!(
            "{} is a state dataspace: write its rows one by one with PUT …/rows/{{row_key}}",
            dataspace.name
        );
        return Err(ApiError::method(message, Some("")));
    }
    if dataspace.authority == Authority::Device {
        let error = WriteError::DeviceAuthoritative { dataspace: dataspace.name.clone() };
        return Err(ApiError::of_write(error, dataspace));
    }
    Ok(())
}

/// The rows with their line numbers, from 1. Empty lines are passed over.
fn read_lines(
    dataspace: &Dataspace,
    source: Option<SourceId>,
    text: &str,
) -> Result<Vec<(usize, UpRow)>, ApiError> {
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let number = index + 1;
        let row = serde_json::from_str::<Line>(line)
            .map_err(|error| error.to_string())
            .and_then(|line| read_row(dataspace, source, line))
            .map_err(|message| {
                let message = format!("line {number}: {message}; no line was stored");
                ApiError::bad_request("invalid_line", message)
            })?;
        rows.push((number, row));
    }
    Ok(rows)
}

fn read_row(dataspace: &Dataspace, source: Option<SourceId>, line: Line) -> Result<UpRow, String> {
    let key = read_key(dataspace, &line)?;
    let named = line.source_id.map(SourceId).or(source);
    if dataspace.scope == Scope::All && named.is_some_and(|id| id != dataspace.own_source()) {
        return Err("rows of this dataspace go to all devices: name no source_id".to_owned());
    }
    let source_id = dataspace.source_for(named).ok_or_else(|| {
        "each row of this dataspace belongs to one device: source_id is missing".to_owned()
    })?;
    let values = match (line.values, line.deleted) {
        (Some(Columns(values)), false) => merge_key(dataspace, &key, values)?,
        (None, true) => key_values(dataspace, &key)?,
        (Some(_), true) => return Err("a deleted row has no values".to_owned()),
        (None, false) => return Err("either values or \"deleted\": true is missing".to_owned()),
    };
    let hash = if line.deleted {
        RowHash::TOMBSTONE
    } else {
        RowHash::of(values.iter().map(|(name, value)| (name.as_str(), value)))
    };
    Ok(UpRow {
        source_id,
        key,
        seq: Seq::ZERO,
        version: Version(line.version),
        base: None,
        values,
        deleted: line.deleted,
        hash,
    })
}

fn read_key(dataspace: &Dataspace, line: &Line) -> Result<NaturalKey, String> {
    let fields = dataspace.natural_key.join(", ");
    match (&line.row_key, &line.key) {
        (Some(text), None) => NaturalKey::parse(text, &dataspace.key_types())
            .map_err(|error| format!("row_key: {error}; the key is ({fields})")),
        (None, Some(Columns(given))) => {
            let part = |field: &String| {
                let named = |(name, _): &&(String, Value)| name.eq_ignore_ascii_case(field);
                given.iter().find(named).map(|(_, value)| value.clone())
            };
            let parts: Option<Vec<Value>> = dataspace.natural_key.iter().map(part).collect();
            match parts {
                Some(parts) if parts.len() == given.len() => Ok(NaturalKey::of(&parts)),
                Some(_) | None => Err(format!("key must have exactly the fields ({fields})")),
            }
        }
        (Some(_), Some(_)) | (None, None) => {
            Err("either row_key or key is needed, and not both".to_owned())
        }
    }
}

/// The key's fields with the values that the key gives them.
fn key_values(dataspace: &Dataspace, key: &NaturalKey) -> Result<Vec<(String, Value)>, String> {
    let parts = key.parts().map_err(|error| error.to_string())?;
    Ok(dataspace.natural_key.iter().cloned().zip(parts).collect())
}

/// The key's fields, then the given values of the others. A key field may be given again if it is
/// the same.
fn merge_key(
    dataspace: &Dataspace,
    key: &NaturalKey,
    given: Vec<(String, Value)>,
) -> Result<Vec<(String, Value)>, String> {
    let mut values = key_values(dataspace, key)?;
    let key_fields = values.len();
    for (name, value) in given {
        let in_key = values[..key_fields].iter().find(|(key, _)| key.eq_ignore_ascii_case(&name));
        match in_key {
            None => values.push((name, value)),
            Some((_, part)) if *part == value => {}
            Some(_) => return Err(format!("field {name:?} differs from the row's key")),
        }
    }
    Ok(values)
}

/// What became of the rows.
#[derive(Default)]
struct Tally {
    accepted: u64,
    rejected: u64,
    listed: Vec<Json_>,
}

impl Tally {
    fn add(&mut self, line: usize, key: &NaturalKey, outcome: &Outcome) {
        let (code, message) = match outcome {
            // An older row is taken and loses, as it would in any order.
            Outcome::Applied | Outcome::Duplicate | Outcome::Stale => {
                self.accepted += 1;
                return;
            }
            Outcome::Diverged => (
                "diverged",
                "this version is stored with other content: send the row with a higher version",
            ),
            Outcome::Conflict => ("conflict", "the stored row is another one than expected"),
            Outcome::Rejected(reason) => (reason.code.as_str(), reason.message.as_str()),
        };
        self.rejected += 1;
        if self.listed.len() < LISTED_MAX {
            let row_key = key.as_str();
            let error = json!({"code": code, "message": message});
            self.listed.push(json!({"line": line, "row_key": row_key, "error": error}));
        }
    }

    fn into_json(self) -> Json_ {
        json!({
            "accepted": self.accepted,
            "rejected": self.rejected,
            "rejected_rows": self.listed,
        })
    }
}
