//! Dataspaces: listed, shown, created.
//!
//! What a name, a key or a field may be is checked by the catalog; here only the JSON is.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use sync_proto::schema::{Authority, Modality, Scope};

use super::auth::ApiCaller;
use super::error::ApiError;
use super::{Edge, body};
use crate::catalog::{Dataspace, Field, FieldType, Layout, NewDataspace, ProjectId};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateBody {
    name: String,
    modality: Modality,
    authority: Option<Authority>,
    scope: Option<Scope>,
    layout: Option<String>,
    #[serde(default)]
    natural_key: Vec<String>,
    #[serde(default)]
    fields: Vec<FieldBody>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldBody {
    path: String,
    #[serde(rename = "type")]
    field_type: String,
}

/// The dataspace that a path names.
pub(super) async fn find(
    edge: &Edge,
    project: &ProjectId,
    id_or_name: &str,
) -> Result<Arc<Dataspace>, ApiError> {
    match edge.hub.catalog().dataspace(project, id_or_name).await? {
        Some(dataspace) => Ok(Arc::new(dataspace)),
        None => Err(ApiError::not_found(
            "unknown_dataspace",
            format!("there is no dataspace with the id or name {id_or_name:?}"),
        )),
    }
}

/// GET …/dataspaces
pub(super) async fn list(
    State(edge): State<Edge>,
    caller: ApiCaller,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(pid) = path?;
    let dataspaces = edge.hub.catalog().dataspaces(caller.project(&pid)?).await?;
    let shown: Vec<Value> = dataspaces.iter().map(show).collect();
    Ok(Json(json!({"dataspaces": shown})))
}

/// GET …/dataspaces/{dsid}
pub(super) async fn get(
    State(edge): State<Edge>,
    caller: ApiCaller,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path((pid, dsid)) = path?;
    let dataspace = find(&edge, caller.project(&pid)?, &dsid).await?;
    Ok(Json(show(&dataspace)))
}

/// POST …/dataspaces
pub(super) async fn create(
    State(edge): State<Edge>,
    caller: ApiCaller,
    path: Result<Path<String>, PathRejection>,
    body: Body,
) -> Result<Response, ApiError> {
    let Path(pid) = path?;
    let project = caller.project(&pid)?;
    let new = read_new(project, body::json(body).await?)?;
    let dataspace = edge.hub.catalog().create_dataspace(new).await?;
    let place = format!("/projects/{}/dataspaces/{}", project.0, dataspace.id);
    Ok((StatusCode::CREATED, [(header::LOCATION, place)], Json(show(&dataspace))).into_response())
}

fn read_new(project: &ProjectId, body: CreateBody) -> Result<NewDataspace, ApiError> {
    let wrong = |message: String| ApiError::bad_request("invalid_dataspace", message);
    // Whoever creates a dataspace here means to write it here; a device announces its own.
    let authority = body.authority.unwrap_or(Authority::Cloud);
    // Without a key there is one row a source, which is nothing to send to all devices.
    let scope = match body.scope {
        Some(scope) => scope,
        None if body.natural_key.is_empty() => Scope::Source,
        None => Scope::default_for(authority),
    };
    let layout = match body.layout.as_deref() {
        None => Layout::Hybrid,
        Some(name) => Layout::from_name(name).ok_or_else(|| {
            wrong(format!("layout {name:?} is unknown: it is \"hybrid\" or \"typed\""))
        })?,
    };
    let field = |field: FieldBody| match FieldType::from_name(&field.field_type) {
        Some(field_type) => Ok(Field { name: field.path, field_type }),
        None => Err(wrong(format!(
            "field {:?} has the unknown type {:?}: use any, integer, real, numeric, string, blob \
             or boolean",
            field.path, field.field_type
        ))),
    };
    Ok(NewDataspace {
        project: project.clone(),
        name: body.name,
        modality: body.modality,
        authority,
        scope,
        layout,
        natural_key: body.natural_key,
        fields: body.fields.into_iter().map(field).collect::<Result<_, _>>()?,
    })
}

fn show(dataspace: &Dataspace) -> Value {
    let field = |field: &Field| json!({"path": field.name, "type": field.field_type.name()});
    json!({
        "id": dataspace.id,
        "name": dataspace.name,
        "modality": dataspace.modality,
        "authority": dataspace.authority,
        "scope": dataspace.scope,
        "layout": dataspace.layout.name(),
        "natural_key": dataspace.natural_key,
        "fields": dataspace.fields.iter().map(field).collect::<Vec<Value>>(),
        "created_at": dataspace.created_at.to_string(),
    })
}
