//! The device protocol over HTTPS: one frame in, one frame out.
//!
//! What a frame means is [`crate::ingest`]'s. Bytes that are no frame are answered with a frame
//! that refuses them, so that a device of any age learns why.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use sync_proto::limits::FRAME_BYTES_MAX;
use sync_proto::message::{Refusal, Refused, ToDevice, ToHub};
use sync_proto::wire::{
    DecodeError, FORMAT, FORMAT_MIN, MEDIA_TYPE, decode_to_hub, encode_to_device,
};

use super::auth::DeviceCaller;
use super::error::ApiError;
use super::{Edge, body};

/// POST /v1/sync/message
pub(super) async fn message(
    State(edge): State<Edge>,
    DeviceCaller(credential): DeviceCaller,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    if !is_frame(&headers) {
        return Err(ApiError::media_type(MEDIA_TYPE));
    }
    let bytes = body::read(body, FRAME_BYTES_MAX).await?;
    let message = match decode_to_hub(&bytes) {
        Ok(message) => message,
        Err(error) => return refuse(&error).map(|refused| frame(&ToDevice::Refused(refused))),
    };
    // The encoded rows live on in the message.
    drop(bytes);
    let waits = matches!(message, ToHub::DownRequest(_));
    let handled = edge.hub.ingest().handle(&credential, message);
    let mut closing = edge.closing.clone();
    tokio::select! {
        // A poll that waits has nothing to lose; what writes runs to its end.
        biased;
        Ok(_) = closing.wait_for(|closing| *closing), if waits => {
            Err(ApiError::unavailable("closing", "the hub is shutting down: poll again"))
        }
        answer = handled => Ok(frame(&answer)),
    }
}

fn is_frame(headers: &HeaderMap) -> bool {
    let Some(Ok(value)) = headers.get(header::CONTENT_TYPE).map(|value| value.to_str()) else {
        return false;
    };
    let essence = value.split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case(MEDIA_TYPE)
}

fn refuse(error: &DecodeError) -> Result<Refused, ApiError> {
    let message = error.to_string();
    match error {
        DecodeError::Format { .. } => {
            Ok(Refused { code: Refusal::Format { min: FORMAT_MIN, max: FORMAT }, message })
        }
        DecodeError::Malformed(_) => Ok(Refused { code: Refusal::Malformed, message }),
        DecodeError::TooLarge { .. } => Err(ApiError::too_large(FRAME_BYTES_MAX)),
    }
}

fn frame(answer: &ToDevice) -> Response {
    ([(header::CONTENT_TYPE, MEDIA_TYPE)], encode_to_device(answer)).into_response()
}
