//! Queries on the embedded stores: each on a fresh connection that the engine keeps read-only.
//!
//! Three fences stand behind each other: the files are opened read-only, SQLite asks [`guard`]
//! about every access, and what is reachable are [`views`]. Time, rows, bytes and the size of a
//! compiled statement are bounded. It reads no row itself.

mod guard;
mod views;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, ErrorCode, OpenFlags, Statement};
use sync_proto::limits::BATCH_RAW_BYTES_MAX;
use tokio::sync::Semaphore;
use uuid::Uuid;

use self::guard::{Guard, Refusals};
use self::views::{MUTABLE_SCHEMA, Views};
use super::catalog;
use super::columns::value_of;
use super::database::Database;
use crate::catalog::{Dataspace, ProjectId};
use crate::error::StoreError;
use crate::query::{QueryEngine, QueryError, QueryLimits, QueryRows};

/// What runs when a store fails under a query.
const WHAT: &str = "running a query";

/// Queries that run at a time; each may use a core and temporary disk for its whole time limit.
const RUNNING_MAX: usize = 4;

/// How long a query waits for a writer that recovers the file; readers wait for nothing else.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

/// Steps of SQLite's machine between two looks at the time: well below a millisecond.
const STEPS_PER_LOOK: i32 = 10_000;

