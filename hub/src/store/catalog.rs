//! The catalog on `hub.db`: projects, tokens, dataspaces and their fields.
//!
//! A state dataspace's table is made and widened in the transaction that declares it, so whoever
//! sees a dataspace can use it. Tokens are stored as SHA-256: they are random enough that a slow
//! hash would add nothing.

use async_trait::async_trait;
use rusqlite::{Connection, ErrorCode, OptionalExtension as _, Row, Transaction, params};
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use sync_proto::schema::Modality;
use uuid::Uuid;

use super::columns::Sql;
use super::database::DbError;
use super::row_table;
use super::state::StateStore;
use crate::catalog::{
    Catalog, CreateError, Credential, CredentialKind, Dataspace, Field, FieldType,
    IdentityStrength, Layout, NewDataspace, NewToken, ProjectId, TokenInfo, check_fields,
    is_plain_name,
};
use crate::clock::UnixMillis;
use crate::error::StoreError;

/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;

/// Characters of an API token's label.
const LABEL_CHARS_MAX: usize = 64;

const SELECT: &str = "SELECT number, id, project, name, modality, authority, scope, layout, \
    natural_key, created_at FROM dataspaces";

#[async_trait]
impl Catalog for StateStore {
    async fn has_project(&self, project: &ProjectId) -> Result<bool, StoreError> {
        let project = project.clone();
        self.db.read("looking for a project", move |tx| has_project(tx, &project)).await
    }

    async fn create_token(&self, token: NewToken) -> Result<String, CreateError> {
        self.db.write("creating a token", move |tx| create_token(tx, &token)).await?
    }

    async fn credential(&self, plain: &str) -> Result<Option<Credential>, StoreError> {
        let hash = token_hash(plain);
        self.db.read("checking a token", move |tx| credential(tx, &hash)).await
    }

    async fn tokens(&self, project: &ProjectId) -> Result<Vec<TokenInfo>, StoreError> {
        let project = project.clone();
        self.db.read("listing tokens", move |tx| tokens(tx, &project)).await
    }

    async fn revoke_token(&self, project: &ProjectId, id: i64) -> Result<bool, StoreError> {
        let project = project.clone();
        self.db.write("revoking a token", move |tx| revoke_token(tx, &project, id)).await
    }

    async fn create_dataspace(&self, new: NewDataspace) -> Result<Dataspace, CreateError> {
        let new = new.checked()?;
        self.db.write("creating a dataspace", move |tx| create_dataspace(tx, &new)).await?
    }

    async fn dataspaces(&self, project: &ProjectId) -> Result<Vec<Dataspace>, StoreError> {
        let project = project.clone();
        self.db.read("listing dataspaces", move |tx| dataspaces(tx, &project)).await
    }

    async fn dataspace(
        &self,
        project: &ProjectId,
        id_or_name: &str,
    ) -> Result<Option<Dataspace>, StoreError> {
        let (project, wanted) = (project.clone(), id_or_name.to_owned());
        self.db.read("looking for a dataspace", move |tx| find(tx, &project, &wanted)).await
    }

    async fn add_fields(
        &self,
        dataspace: &Dataspace,
        fields: Vec<Field>,
    ) -> Result<Dataspace, CreateError> {
        let number = dataspace.number;
        self.db.write("declaring fields", move |tx| add_fields(tx, number, fields)).await?
    }
}

fn has_project(db: &Connection, project: &ProjectId) -> Result<bool, DbError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM projects WHERE id = ?1)";
    Ok(db.prepare_cached(sql)?.query_row([&project.0], |row| row.get(0))?)
}

