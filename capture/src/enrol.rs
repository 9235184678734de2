//! Makes the file fit the wishes: our objects, the registry and the triggers of every table.
//!
//! Runs at the start and whenever the schema moved. The look at the schema and the changes to it
//! are tied together by the schema's number; each table is armed within one transaction, so there
//! is no instant at which it has some of its triggers. A table whose triggers were missing is
//! seeded anew, because what happened meanwhile was not logged.

use rusqlite::Connection;
use sync_proto::Seq;
use sync_proto::schema::{Authority, TableSpec};

use crate::config::DatabaseConfig;
use crate::connection::{Connections, Durability, WriteTx};
use crate::error::{CaptureError, Result};
use crate::inspect::{self, Skipped, Survey};
use crate::meta;
use crate::registry::{self, Phase, Registry, Table};
use crate::schema::{self, FORMAT, OBJECTS};
use crate::trigger;

/// Looks at a schema that keeps changing under it, before it is left for later.
const LOOKS_MAX: u32 = 5;

/// What enrolling led to.
#[derive(Clone, Debug)]
pub(crate) struct Enrolment {
    /// The tables as they are registered.
    pub(crate) registry: Registry,
    /// The tables that are not enrolled.
    pub(crate) skipped: Vec<Skipped>,
    /// The schema's number that all of this holds for.
    pub(crate) schema_version: i64,
    /// A table went from cloud to device authority: its numbers need a new epoch.
    pub(crate) authority_returned: bool,
}

/// Installs or repairs everything that the configuration asks for.
///
/// # Errors
/// SQLite's, and [`CaptureError::Config`] for objects of another layout.
pub(crate) fn enrol(connections: &mut Connections, config: &DatabaseConfig) -> Result<Enrolment> {
    for _look in 0..LOOKS_MAX {
        let survey = connections.read(|tx| inspect::survey(tx, config))?;
        if let Some(enrolment) = install(connections, config, &survey)? {
            return Ok(enrolment);
        }
    }
    Err(CaptureError::Busy { path: connections.path().to_owned() })
}

/// How far one transaction came.
struct Step {
    registry: Registry,
    schema_version: i64,
    authority_returned: bool,
    done: bool,
}

/// Carries a survey out, in as many short transactions as it takes. `None`: the schema moved.
fn install(
    connections: &mut Connections,
    config: &DatabaseConfig,
    survey: &Survey,
) -> Result<Option<Enrolment>> {
    let mut schema_version = survey.schema_version;
    let mut authority_returned = false;
    loop {
        let step = connections.write(Durability::Full, |tx| {
            if inspect::schema_version(tx)? != schema_version {
                return Ok(None);
            }
            create_objects(tx, config)?;
            step(tx, survey).map(Some)
        })?;
        let Some(step) = step else { return Ok(None) };
        schema_version = step.schema_version;
        authority_returned |= step.authority_returned;
        if step.done {
            return Ok(Some(Enrolment {
                registry: step.registry,
                skipped: survey.skipped.clone(),
                schema_version,
                authority_returned,
            }));
        }
    }
}

fn create_objects(conn: &Connection, config: &DatabaseConfig) -> Result<()> {
    let mut exists =
        conn.prepare_cached("SELECT 1 FROM sqlite_master WHERE name = ?1 COLLATE NOCASE")?;
    if exists.exists(["_rowtide_meta"])? {
        let format = meta::format(conn)?;
        if format.is_some_and(|format| format != FORMAT) {
            return Err(CaptureError::Config {
                database: config.name.clone(),
                table: None,
                reason: format!(
                    "the file carries objects of layout {} and this program writes layout \
                     {FORMAT}; run the version that installed them, or its `uninstall`",
                    format.unwrap_or_default(),
                ),
            });
        }
    }
    for sql in OBJECTS {
        if !exists.exists([schema::object_name(sql)])? {
            conn.execute_batch(sql)?;
        }
    }
    meta::set_format_once(conn, FORMAT)
}

