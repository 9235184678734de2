//! What a query's SQL may do: the rule that SQLite asks for every access while it prepares one.
//!
//! Reads of the views are let through, and inside the private half of a view reads of its table.
//! SQLite names the accessor of a read by what stands in FROM, so a caller could borrow a view's
//! name for a WITH clause; the private half has a random name for that reason. Whatever is not
//! listed here is refused, also what a later SQLite adds.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

use super::views::Views;

/// Functions that compute from their arguments alone, plus the clock and random numbers. Those
/// that load code, read files, or tell about the connection are left out.
const FUNCTIONS: &[&str] = &[
    "->",
    "->>",
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "avg",
    "ceil",
    "ceiling",
    "char",
    "coalesce",
    "concat",
    "concat_ws",
    "cos",
    "cosh",
    "count",
    "cume_dist",
    "current_date",
    "current_time",
    "current_timestamp",
    "date",
    "datetime",
    "degrees",
    "dense_rank",
    "exp",
    "first_value",
    "floor",
    "format",
    "glob",
    "group_concat",
    "hex",
    "if",
    "ifnull",
    "iif",
    "instr",
    "json",
    "json_array",
    "json_array_insert",
    "json_array_length",
    "json_error_position",
    "json_extract",
    "json_group_array",
    "json_group_object",
    "json_insert",
    "json_object",
    "json_patch",
    "json_pretty",
    "json_quote",
    "json_remove",
    "json_replace",
    "json_set",
    "json_type",
    "json_valid",
    "jsonb",
    "jsonb_array",
    "jsonb_extract",
    "jsonb_group_array",
    "jsonb_group_object",
    "jsonb_insert",
    "jsonb_object",
    "jsonb_patch",
    "jsonb_remove",
    "jsonb_replace",
    "jsonb_set",
    "julianday",
    "lag",
    "last_value",
    "lead",
    "length",
    "like",
    "likelihood",
    "likely",
    "ln",
    "log",
    "log10",
    "log2",
    "lower",
    "ltrim",
    "max",
    "median",
    "min",
    "mod",
    "nth_value",
    "ntile",
    "nullif",
    "octet_length",
    "percent_rank",
    "percentile",
    "percentile_cont",
    "percentile_disc",
    "pi",
    "pow",
    "power",
    "printf",
    "quote",
    "radians",
    "random",
    "randomblob",
    "rank",
    "replace",
    "round",
    "row_number",
    "rtrim",
    "sign",
    "sin",
    "sinh",
    "soundex",
    "sqlite_version",
    "sqrt",
    "strftime",
    "string_agg",
    "substr",
    "substring",
    "subtype",
    "sum",
    "tan",
    "tanh",
    "time",
    "timediff",
    "total",
    "trim",
    "trunc",
    "typeof",
    "unhex",
    "unicode",
    "unistr",
    "unistr_quote",
    "unixepoch",
    "unlikely",
    "upper",
    "zeroblob",
];

/// Table-valued functions that compute from their arguments alone.
const TABLE_FUNCTIONS: &[&str] = &["json_each", "json_tree"];

/// What was refused, told to the query's author afterwards: SQLite itself only says "not
/// authorized".
#[derive(Clone, Default)]
pub(super) struct Refusals(Arc<Mutex<Option<String>>>);

impl Refusals {
    fn note(&self, what: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
    }

    /// The first thing that was refused.
    pub(super) fn first(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The rule for one connection.
pub(super) struct Guard {
    views: Views,
    functions: BTreeSet<&'static str>,
    refusals: Refusals,
}

impl Guard {
    /// A rule that lets queries read `views`, and notes in `refusals` what else they try.
    pub(super) fn new(views: Views, refusals: Refusals) -> Self {
        Self { views, functions: FUNCTIONS.iter().copied().collect(), refusals }
    }

    /// The answer to one access.
    pub(super) fn answer(&self, access: &AuthContext<'_>) -> Authorization {
        match self.refused(access) {
            None => Authorization::Allow,
            Some(what) => {
                self.refusals.note(what);
                Authorization::Deny
            }
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "everything that is not named is refused")]
    fn refused(&self, access: &AuthContext<'_>) -> Option<String> {
        match access.action {
            AuthAction::Select | AuthAction::Recursive => None,
            AuthAction::Function { function_name } => {
                let name = function_name.to_ascii_lowercase();
                let known = self.functions.contains(name.as_str())
                    || access.accessor.is_some_and(|view| self.views.is_private(view));
                (!known).then(|| format!("the function {name}"))
            }
            AuthAction::Read { table_name, .. } => {
                let inside = access.accessor.is_some_and(|view| self.views.is_private(view));
                let permitted = inside
                    || self.is_view(access.database_name, table_name)
                    || TABLE_FUNCTIONS.contains(&table_name.to_ascii_lowercase().as_str());
                (!permitted).then(|| format!("the table {table_name}"))
            }
            AuthAction::Pragma { .. } => Some("PRAGMA".to_owned()),
            AuthAction::Attach { .. } | AuthAction::Detach { .. } => Some("ATTACH".to_owned()),
            AuthAction::Transaction { .. } | AuthAction::Savepoint { .. } => {
                Some("a transaction of its own".to_owned())
            }
            _ => Some("a statement that writes".to_owned()),
        }
    }

    /// Where a FROM names a table without its database, SQLite looks among the views first.
    fn is_view(&self, database: Option<&str>, table: &str) -> bool {
        database.is_none_or(|name| name.eq_ignore_ascii_case("temp")) && self.views.contains(table)
    }
}
