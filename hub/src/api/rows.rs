//! Rows of a dataspace, one by one and in pages.
//!
//! A path names a row by its key as people write it (bare, or tagged by storage class); where
//! several sources may have the same key, `?source_id=` chooses. Versions, conditions and columns
//! are judged behind the hub, under the row's lock. A mutable dataspace is only read here.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64_URL;
use serde::Deserialize;
use serde_json::json;
use sync_proto::schema::{Authority, Modality, Scope};
use sync_proto::{NaturalKey, SourceId, Version};
use uuid::Uuid;

use super::auth::ApiCaller;
use super::dataspaces::find;
use super::error::ApiError;
use super::row_json::RowJson;
use super::{Edge, body, precondition};
use crate::catalog::Dataspace;
use crate::json::Columns;
use crate::plane::{Lookup, PageRequest, RowWrite, StoredRow, WriteError};

/// Rows of a page when the caller names no limit.
const PAGE_ROWS: usize = 100;

/// Rows of a page at most; a higher limit gets this.
const PAGE_ROWS_MAX: usize = 10_000;

type RowPath = Result<Path<(String, String, String)>, PathRejection>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RowQuery {
    source_id: Option<Uuid>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    limit: Option<usize>,
    after: Option<String>,
    source_id: Option<Uuid>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PutBody {
    values: Columns,
    version: Option<i64>,
}

/// GET …/rows
pub(super) async fn list(
    State(edge): State<Edge>,
    caller: ApiCaller,
    path: Result<Path<(String, String)>, PathRejection>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let (Path((pid, dsid)), Query(query)) = (path?, query?);
    let dataspace = find(&edge, caller.project(&pid)?, &dsid).await?;
    let limit = query.limit.unwrap_or(PAGE_ROWS).min(PAGE_ROWS_MAX);
    if limit == 0 {
        return Err(ApiError::bad_request("invalid_parameter", "limit must be at least 1"));
    }
    let after = query.after.as_deref().map(read_token).transpose()?;
    let request = PageRequest { after, source: query.source_id.map(SourceId), limit };
    let page = match dataspace.modality {
        Modality::State => edge.hub.state().list(&dataspace, request).await?,
        Modality::Mutable => edge.hub.mutable().list(&dataspace, request).await?,
    };
    let shown = |row| RowJson { dataspace: &dataspace, row };
    let rows: Vec<RowJson<'_>> = page.rows.iter().map(shown).collect();
    let next = page.next.as_ref().map(|(key, source)| write_token(key, *source));
    Ok(Json(json!({"rows": rows, "next": next})).into_response())
}

/// GET …/rows/{row_key}
pub(super) async fn get(
    State(edge): State<Edge>,
    caller: ApiCaller,
    path: RowPath,
    query: Result<Query<RowQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let (Path((pid, dsid, row_key)), Query(query)) = (path?, query?);
    let dataspace = find(&edge, caller.project(&pid)?, &dsid).await?;
    let target = Target::read(&dataspace, &row_key, query.source_id)?;
    match lookup(&edge, &dataspace, &target).await? {
        Lookup::None => Err(row_not_found()),
        Lookup::Ambiguous(sources) => Err(ApiError::ambiguous(sources)),
        Lookup::One(row) if precondition::is_held(&headers, row.version)? => {
            let etag = precondition::etag(row.version);
            Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, etag)]).into_response())
        }
        Lookup::One(row) => Ok(answer(StatusCode::OK, &dataspace, &row)),
    }
}

/// PUT …/rows/{row_key}
pub(super) async fn put(
    State(edge): State<Edge>,
    caller: ApiCaller,
    path: RowPath,
    query: Result<Query<RowQuery>, QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let (Path((pid, dsid, row_key)), Query(query)) = (path?, query?);
    let dataspace = find(&edge, caller.project(&pid)?, &dsid).await?;
    check_writable(&dataspace)?;
    let target = Target::read(&dataspace, &row_key, query.source_id)?;
    let condition = precondition::of_write(&headers)?;
    let PutBody { values: Columns(values), version } = body::json(body).await?;
    let source_id = source_to_write(&edge, &dataspace, &target)
        .await?
        .ok_or_else(|| source_needed(&dataspace))?;
    let write = RowWrite {
        dataspace: Arc::clone(&dataspace),
        source_id,
        key: target.key,
        values: Some(values),
        version: version.map(Version),
        condition,
        author: caller.author(),
    };
    let done =
        edge.hub.write(write).await.map_err(|error| ApiError::of_write(error, &dataspace))?;
    let status = if done.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(answer(status, &dataspace, &done.row))
}

/// DELETE …/rows/{row_key}
pub(super) async fn delete(
    State(edge): State<Edge>,
    caller: ApiCaller,
    path: RowPath,
    query: Result<Query<RowQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let (Path((pid, dsid, row_key)), Query(query)) = (path?, query?);
    let dataspace = find(&edge, caller.project(&pid)?, &dsid).await?;
    check_writable(&dataspace)?;
    let target = Target::read(&dataspace, &row_key, query.source_id)?;
    let condition = precondition::of_write(&headers)?;
    let source_id = source_to_write(&edge, &dataspace, &target).await?.ok_or_else(row_not_found)?;
    let write = RowWrite {
        dataspace: Arc::clone(&dataspace),
        source_id,
        key: target.key,
        values: None,
        version: None,
        condition,
        author: caller.author(),
    };
    let done =
        edge.hub.write(write).await.map_err(|error| ApiError::of_write(error, &dataspace))?;
    Ok(answer(StatusCode::OK, &dataspace, &done.row))
}

