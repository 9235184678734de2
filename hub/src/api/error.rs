//! What a caller of the API is told when something is not done.
//!
//! One JSON shape: `{"error": {"code", "message"}, "current"?: row}`. The code is for programs and
//! never changes its meaning; the message is for a person. Faults of the store are logged here and
//! answered without their inside.

use std::error::Error;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value as Json_, json};
use sync_proto::SourceId;

use super::row_json::RowJson;
use crate::catalog::{CreateError, Dataspace};
use crate::error::StoreError;
use crate::plane::WriteError;
use crate::query::QueryError;

/// An answer that says no.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    /// The row as it stands, where a write met another version.
    current: Option<Box<Json_>>,
    /// The sources among which the caller has to choose.
    source_ids: Vec<SourceId>,
    header: Option<Header>,
}

/// A header that belongs to a status.
#[derive(Clone, Copy, Debug)]
enum Header {
    Authenticate,
    Allow(&'static str),
    RetryAfter,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            current: None,
            source_ids: Vec::new(),
            header: None,
        }
    }

    fn with(self, header: Header) -> Self {
        Self { header: Some(header), ..self }
    }

    /// 400: the request itself is wrong.
    pub(super) fn bad_request(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// 401: no token, or one that was never given out.
    pub(super) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message).with(Header::Authenticate)
    }

    /// 403: the token is known and may not do this.
    pub(super) fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, code, message)
    }

    /// 404.
    pub(super) fn not_found(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, message)
    }

    /// 405, with the methods that work where the router does not add them itself.
    pub(super) fn method(message: impl Into<String>, allow: Option<&'static str>) -> Self {
        let error = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
        match allow {
            Some(methods) => error.with(Header::Allow(methods)),
            None => error,
        }
    }

    /// 408: the body came too slowly.
    pub(super) fn body_timeout() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", "the body stopped coming")
    }

    /// 409: rows of several sources have the key.
    pub(super) fn ambiguous(source_ids: Vec<SourceId>) -> Self {
        let message = "rows of several sources have this key: name one with ?source_id=";
        Self { source_ids, ..Self::new(StatusCode::CONFLICT, "ambiguous", message) }
    }

    /// 413.
    pub(super) fn too_large(bytes_max: usize) -> Self {
        let message = format!("the body is larger than {bytes_max} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    /// 415.
    pub(super) fn media_type(wanted: &str) -> Self {
        let message = format!("the content type must be {wanted}");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "media_type", message)
    }

    /// 422: the request is right and takes more than one request may.
    fn too_much(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, message)
    }

    /// 503: the same request can succeed later.
    pub(super) fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message).with(Header::RetryAfter)
    }

    /// What became of a write to `dataspace`.
    pub(super) fn of_write(error: WriteError, dataspace: &Dataspace) -> Self {
        let message = error.to_string();
        match error {
            WriteError::Conflict { current } => Self {
                current: current.map(|row| Box::new(json!(RowJson { dataspace, row: &row }))),
                ..Self::new(StatusCode::CONFLICT, "version_conflict", message)
            },
            WriteError::NotFound => Self::not_found("row_not_found", message),
            WriteError::DeviceAuthoritative { .. } => {
                Self::forbidden("device_authoritative", message)
            }
            WriteError::UndeclaredColumn { .. } => Self::bad_request("undeclared_column", message),
            WriteError::KeyMismatch { .. } => Self::bad_request("key_mismatch", message),
            WriteError::Invalid(_) => Self::bad_request("invalid_row", message),
            WriteError::VersionRange { .. } => Self::bad_request("version_range", message),
            WriteError::Store(error) => error.into(),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut error = json!({"code": self.code, "message": self.message});
        if !self.source_ids.is_empty() {
            error["source_ids"] = json!(self.source_ids);
        }
        let mut body = json!({"error": error});
        if let Some(current) = self.current {
            body["current"] = *current;
        }
        let mut response = (self.status, Json(body)).into_response();
        if let Some(header) = self.header {
            let (name, value) = match header {
                Header::Authenticate => (header::WWW_AUTHENTICATE, "Bearer"),
                Header::Allow(methods) => (header::ALLOW, methods),
                Header::RetryAfter => (header::RETRY_AFTER, "1"),
            };
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let told = chain(&error);
        if error.is_transient() {
            tracing::warn!(error = %told, "a request was put off");
            Self::unavailable("busy", "the store cannot do this now: try again")
        } else {
            tracing::error!(error = %told, "a request failed");
            let message = "the store failed: the hub's log says why";
            Self::new(StatusCode::INTERNAL_SERVER_ERROR, "store_failed", message)
        }
    }
}

impl From<CreateError> for ApiError {
    fn from(error: CreateError) -> Self {
        let message = error.to_string();
        match error {
            CreateError::NameTaken { .. } => Self::new(StatusCode::CONFLICT, "name_taken", message),
            CreateError::Invalid(_) => Self::bad_request("invalid_dataspace", message),
            CreateError::NoProject(_) => Self::not_found("unknown_project", message),
            CreateError::Store(error) => error.into(),
        }
    }
}

impl From<QueryError> for ApiError {
    fn from(error: QueryError) -> Self {
        let message = error.to_string();
        match error {
            QueryError::Invalid(_) => Self::bad_request("invalid_query", message),
            QueryError::Forbidden { .. } => Self::forbidden("forbidden_query", message),
            QueryError::TimedOut(_) => Self::too_much("query_timed_out", message),
            QueryError::TooLarge(_) => Self::too_much("answer_too_large", message),
            QueryError::Store(error) => error.into(),
        }
    }
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        let message = format!(
            "{}; a key that is no Unicode text goes into the path in its tagged form",
            rejection.body_text()
        );
        Self::bad_request("invalid_path", message)
    }
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        Self::bad_request("invalid_parameter", rejection.body_text())
    }
}

/// An error with everything that led to it, on one line.
fn chain(error: &dyn Error) -> String {
    let mut told = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        told.push_str(": ");
        told.push_str(&inner.to_string());
        source = inner.source();
    }
    told
}
