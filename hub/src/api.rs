//! The hub over HTTP: JSON for callers in the cloud, frames for devices.
//!
//! A handler checks the credential, reads a bounded body, calls [`Hub`] and puts the answer into
//! JSON; every rule about rows stands behind the hub. Tenant and author come from the credential.
//! Invariant: every answer that is no frame is JSON, errors too, and names what to do next.

mod auth;
mod body;
mod dataspaces;
mod devices;
mod error;
mod health;
mod ingest_rows;
mod precondition;
mod query;
mod row_json;
mod rows;
mod sync;

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use tokio::sync::watch;

use self::error::ApiError;
use crate::hub::Hub;

/// Bytes of a JSON body: as much as the largest row that a device could send.
const JSON_BYTES_MAX: usize = 16 << 20;

/// What every handler sees.
#[expect(missing_debug_implementations, reason = "the hub's stores have none")]
#[derive(Clone)]
pub struct Edge {
    hub: Hub,
    /// True once the process is about to end.
    closing: watch::Receiver<bool>,
}

/// The routes of a hub. Long polls end as soon as `closing` turns true.
pub fn router(hub: Hub, closing: watch::Receiver<bool>) -> Router {
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/v1/sync/message", post(sync::message))
        .route("/projects/{pid}/dataspaces", get(dataspaces::list).post(dataspaces::create))
        .route("/projects/{pid}/dataspaces/{dsid}", get(dataspaces::get))
        .route("/projects/{pid}/dataspaces/{dsid}/rows", get(rows::list))
        .route(
            "/projects/{pid}/dataspaces/{dsid}/rows/{*row_key}",
            get(rows::get).put(rows::put).delete(rows::delete),
        )
        .route("/projects/{pid}/dataspaces/{dsid}/ingest", post(ingest_rows::ingest))
        .route("/projects/{pid}/query", post(query::query))
        .route("/projects/{pid}/devices", get(devices::list))
        .route("/projects/{pid}/devices/{name}", get(devices::get))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(middleware::from_fn(trace))
        .with_state(Edge { hub, closing })
}

async fn no_route() -> ApiError {
    std::future::ready(ApiError::not_found("no_route", "there is nothing at this path")).await
}

async fn no_method() -> ApiError {
    std::future::ready(ApiError::method("this path does not take this method", None)).await
}

/// Tells the log about a request by its route, because a path names keys of rows.
async fn trace(request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    tracing::debug!(%method, route, status = response.status().as_u16(), "answered");
    response
}
