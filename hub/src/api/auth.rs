//! Who calls: the bearer token of a request, and what it stands for.
//!
//! Extractors run before any body is read, so that a stranger cannot make the hub read one. A
//! device's token speaks only the device protocol, an API token only the API.

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;

use super::Edge;
use super::error::ApiError;
use crate::catalog::{Credential, CredentialKind, IdentityStrength, ProjectId};
use crate::lineage::DeviceCredential;
use crate::plane::Author;

/// A caller of the API.
pub(super) struct ApiCaller {
    project: ProjectId,
    name: String,
    strength: IdentityStrength,
}

impl ApiCaller {
    /// The project of the path, if it is the caller's own. Others are not told apart from projects
    /// that do not exist.
    pub(super) fn project(&self, id_or_name: &str) -> Result<&ProjectId, ApiError> {
        if self.project.0 == id_or_name {
            Ok(&self.project)
        } else {
            Err(ApiError::not_found("unknown_project", "there is no such project for this token"))
        }
    }

    /// The caller as the history names it.
    pub(super) fn author(&self) -> Author {
        Author { name: format!("api:{}", self.name), strength: self.strength }
    }
}

impl FromRequestParts<Edge> for ApiCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, edge: &Edge) -> Result<Self, ApiError> {
        let Credential { project, kind, strength, .. } = credential(parts, edge).await?;
        match kind {
            CredentialKind::Api { name } => Ok(Self { project, name, strength }),
            CredentialKind::Device { name } => Err(ApiError::forbidden(
                "device_token",
                format!(
                    "this is the token of device {name}: the API needs one made with \
                     `rowtide-hub token new --api`"
                ),
            )),
        }
    }
}

/// A device.
pub(super) struct DeviceCaller(pub(super) DeviceCredential);

impl FromRequestParts<Edge> for DeviceCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, edge: &Edge) -> Result<Self, ApiError> {
        let Credential { project, kind, strength, .. } = credential(parts, edge).await?;
        match kind {
            CredentialKind::Device { name } => {
                Ok(Self(DeviceCredential { project, name, strength }))
            }
            CredentialKind::Api { name } => Err(ApiError::forbidden(
                "api_token",
                format!(
                    "this is the API token {name:?}: a device needs one made with \
                     `rowtide-hub token new --device NAME`"
                ),
            )),
        }
    }
}

async fn credential(parts: &Parts, edge: &Edge) -> Result<Credential, ApiError> {
    let Some(token) = bearer(parts) else {
        let message = "a token is needed: send the header Authorization: Bearer TOKEN";
        return Err(ApiError::unauthorized(message));
    };
    match edge.hub.catalog().credential(token).await? {
        Some(credential) => Ok(credential),
        None => Err(ApiError::unauthorized(
            "this token is not known here: it was revoked, or another hub gave it out",
        )),
    }
}

fn bearer(parts: &Parts) -> Option<&str> {
    let header = parts.headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = header.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("Bearer") && !token.is_empty()).then_some(token)
}
