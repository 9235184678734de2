//! The text of the triggers that log keys: generated here, compared with what the file has.
//!
//! A trigger appends one row to the log and does nothing else; its body names key columns only, so
//! that it neither reads a row nor stands in the way of a later DROP COLUMN. Plain appends cannot
//! conflict, so no conflict clause of the application's statement can drop them.

use crate::registry::Table;
use crate::schema::quote;

/// One trigger as it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Trigger {
    /// Its name.
    pub(crate) name: String,
    /// Its text, exactly as SQLite keeps it.
    pub(crate) sql: String,
}

/// The triggers of a table.
pub(crate) fn wanted(table: &Table) -> Vec<Trigger> {
    let mut triggers = vec![
        trigger(table, "i", "INSERT", "", "NEW"),
        trigger(table, "u", "UPDATE", "", "NEW"),
        trigger(table, "d", "DELETE", "", "OLD"),
    ];
    // A document table's key cannot change.
    if !table.is_document() {
        triggers.push(trigger(table, "k", "UPDATE", &key_changed(table), "OLD"));
    }
    triggers
}

fn trigger(table: &Table, suffix: &str, event: &str, when: &str, row: &str) -> Trigger {
    let name = format!("_rowtide_{}_{suffix}", table.id.0);
    let key = key(table);
    let columns: String = (1..=key.len()).map(|ordinal| format!(", k{ordinal}")).collect();
    let values: String = key.iter().map(|column| format!(", {row}.{column}")).collect();
    let sql = format!(
        "CREATE TRIGGER {name} AFTER {event} ON {on}{when} BEGIN \
         INSERT INTO _rowtide_log(t{columns}) VALUES({id}{values}); END",
        on = quote(table.name()),
        id = table.id.0,
    );
    Trigger { name, sql }
}

/// True where the key is another one in bytes or storage class, whatever its collation says.
fn key_changed(table: &Table) -> String {
    let terms: Vec<String> = key(table)
        .iter()
        .map(|column| {
            format!(
                "NOT (OLD.{column} COLLATE BINARY IS NEW.{column} \
                 AND typeof(OLD.{column}) IS typeof(NEW.{column}))"
            )
        })
        .collect();
    format!(" WHEN {}", terms.join(" OR "))
}

fn key(table: &Table) -> Vec<String> {
    let columns = &table.spec.columns;
    table.key_indexes().into_iter().map(|index| quote(&columns[index].name)).collect()
}