fn create_token(
    tx: &Transaction<'_>,
    token: &NewToken,
) -> Result<Result<String, CreateError>, DbError> {
    if !has_project(tx, &token.project)? {
        return Ok(Err(CreateError::NoProject(token.project.0.clone())));
    }
    let (kind, name, prefix) = match &token.kind {
        CredentialKind::Device { name } => ("device", name, "rtd_"),
        CredentialKind::Api { name } => ("api", name, "rta_"),
    };
    let label_fits = !name.is_empty() && name.chars().count() <= LABEL_CHARS_MAX;
    if (kind == "device" && !is_plain_name(name)) || !label_fits {
        return Ok(Err(CreateError::Invalid(format!(
            "{kind} name {name:?} cannot be used: a device's is 1 to 64 of A-Z a-z 0-9 . _ -"
        ))));
    }
    let mut random = [0; TOKEN_BYTES];
    getrandom::fill(&mut random)
        .map_err(|error| DbError::Content(format!("no random numbers: {error}")))?;
    let plain = format!("{prefix}{}", hex::encode(random));
    tx.execute(
        "INSERT INTO tokens (project, sha256, kind, name, roles, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![
            token.project.0,
            token_hash(&plain),
            kind,
            name,
            serde_json::to_string(&token.roles)?,
            Sql(UnixMillis::now()),
        ],
    )?;
    if kind == "device" {
        tx.execute(
            "INSERT INTO devices (project, name) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
            params![token.project.0, name],
        )?;
    }
    Ok(Ok(plain))
}

fn token_hash(plain: &str) -> Vec<u8> {
    Sha256::digest(plain.as_bytes()).to_vec()
}

fn credential(db: &Connection, hash: &[u8]) -> Result<Option<Credential>, DbError> {
    let sql = "SELECT project, kind, name, roles FROM tokens WHERE sha256 = ?1";
    let found: Option<(String, String, String, String)> = db
        .prepare_cached(sql)?
        .query_row([hash], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .optional()?;
    let Some((project, kind, name, roles)) = found else {
        return Ok(None);
    };
    let kind = token_kind(&kind, name)?;
    let (project, roles) = (ProjectId(project), serde_json::from_str(&roles)?);
    Ok(Some(Credential { project, kind, strength: IdentityStrength::Token, roles }))
}

fn token_kind(kind: &str, name: String) -> Result<CredentialKind, DbError> {
    match kind {
        "device" => Ok(CredentialKind::Device { name }),
        "api" => Ok(CredentialKind::Api { name }),
        other => Err(DbError::Content(format!("a token is of kind {other:?}"))),
    }
}

fn tokens(db: &Connection, project: &ProjectId) -> Result<Vec<TokenInfo>, DbError> {
    let sql = "SELECT id, kind, name, created_at FROM tokens WHERE project = ?1 ORDER BY id";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query([&project.0])?;
    let mut tokens = Vec::new();
    while let Some(row) = rows.next()? {
        let kind = token_kind(&row.get::<_, String>(1)?, row.get(2)?)?;
        let Sql(created_at) = row.get(3)?;
        tokens.push(TokenInfo { id: row.get(0)?, kind, created_at });
    }
    Ok(tokens)
}

fn revoke_token(tx: &Transaction<'_>, project: &ProjectId, id: i64) -> Result<bool, DbError> {
    let sql = "DELETE FROM tokens WHERE project = ?1 AND id = ?2";
    Ok(tx.execute(sql, params![project.0, id])? > 0)
}

fn create_dataspace(
    tx: &Transaction<'_>,
    new: &NewDataspace,
) -> Result<Result<Dataspace, CreateError>, DbError> {
    if !has_project(tx, &new.project)? {
        return Ok(Err(CreateError::NoProject(new.project.0.clone())));
    }
    let inserted = tx.execute(
        "INSERT INTO dataspaces (id, project, name, modality, authority, scope, layout, \
         natural_key, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            Sql(Uuid::new_v4()),
            new.project.0,
            new.name,
            word(&new.modality)?,
            word(&new.authority)?,
            word(&new.scope)?,
            new.layout.name(),
            serde_json::to_string(&new.natural_key)?,
            Sql(UnixMillis::now()),
        ],
    );
    match inserted {
        Ok(_) => {}
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
            return Ok(Err(CreateError::NameTaken { name: new.name.clone() }));
        }
        Err(error) => return Err(error.into()),
    }
    let number = tx.last_insert_rowid();
    insert_fields(tx, number, 0, &new.fields)?;
    Ok(Ok(provisioned(tx, number)?))
}

fn insert_fields(
    tx: &Transaction<'_>,
    dataspace: i64,
    after: usize,
    fields: &[Field],
) -> Result<(), DbError> {
    for (index, field) in fields.iter().enumerate() {
        let position = i64::try_from(after + index).unwrap_or(i64::MAX);
        tx.prepare_cached(
            "INSERT INTO fields (dataspace, position, name, type) VALUES (?1, ?2, ?3, ?4)",
        )?
        .execute(params![dataspace, position, field.name, field.field_type.name()])?;
    }
    Ok(())
}