/// Brings tables into line until all are, or the lock was held long enough.
fn step(tx: &WriteTx<'_>, survey: &Survey) -> Result<Step> {
    let mut work = Work {
        registry: Registry::load(tx)?,
        have: our_triggers(tx)?,
        newest: meta::newest_seq(tx)?,
        authority_returned: false,
    };
    let mut done = true;
    for spec in &survey.wanted {
        if tx.spent() {
            done = false;
            break;
        }
        work.bring_in(tx, spec)?;
    }
    if done {
        work.retire_others(tx, survey)?;
    }
    Ok(Step {
        registry: work.registry,
        schema_version: inspect::schema_version(tx)?,
        authority_returned: work.authority_returned,
        done,
    })
}

/// One transaction's view of what is installed.
struct Work {
    registry: Registry,
    have: Vec<Installed>,
    newest: Seq,
    authority_returned: bool,
}

/// What was found of a table's triggers before they were put right.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arms {
    /// All there, word for word.
    Complete,
    /// Some were missing or different.
    Damaged,
    /// None was there.
    Missing,
}

impl Work {
    fn bring_in(&mut self, conn: &Connection, spec: &TableSpec) -> Result<()> {
        let known = self.registry.named(&spec.name).cloned();
        let table = match known {
            Some(table) if same_key(&table, spec) || self.key_renamed(&table, spec) => table,
            other => {
                // Entries of another key cannot be read as this one's: it is another table to us.
                if let Some(table) = other.filter(|table| table.phase != Phase::Gone) {
                    self.retire(conn, table)?;
                }
                let table = Table::new(registry::next_id(conn)?, spec.clone());
                widen(conn, table.key_width())?;
                self.arm(conn, &table)?;
                return self.keep(conn, table);
            }
        };
        let mut changed = table.clone();
        changed.spec = spec.clone();
        let arms = self.arm(conn, &changed)?;
        self.resume(&table, &mut changed, arms);
        if changed == table { Ok(()) } else { self.keep(conn, changed) }
    }

    /// Whether the application renamed key columns in place. SQLite then rewrote our triggers, so
    /// what they logged still is this key; the old names are gone from the table.
    fn key_renamed(&self, table: &Table, spec: &TableSpec) -> bool {
        let in_place = trigger::wanted(table).iter().all(|wanted| {
            let have = self.have.iter().find(|have| have.name.eq_ignore_ascii_case(&wanted.name));
            have.is_some_and(|have| have.table.eq_ignore_ascii_case(&spec.name))
        });
        let is_there =
            |name: &str| spec.columns.iter().any(|column| column.name.eq_ignore_ascii_case(name));
        let (before, after) = (table.key_names(), spec.key());
        in_place
            && before.len() == after.len()
            && before.iter().zip(&after).all(|(a, b)| a.eq_ignore_ascii_case(b) || !is_there(a))
    }

    /// What a known table's changes mean for its life.
    fn resume(&mut self, before: &Table, after: &mut Table, arms: Arms) {
        let was_gone = before.phase == Phase::Gone;
        let rerouted = before.spec.modality != after.spec.modality
            || before.spec.dataspace != after.spec.dataspace
            || before.spec.scope != after.spec.scope;
        if before.spec.authority != after.spec.authority {
            self.authority_returned |= after.spec.authority == Authority::Device;
            after.hub = None;
        } else if after.is_cloud() {
            // What is there may not be what was applied: attaching verifies it.
            if was_gone || arms != Arms::Complete {
                after.phase = Phase::New;
                after.seed_after = None;
            }
            return;
        } else if !was_gone
            && !rerouted
            && before.spec.columns == after.spec.columns
            && arms == Arms::Complete
        {
            return;
        }
        after.phase = Phase::first(&after.spec);
        after.seed_after = None;
        after.fence = self.newest;
        after.releasing = true;
        if was_gone || arms == Arms::Missing {
            after.rebuilt = self.newest;
        }
    }