/// The row that a path and its `source_id` name.
struct Target {
    key: NaturalKey,
    /// What the caller named; in a dataspace without a key the path names it.
    named: Option<SourceId>,
}

impl Target {
    fn read(
        dataspace: &Dataspace,
        row_key: &str,
        source_id: Option<Uuid>,
    ) -> Result<Self, ApiError> {
        let wrong = |message: String| ApiError::bad_request("invalid_row_key", message);
        let named = source_id.map(SourceId);
        if !dataspace.natural_key.is_empty() {
            let key = NaturalKey::parse(row_key, &dataspace.key_types()).map_err(|error| {
                let fields = dataspace.natural_key.join(",");
                wrong(format!("{error}; the key of {} is ({fields})", dataspace.name))
            })?;
            return Ok(Self { key, named });
        }
        let source = Uuid::try_parse(row_key).map(SourceId).map_err(|error| {
            wrong(format!(
                "dataspace {} has no key, so a row is named by its source's UUID: {error}",
                dataspace.name
            ))
        })?;
        if named.is_some_and(|named| named != source) {
            return Err(wrong(
                "source_id differs from the row key, which is the source".to_owned(),
            ));
        }
        Ok(Self { key: NaturalKey::DOCUMENT, named: Some(source) })
    }

    /// The source to write under; `None` where the rows that exist have to tell.
    fn source(&self, dataspace: &Dataspace) -> Result<Option<SourceId>, ApiError> {
        if dataspace.scope == Scope::All {
            let own = dataspace.own_source();
            if self.named.is_some_and(|named| named != own) {
                return Err(ApiError::bad_request(
                    "invalid_source_id",
                    format!(
                        "rows of {} go to all devices: their only source is {own}",
                        dataspace.name
                    ),
                ));
            }
        }
        Ok(dataspace.source_for(self.named))
    }
}

/// Refuses writes that no row of the dataspace takes here.
fn check_writable(dataspace: &Dataspace) -> Result<(), ApiError> {
    match (dataspace.modality, dataspace.authority) {
        (Modality::State, Authority::Cloud) => Ok(()),
        (Modality::State, Authority::Device) => {
            let error = WriteError::DeviceAuthoritative { dataspace: dataspace.name.clone() };
            Err(ApiError::of_write(error, dataspace))
        }
        (Modality::Mutable, Authority::Cloud | Authority::Device) => Err(ApiError::method(
            format!(
                "{name} is a mutable dataspace, where a read after a write may show the row \
                 before it; its rows are read here, and come in bulk through …/{name}/ingest or \
                 from devices",
                name = dataspace.name
            ),
            Some("GET, HEAD"),
        )),
    }
}

async fn lookup(edge: &Edge, dataspace: &Dataspace, target: &Target) -> Result<Lookup, ApiError> {
    Ok(match dataspace.modality {
        Modality::State => edge.hub.state().get(dataspace, &target.key, target.named).await?,
        Modality::Mutable => edge.hub.mutable().get(dataspace, &target.key, target.named).await?,
    })
}

/// The source to write under: the one that the dataspace or the caller says, else that of the only
/// live row; `None` where there is no row either.
async fn source_to_write(
    edge: &Edge,
    dataspace: &Dataspace,
    target: &Target,
) -> Result<Option<SourceId>, ApiError> {
    if let Some(source) = target.source(dataspace)? {
        return Ok(Some(source));
    }
    match lookup(edge, dataspace, target).await? {
        Lookup::None => Ok(None),
        Lookup::One(row) => Ok(Some(row.source_id)),
        Lookup::Ambiguous(sources) => Err(ApiError::ambiguous(sources)),
    }
}

fn row_not_found() -> ApiError {
    ApiError::not_found("row_not_found", "there is no such row")
}

fn source_needed(dataspace: &Dataspace) -> ApiError {
    ApiError::bad_request(
        "source_id_needed",
        format!(
            "each row of {} belongs to one device: name it with ?source_id=UUID",
            dataspace.name
        ),
    )
}

fn answer(status: StatusCode, dataspace: &Dataspace, row: &StoredRow) -> Response {
    let etag = precondition::etag(row.version);
    (status, [(header::ETAG, etag)], Json(RowJson { dataspace, row })).into_response()
}

/// Where a page ended, as a word that callers only hand back: source, then key.
fn write_token(key: &NaturalKey, source: SourceId) -> String {
    BASE64_URL.encode([source.0.as_bytes(), key.as_str().as_bytes()].concat())
}

fn read_token(token: &str) -> Result<(NaturalKey, SourceId), ApiError> {
    let read = || {
        let bytes = BASE64_URL.decode(token).ok()?;
        let (source, key) = bytes.split_at_checked(size_of::<Uuid>())?;
        let key = NaturalKey::from_canonical(std::str::from_utf8(key).ok()?).ok()?;
        Some((key, SourceId(Uuid::from_slice(source).ok()?)))
    };
    read().ok_or_else(|| {
        ApiError::bad_request("invalid_parameter", "after must be the `next` of a page before")
    })
}
