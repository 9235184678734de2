//! Read-only SQL over the read views of a project's dataspaces, each by its name.
//!
//! A view shows the live rows: every declared column under its own name, then the meta columns
//! `_natural_key`, `_source_id`, `_version`, `_event_ts`, `_updated_at` (also without the `_`) and
//! `_overflow`, each under those of its names that no declared column has. The engine itself
//! refuses writes and everything that is not a view; time, rows and bytes are bounded.

use std::time::Duration;

use async_trait::async_trait;
use sync_proto::Value;

use crate::catalog::ProjectId;
use crate::error::StoreError;

/// Bounds of one query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueryLimits {
    /// Rows of the answer.
    pub rows_max: usize,
    /// Bytes of all values of the answer.
    pub bytes_max: usize,
    /// How long it may run.
    pub time_max: Duration,
}

impl Default for QueryLimits {
    /// What one caller may take from a hub that others use too.
    fn default() -> Self {
        Self { rows_max: 10_000, bytes_max: 16 << 20, time_max: Duration::from_secs(5) }
    }
}

/// The answer to a query.
#[derive(Clone, PartialEq, Debug)]
pub struct QueryRows {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<Value>>,
    /// Whether there were more rows than the limit.
    pub truncated: bool,
}

/// Why a query was not answered.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The SQL is wrong; the message is for its author.
    #[error("{0}")]
    Invalid(String),
    /// The SQL asks for something that a query may not do.
    #[error(
        "a query may not use {what}: it is one SELECT over dataspaces, named by their names; \
         rows are written through the rows of a dataspace"
    )]
    Forbidden {
        /// What was asked for.
        what: String,
    },
    /// It ran longer than it may.
    #[error("the query ran longer than {0:?}: narrow it down")]
    TimedOut(Duration),
    /// Its answer is larger than it may be.
    #[error("the answer is larger than {0} bytes: select fewer columns or rows")]
    TooLarge(usize),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An engine that answers queries.
#[async_trait]
pub trait QueryEngine: Send + Sync {
    /// Runs one SELECT.
    ///
    /// # Errors
    /// [`QueryError`] when the SQL is not a permitted query, when a limit is hit, or when the
    /// store fails.
    async fn query(
        &self,
        project: &ProjectId,
        sql: &str,
        limits: QueryLimits,
    ) -> Result<QueryRows, QueryError>;
}