fn add_fields(
    tx: &Transaction<'_>,
    number: i64,
    fields: Vec<Field>,
) -> Result<Result<Dataspace, CreateError>, DbError> {
    let dataspace = by_number(tx, number)?;
    let missing = fields.into_iter().filter(|field| dataspace.field(&field.name).is_none());
    let missing: Vec<Field> = missing.collect();
    let all: Vec<Field> = dataspace.fields.iter().chain(&missing).cloned().collect();
    if let Err(error) = check_fields(&all) {
        return Ok(Err(error));
    }
    insert_fields(tx, number, dataspace.fields.len(), &missing)?;
    Ok(Ok(provisioned(tx, number)?))
}

fn provisioned(tx: &Transaction<'_>, number: i64) -> Result<Dataspace, DbError> {
    let dataspace = by_number(tx, number)?;
    if dataspace.modality == Modality::State {
        row_table::provision(tx, &dataspace)?;
    }
    Ok(dataspace)
}

/// Every dataspace of a project, by name.
pub(super) fn dataspaces(db: &Connection, project: &ProjectId) -> Result<Vec<Dataspace>, DbError> {
    let sql = format!("{SELECT} WHERE project = ?1 ORDER BY name");
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows = statement.query([&project.0])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(dataspace_of(db, row)?);
    }
    Ok(found)
}

fn find(
    db: &Connection,
    project: &ProjectId,
    id_or_name: &str,
) -> Result<Option<Dataspace>, DbError> {
    let id = Uuid::try_parse(id_or_name).ok().map(Sql);
    let sql = format!("{SELECT} WHERE project = ?1 AND (name = ?2 OR id = ?3)");
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows = statement.query(params![project.0, id_or_name, id])?;
    rows.next()?.map(|row| dataspace_of(db, row)).transpose()
}

/// A dataspace that is known to exist.
pub(super) fn by_number(db: &Connection, number: i64) -> Result<Dataspace, DbError> {
    let sql = format!("{SELECT} WHERE number = ?1");
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows = statement.query([number])?;
    match rows.next()? {
        Some(row) => dataspace_of(db, row),
        None => Err(DbError::Content(format!("there is no dataspace number {number}"))),
    }
}

fn dataspace_of(db: &Connection, row: &Row<'_>) -> Result<Dataspace, DbError> {
    let (number, layout): (i64, String) = (row.get(0)?, row.get(7)?);
    let (Sql(id), Sql(created_at)) = (row.get(1)?, row.get(9)?);
    Ok(Dataspace {
        number,
        id,
        project: ProjectId(row.get(2)?),
        name: row.get(3)?,
        modality: of_word(row.get(4)?)?,
        authority: of_word(row.get(5)?)?,
        scope: of_word(row.get(6)?)?,
        layout: Layout::from_name(&layout)
            .ok_or_else(|| DbError::Content(format!("there is no layout {layout:?}")))?,
        natural_key: serde_json::from_str(&row.get::<_, String>(8)?)?,
        fields: fields_of(db, number)?,
        created_at,
    })
}

fn fields_of(db: &Connection, dataspace: i64) -> Result<Vec<Field>, DbError> {
    let sql = "SELECT name, type FROM fields WHERE dataspace = ?1 ORDER BY position";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query([dataspace])?;
    let mut fields = Vec::new();
    while let Some(row) = rows.next()? {
        let type_name: String = row.get(1)?;
        let field_type = FieldType::from_name(&type_name)
            .ok_or_else(|| DbError::Content(format!("there is no field type {type_name:?}")))?;
        fields.push(Field { name: row.get(0)?, field_type });
    }
    Ok(fields)
}

/// The word that stands for a unit variant on the wire and in stores.
pub(super) fn word(variant: &impl serde::Serialize) -> Result<String, DbError> {
    let json = serde_json::to_value(variant)?;
    let word = json.as_str().map(str::to_owned);
    word.ok_or_else(|| DbError::Content(format!("{json} is no word")))
}

/// The variant that a stored word stands for.
pub(super) fn of_word<T: DeserializeOwned>(word: String) -> Result<T, DbError> {
    Ok(serde_json::from_value(serde_json::Value::String(word))?)
}