    /// Puts a table's triggers right, and says what was found.
    fn arm(&mut self, conn: &Connection, table: &Table) -> Result<Arms> {
        let wanted = trigger::wanted(table);
        let mut found = 0;
        let mut right = 0;
        for trigger in &wanted {
            let have = self.have.iter().find(|have| have.name.eq_ignore_ascii_case(&trigger.name));
            if let Some(have) = have {
                found += 1;
                if have.sql == trigger.sql {
                    right += 1;
                    continue;
                }
                drop_trigger(conn, &have.name)?;
            }
            conn.execute_batch(&trigger.sql)?;
        }
        Ok(match (found, right) {
            (_, right) if right == wanted.len() => Arms::Complete,
            (0, _) => Arms::Missing,
            _ => Arms::Damaged,
        })
    }

    /// Retires every table that is not wanted, and drops the triggers that belong to none.
    fn retire_others(&mut self, conn: &Connection, survey: &Survey) -> Result<()> {
        let unwanted: Vec<Table> = self
            .registry
            .tables()
            .iter()
            .filter(|table| table.phase != Phase::Gone)
            .filter(|table| {
                !survey.wanted.iter().any(|spec| spec.name.eq_ignore_ascii_case(table.name()))
            })
            .cloned()
            .collect();
        for table in unwanted {
            self.retire(conn, table)?;
        }
        let wanted: Vec<String> = self
            .registry
            .tables()
            .iter()
            .filter(|table| table.phase != Phase::Gone)
            .flat_map(trigger::wanted)
            .map(|trigger| trigger.name)
            .collect();
        for stray in our_triggers(conn)? {
            if !wanted.iter().any(|name| name.eq_ignore_ascii_case(&stray.name)) {
                drop_trigger(conn, &stray.name)?;
            }
        }
        Ok(())
    }

    fn retire(&mut self, conn: &Connection, mut table: Table) -> Result<()> {
        for trigger in trigger::wanted(&table) {
            if self.have.iter().any(|have| have.name.eq_ignore_ascii_case(&trigger.name)) {
                drop_trigger(conn, &trigger.name)?;
            }
        }
        table.phase = Phase::Gone;
        self.keep(conn, table)
    }

    fn keep(&mut self, conn: &Connection, table: Table) -> Result<()> {
        registry::save(conn, &table)?;
        self.registry.put(table);
        Ok(())
    }
}

fn same_key(table: &Table, spec: &TableSpec) -> bool {
    let (before, after) = (table.key_names(), spec.key());
    before.len() == after.len() && before.iter().zip(&after).all(|(a, b)| a.eq_ignore_ascii_case(b))
}

/// Gives the log as many key columns as a table needs.
fn widen(conn: &Connection, width: usize) -> Result<()> {
    let have: i64 = conn.query_row(
        "SELECT count(*) FROM pragma_table_info('_rowtide_log') WHERE name GLOB 'k[0-9]*'",
        [],
        |row| row.get(0),
    )?;
    let have = usize::try_from(have).unwrap_or(0);
    for ordinal in have + 1..=width {
        conn.execute_batch(&schema::widen_log(ordinal))?;
    }
    Ok(())
}

/// A trigger of ours as the file has it.
struct Installed {
    name: String,
    /// The table that it is on.
    table: String,
    sql: String,
}

fn our_triggers(conn: &Connection) -> Result<Vec<Installed>> {
    let mut statement =
        conn.prepare("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'")?;
    let mut rows = statement.query([])?;
    let mut triggers = Vec::new();
    while let Some(row) = rows.next()? {
        let trigger = Installed { name: row.get(0)?, table: row.get(1)?, sql: row.get(2)? };
        if schema::is_ours(&trigger.name) {
            triggers.push(trigger);
        }
    }
    Ok(triggers)
}

fn drop_trigger(conn: &Connection, name: &str) -> Result<()> {
    conn.execute_batch(&format!("DROP TRIGGER {}", schema::quote(name)))?;
    Ok(())
}
