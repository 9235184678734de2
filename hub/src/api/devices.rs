//! Devices and how far each of their tables is.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::{Map, Value, json};

use super::Edge;
use super::auth::ApiCaller;
use super::error::ApiError;
use crate::clock::UnixMillis;
use crate::lineage::{DeviceInfo, DownOutcomeInfo, LaneInfo, LineageInfo};

/// GET …/devices
pub(super) async fn list(
    State(edge): State<Edge>,
    caller: ApiCaller,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(pid) = path?;
    let devices = edge.hub.lineages().devices(caller.project(&pid)?).await?;
    let shown: Vec<Value> = devices.iter().map(show).collect();
    Ok(Json(json!({"devices": shown})))
}

/// GET …/devices/{name}
pub(super) async fn get(
    State(edge): State<Edge>,
    caller: ApiCaller,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path((pid, name)) = path?;
    match edge.hub.lineages().device(caller.project(&pid)?, &name).await? {
        Some(device) => Ok(Json(show(&device))),
        None => {
            Err(ApiError::not_found("unknown_device", format!("there is no device named {name:?}")))
        }
    }
}

fn show(device: &DeviceInfo) -> Value {
    json!({
        "name": device.name,
        "source_id": device.source_id,
        "last_seen": device.last_seen.map(moment),
        "lineages": device.lineages.iter().map(lineage).collect::<Vec<Value>>(),
    })
}

fn lineage(lineage: &LineageInfo) -> Value {
    json!({
        "database": lineage.database,
        "table": lineage.table,
        "dataspace": lineage.dataspace,
        "modality": lineage.modality,
        "authority": lineage.authority,
        "status": lineage.status,
        "message": lineage.message,
        "device_status": lineage.device_status,
        "epoch": lineage.epoch,
        "watermark": lineage.watermark,
        "consistent": lineage.consistent,
        "pending": lineage.pending,
        "last_receipt": lineage.last_receipt.map(moment),
        "quarantine": lineage.quarantine(),
        "quarantine_at": {"device": lineage.device_quarantine, "hub": lineage.orphans},
        "fingerprint": lineage.fingerprint,
        "lanes": lineage.lanes.iter().map(lane).collect::<Map<String, Value>>(),
        "applied_cursor": lineage.applied_cursor.to_string(),
        "down_outcomes": lineage.down_outcomes.iter().map(down_outcome).collect::<Vec<Value>>(),
    })
}

fn lane(lane: &LaneInfo) -> (String, Value) {
    let counters: Map<String, Value> =
        lane.counters.iter().map(|(name, rows)| ((*name).to_owned(), json!(rows))).collect();
    let shown = json!({
        "watermark": lane.watermark,
        "head": lane.head,
        "consistent": lane.consistent,
        "last_receipt": lane.last_receipt.map(moment),
        "rows": counters,
    });
    (lane.lane.name().to_owned(), shown)
}

fn down_outcome(outcome: &DownOutcomeInfo) -> Value {
    json!({
        "row_key": outcome.key.as_str(),
        "version": outcome.version,
        "outcome": outcome.outcome,
        "message": outcome.message,
        "at": moment(outcome.at),
    })
}

fn moment(at: UnixMillis) -> String {
    at.to_string()
}
