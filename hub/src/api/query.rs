//! SQL over the read views. Running it within bounds is the engine's.

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::json;

use super::auth::ApiCaller;
use super::error::ApiError;
use super::{Edge, body};
use crate::json::Exact;
use crate::query::QueryLimits;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QueryBody {
    sql: String,
}

/// POST …/query
pub(super) async fn query(
    State(edge): State<Edge>,
    caller: ApiCaller,
    path: Result<Path<String>, PathRejection>,
    body: Body,
) -> Result<Response, ApiError> {
    let Path(pid) = path?;
    let project = caller.project(&pid)?;
    let QueryBody { sql } = body::json(body).await?;
    let answer = edge.hub.query().query(project, &sql, QueryLimits::default()).await?;
    let rows: Vec<Vec<Exact<'_>>> =
        answer.rows.iter().map(|row| row.iter().map(Exact).collect()).collect();
    let (columns, truncated) = (&answer.columns, answer.truncated);
    Ok(Json(json!({"columns": columns, "rows": rows, "truncated": truncated})).into_response())
}