/// Bounds of the SQL itself. They keep one statement from taking memory before it runs.
const ENGINE_LIMITS: &[(Limit, i32)] = &[
    (Limit::SQLITE_LIMIT_SQL_LENGTH, 100_000),
    (Limit::SQLITE_LIMIT_EXPR_DEPTH, 200),
    (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 100),
    (Limit::SQLITE_LIMIT_VDBE_OP, 250_000),
    (Limit::SQLITE_LIMIT_FUNCTION_ARG, 100),
    (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1_000),
    (Limit::SQLITE_LIMIT_ATTACHED, 0),
    (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
];

/// Runs queries over the files of one folder.
pub(crate) struct QueryStore {
    state: Arc<Database>,
    state_path: PathBuf,
    mutable_path: PathBuf,
    running: Arc<Semaphore>,
}

impl QueryStore {
    /// Queries over these files; `state` names the dataspaces.
    pub(super) fn new(state: Arc<Database>, state_path: PathBuf, mutable_path: PathBuf) -> Self {
        let running = Arc::new(Semaphore::new(RUNNING_MAX));
        Self { state, state_path, mutable_path, running }
    }
}

#[async_trait]
impl QueryEngine for QueryStore {
    async fn query(
        &self,
        project: &ProjectId,
        sql: &str,
        limits: QueryLimits,
    ) -> Result<QueryRows, QueryError> {
        let place = Arc::clone(&self.running).acquire_owned();
        let place = tokio::time::timeout(limits.time_max, place)
            .await
            .map_err(|source| StoreError::Busy { what: WHAT, source: source.into() })?
            .map_err(|_closed| StoreError::Closed)?;
        let project = project.clone();
        let dataspaces = self.state.read(WHAT, move |tx| catalog::dataspaces(tx, &project)).await?;
        let (state, mutable) = (self.state_path.clone(), self.mutable_path.clone());
        let sql = sql.to_owned();
        let ran = tokio::task::spawn_blocking(move || {
            let answer = run(&state, &mutable, &dataspaces, &sql, limits);
            drop(place);
            answer
        });
        ran.await.map_err(|panic| StoreError::Failed { what: WHAT, source: panic.into() })?
    }
}

fn run(
    state: &Path,
    mutable: &Path,
    dataspaces: &[Dataspace],
    sql: &str,
    limits: QueryLimits,
) -> Result<QueryRows, QueryError> {
    if sql.contains('\0') {
        return Err(QueryError::Invalid("the SQL holds a NUL character".to_owned()));
    }
    let refusals = Refusals::default();
    let db = open(state, mutable, dataspaces, sql, &refusals)
        .map_err(|source| StoreError::Failed { what: WHAT, source: source.into() })?;
    let deadline = Instant::now() + limits.time_max;
    db.progress_handler(STEPS_PER_LOOK, Some(move || Instant::now() >= deadline))
        .map_err(|source| StoreError::Failed { what: WHAT, source: source.into() })?;
    let mut statement = db.prepare(sql).map_err(|error| explain(error, &refusals, limits))?;
    check(&statement)?;
    collect(&mut statement, limits, |error| explain(error, &refusals, limits))
}

/// Opens both files read-only and makes the views; after this nothing else can be reached.
fn open(
    state: &Path,
    mutable: &Path,
    dataspaces: &[Dataspace],
    sql: &str,
    refusals: &Refusals,
) -> rusqlite::Result<Connection> {
    // What is attached inherits the flags, so the mutable store is opened read-only too.
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(state, flags)?;
    db.busy_timeout(BUSY_TIMEOUT)?;
    let attach = format!("ATTACH ?1 AS {MUTABLE_SCHEMA}");
    db.prepare(&attach)?.execute([mutable.as_os_str().as_encoded_bytes()])?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    let private = Uuid::new_v4().simple().to_string();
    let views = Views::create(&db, &private, dataspaces, sql)?;
    for (limit, value) in ENGINE_LIMITS {
        db.set_limit(*limit, *value)?;
    }
    // A stored row is at most a batch, and its columns stand in one record.
    let value_bytes_max = i32::try_from(2 * BATCH_RAW_BYTES_MAX).unwrap_or(i32::MAX);
    db.set_limit(Limit::SQLITE_LIMIT_LENGTH, value_bytes_max)?;
    let guard = Guard::new(views, refusals.clone());
    db.authorizer(Some(move |access: rusqlite::hooks::AuthContext<'_>| guard.answer(&access)))?;
    Ok(db)
}

fn check(statement: &Statement<'_>) -> Result<(), QueryError> {
    let invalid = |message: &str| Err(QueryError::Invalid(message.to_owned()));
    if statement.is_explain() != 0 {
        return Err(QueryError::Forbidden { what: "EXPLAIN".to_owned() });
    }
    if statement.column_count() == 0 || !statement.readonly() {
        return invalid("the SQL holds no SELECT");
    }
    if statement.parameter_count() > 0 {
        return invalid("the SQL has parameters, and a query gives them no values");
    }
    Ok(())
}

fn collect(
    statement: &mut Statement<'_>,
    limits: QueryLimits,
    explain: impl Fn(rusqlite::Error) -> QueryError,
) -> Result<QueryRows, QueryError> {
    let columns: Vec<String> = statement.column_names().into_iter().map(str::to_owned).collect();
    let mut answer = QueryRows { columns, rows: Vec::new(), truncated: false };
    let mut bytes = 0_usize;
    let mut rows = statement.query([]).map_err(&explain)?;
    while let Some(row) = rows.next().map_err(&explain)? {
        if answer.rows.len() >= limits.rows_max {
            answer.truncated = true;
            break;
        }
        let mut values = Vec::with_capacity(answer.columns.len());
        for index in 0..answer.columns.len() {
            let value = value_of(row.get_ref(index).map_err(&explain)?);
            bytes = bytes.saturating_add(value.len_bytes());
            if bytes > limits.bytes_max {
                return Err(QueryError::TooLarge(limits.bytes_max));
            }
            values.push(value);
        }
        answer.rows.push(values);
    }
    Ok(answer)
}

/// Whose fault an error is: the query's, or the store's.
#[expect(clippy::wildcard_enum_match_arm, reason = "whatever is not the store's is the SQL's")]
fn explain(error: rusqlite::Error, refusals: &Refusals, limits: QueryLimits) -> QueryError {
    match error {
        rusqlite::Error::SqlInputError { msg, .. } => QueryError::Invalid(msg),
        rusqlite::Error::MultipleStatement => {
            QueryError::Invalid("the SQL holds more than one statement".to_owned())
        }
        rusqlite::Error::SqliteFailure(code, message) => match code.code {
            ErrorCode::OperationInterrupted => QueryError::TimedOut(limits.time_max),
            ErrorCode::AuthorizationForStatementDenied => QueryError::Forbidden {
                what: refusals.first().unwrap_or_else(|| "that".to_owned()),
            },
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::DiskFull => {
                let source = rusqlite::Error::SqliteFailure(code, message).into();
                StoreError::Busy { what: WHAT, source }.into()
            }
            ErrorCode::SystemIoFailure
            | ErrorCode::DatabaseCorrupt
            | ErrorCode::NotADatabase
            | ErrorCode::CannotOpen
            | ErrorCode::OutOfMemory => {
                let source = rusqlite::Error::SqliteFailure(code, message).into();
                StoreError::Failed { what: WHAT, source }.into()
            }
            _ => QueryError::Invalid(message.unwrap_or_else(|| code.to_string())),
        },
        other => StoreError::Failed { what: WHAT, source: other.into() }.into(),
    }
}
