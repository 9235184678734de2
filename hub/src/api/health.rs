//! Whether the process lives, and whether it can serve. Neither needs a token.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::Edge;
use super::error::ApiError;

/// The process answers.
pub(super) async fn healthz() -> Json<Value> {
    std::future::ready(Json(json!({"status": "ok"}))).await
}

/// The state store answers, and the process is not about to end.
pub(super) async fn readyz(State(edge): State<Edge>) -> Result<Json<Value>, ApiError> {
    if *edge.closing.borrow() {
        return Err(ApiError::unavailable("closing", "the hub is shutting down"));
    }
    edge.hub.lineages().life().await?;
    Ok(Json(json!({"status": "ready"})))
}
