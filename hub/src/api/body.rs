//! Bodies of requests, read within bounds of bytes and time.
//!
//! Whoever calls has been authenticated before. A body beyond the bound is still taken from the
//! wire for a while, because a client that is cut off while it sends does not see the answer.

use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;

use super::JSON_BYTES_MAX;
use super::error::ApiError;

/// How long a body may stand still: longer than a bad radio link does.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Reads a body of at most `bytes_max` bytes.
pub(super) async fn read(mut body: Body, bytes_max: usize) -> Result<Bytes, ApiError> {
    let declared = axum::body::HttpBody::size_hint(&body).lower();
    if declared > 2 * bytes_max as u64 {
        return Err(ApiError::too_large(bytes_max));
    }
    let (mut kept, mut seen) = (Vec::new(), 0_usize);
    loop {
        let frame = tokio::time::timeout(PAUSE_MAX, body.frame())
            .await
            .map_err(|_elapsed| ApiError::body_timeout())?;
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| {
            ApiError::bad_request("body_broken", format!("the body ended early: {error}"))
        })?;
        // Trailers mean nothing here.
        let Ok(data) = frame.into_data() else { continue };
        seen = seen.saturating_add(data.len());
        if seen > 2 * bytes_max {
            break;
        }
        if seen <= bytes_max {
            kept.extend_from_slice(&data);
        }
    }
    if seen > bytes_max { Err(ApiError::too_large(bytes_max)) } else { Ok(kept.into()) }
}

/// Reads a JSON body.
pub(super) async fn json<T: DeserializeOwned>(body: Body) -> Result<T, ApiError> {
    let bytes = read(body, JSON_BYTES_MAX).await?;
    serde_json::from_slice(&bytes).map_err(|error| {
        ApiError::bad_request("invalid_body", format!("the body is not as it must be: {error}"))
    })
}
