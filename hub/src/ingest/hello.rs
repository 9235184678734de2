//! Hello: who speaks, which epoch, which tables, and what each of them may do.
//!
//! The order matters: identity first, then whether the hub's store was rolled back, then the
//! epoch, then the tables. Nothing here touches rows.

use sync_proto::message::{Hello, Limits, Refusal, TableState, TableStatus, Welcome};
use sync_proto::schema::{Authority, Modality, Scope, TableSpec};
use sync_proto::{Incarnation, SourceId, limits};

use super::{Ingest, Stop, opened, refuse};
use crate::catalog::{
    CreateError, Dataspace, FIELDS_MAX, Field, FieldType, Layout, NewDataspace, ProjectId,
    is_plain_name,
};
use crate::error::StoreError;
use crate::lineage::{Attachment, Binding, DeviceCredential, EpochRequest};

/// Tables of one database: more than any schema that a person keeps up.
const TABLES_MAX: usize = 2_000;

impl Ingest {
    pub(super) async fn hello(
        &self,
        credential: &DeviceCredential,
        hello: Hello,
    ) -> Result<Welcome, Stop> {
        check(&hello)?;
        self.bind(credential, hello.device).await?;
        let incarnation = self.settle_incarnation(&hello).await?;
        let request = EpochRequest {
            device: hello.device,
            database: hello.database.clone(),
            instance: hello.instance,
            epoch: hello.epoch,
            floor: hello.floor,
        };
        let state = self.lineages.open_epoch(request).await?;
        let epoch = opened(state, &hello.database, hello.epoch)?;
        let mut tables = Vec::with_capacity(hello.tables.len());
        for spec in hello.tables {
            tables.push(self.attachment(&credential.project, spec).await?);
        }
        let tables =
            self.lineages.attach(hello.device, &hello.database, tables, hello.cursor).await?;
        let mut statuses = Vec::with_capacity(tables.len());
        for table in tables {
            let adopt = self.adopts(&table, hello.device).await?;
            statuses.push(TableStatus { table: table.spec.name, state: table.state, adopt });
        }
        let life = self.lineages.life().await?;
        Ok(Welcome {
            database: hello.database,
            epoch: hello.epoch,
            incarnation,
            term: life.term,
            base: epoch.base,
            generation: life.generation,
            lanes: epoch.lanes,
            tables: statuses,
            limits: LIMITS,
        })
    }

    async fn bind(&self, credential: &DeviceCredential, device: SourceId) -> Result<(), Stop> {
        let name = &credential.name;
        let message = match self.lineages.bind(credential, device).await? {
            Binding::Bound => return Ok(()),
            Binding::NameTaken { by } => format!(
                "device name {name} belongs to the device with id {by}, not to {device}: use that \
                 id, or a token for another name"
            ),
            Binding::IdTaken { by } => format!(
                "device id {device} belongs to the device named {by}: give {name} an id of its own"
            ),
        };
        Err(refuse(Refusal::Identity, message))
    }

    /// A cursor that this store never gave out, from a device that knows this very incarnation,
    /// proves that the store was put back to an earlier state.
    async fn settle_incarnation(&self, hello: &Hello) -> Result<Incarnation, Stop> {
        let current = self.lineages.life().await?.incarnation;
        if hello.incarnation != Some(current) || self.lineages.knows(hello.cursor).await? {
            return Ok(current);
        }
        let renewed = self.lineages.renew_incarnation(current).await?;
        tracing::warn!(
            device = %hello.device, database = hello.database, cursor = %hello.cursor,
            incarnation = %renewed,
            "a device holds a position that this store never gave out: the store was rolled \
             back; every device compares and sends its rows again"
        );
        Ok(renewed)
    }

    /// Finds, makes or widens the dataspace of an announced table.
    async fn attachment(&self, project: &ProjectId, spec: TableSpec) -> Result<Attachment, Stop> {
        let found = match self.catalog.dataspace(project, &spec.dataspace).await? {
            Some(found) => Ok(found),
            None if self.auto_provision => self.provision(project, &spec).await?,
            None => Err(format!(
                "there is no dataspace {:?} and this hub makes none by itself: create it first",
                spec.dataspace
            )),
        };
        let dataspace = match found {
            Ok(dataspace) => dataspace,
            Err(message) => {
                let state = TableState::Refused { message };
                return Ok(Attachment { spec, dataspace: None, state });
            }
        };
        let state = compare(&dataspace, &spec);
        let dataspace = if state == TableState::Flowing && self.auto_provision {
            self.widen(dataspace, &spec).await?
        } else {
            dataspace
        };
        Ok(Attachment { spec, dataspace: Some(dataspace.into()), state })
    }

    /// Makes the dataspace of a table; the message when it cannot be made.
    async fn provision(
        &self,
        project: &ProjectId,
        spec: &TableSpec,
    ) -> Result<Result<Dataspace, String>, Stop> {
        let new = NewDataspace {
            project: project.clone(),
            name: spec.dataspace.clone(),
            modality: spec.modality,
            authority: spec.authority,
            scope: spec.scope,
            layout: Layout::Hybrid,
            natural_key: spec.key().into_iter().map(str::to_owned).collect(),
            fields: fields_of(spec, FIELDS_MAX),
        };
        match self.catalog.create_dataspace(new).await {
            Ok(dataspace) => {
                tracing::info!(dataspace = dataspace.name, "dataspace made for a device's table");
                Ok(Ok(dataspace))
            }
            // Another device announced the same table a moment earlier.
            Err(CreateError::NameTaken { name }) => {
                let found = self.catalog.dataspace(project, &name).await?;
                Ok(found.ok_or_else(|| format!("dataspace {name:?} is gone again")))
            }
            Err(CreateError::Store(error)) => Err(error.into()),
            Err(error @ (CreateError::Invalid(_) | CreateError::NoProject(_))) => {
                Ok(Err(error.to_string()))
            }
        }
    }

    /// Declares columns that a table has gained. What does not fit stays undeclared, and the
    /// layout says what becomes of it.
    async fn widen(&self, dataspace: Dataspace, spec: &TableSpec) -> Result<Dataspace, StoreError> {
        if dataspace.layout == Layout::Typed {
            return Ok(dataspace);
        }
        let room = FIELDS_MAX.saturating_sub(dataspace.fields.len());
        let mut missing = fields_of(spec, usize::MAX);
        missing.retain(|field| dataspace.field(&field.name).is_none());
        missing.truncate(room);
        if missing.is_empty() {
            return Ok(dataspace);
        }
        match self.catalog.add_fields(&dataspace, missing).await {
            Ok(widened) => Ok(widened),
            Err(CreateError::Store(error)) => Err(error),
            Err(error) => {
                tracing::warn!(
                    dataspace = dataspace.name,
                    %error,
                    "columns of a device's table stay undeclared"
                );
                Ok(dataspace)
            }
        }
    }

    /// Whether the device's rows become the cloud's first ones.
    async fn adopts(&self, table: &Attachment, device: SourceId) -> Result<bool, Stop> {
        let Some(dataspace) = &table.dataspace else {
            return Ok(false);
        };
        let takes_swaps =
            dataspace.authority == Authority::Cloud && dataspace.modality == Modality::State;
        if table.state != TableState::Flowing || !takes_swaps {
            return Ok(false);
        }
        let source = match dataspace.scope {
            Scope::All => None,
            Scope::Source => Some(device),
        };
        Ok(self.state.is_untouched(dataspace, source).await?)
    }
}

/// What this hub takes: the wire's own bounds.
const LIMITS: Limits = Limits {
    frame_bytes_max: bound(limits::FRAME_BYTES_MAX),
    batch_bytes_max: bound(limits::BATCH_RAW_BYTES_MAX),
    batch_rows_max: bound(limits::BATCH_ROWS_MAX),
    window: 4,
};

/// A bound of the wire as its message carries it.
const fn bound(limit: usize) -> u32 {
    assert!(limit <= 1 << 30, "the wire's bounds fit their field");
    #[expect(clippy::cast_possible_truncation, reason = "checked above, at compile time")]
    let bound = limit as u32;
    bound
}

fn check(hello: &Hello) -> Result<(), Stop> {
    let malformed = |message: String| Err(refuse(Refusal::Malformed, message));
    if !is_plain_name(&hello.database) {
        return malformed(format!(
            "database name {:?} cannot be used: 1 to 64 of A-Z a-z 0-9 . _ -",
            hello.database
        ));
    }
    if hello.tables.len() > TABLES_MAX {
        let got = hello.tables.len();
        return malformed(format!("{got} tables are more than the {TABLES_MAX} that fit"));
    }
    for (index, spec) in hello.tables.iter().enumerate() {
        let is_twice = |other: &TableSpec| other.name.eq_ignore_ascii_case(&spec.name);
        if hello.tables[..index].iter().any(is_twice) {
            return malformed(format!("table {:?} is announced twice", spec.name));
        }
        if spec.columns.len() > limits::COLUMNS_MAX {
            return malformed(format!("table {:?} has too many columns", spec.name));
        }
    }
    Ok(())
}

/// Whether a table fits an existing dataspace.
fn compare(dataspace: &Dataspace, spec: &TableSpec) -> TableState {
    if dataspace.authority != spec.authority {
        let hub = match dataspace.authority {
            Authority::Device => "device",
            Authority::Cloud => "cloud",
        };
        return TableState::AuthorityMismatch { hub: hub.to_owned() };
    }
    let name = &dataspace.name;
    let refused = |message: String| TableState::Refused { message };
    if dataspace.modality != spec.modality {
        return refused(format!(
            "dataspace {name:?} is of the other modality: set modality = {:?} for this table, or \
             map it to another dataspace",
            match dataspace.modality {
                Modality::State => "state",
                Modality::Mutable => "mutable",
            }
        ));
    }
    if dataspace.scope != spec.scope {
        return refused(format!(
            "dataspace {name:?} has another scope: set scope = {:?} for this table, or map it to \
             another dataspace",
            match dataspace.scope {
                Scope::Source => "source",
                Scope::All => "all",
            }
        ));
    }
    let key = spec.key();
    let same_key = key.len() == dataspace.natural_key.len()
        && key.iter().zip(&dataspace.natural_key).all(|(a, b)| a.eq_ignore_ascii_case(b));
    if !same_key {
        return refused(format!(
            "dataspace {name:?} has the key {:?}, the table has {key:?}: set key, or map the \
             table to another dataspace",
            dataspace.natural_key
        ));
    }
    TableState::Flowing
}

/// The table's columns as fields, those of the key first, at most so many.
fn fields_of(spec: &TableSpec, max: usize) -> Vec<Field> {
    let (key, rest): (Vec<_>, Vec<_>) =
        spec.columns.iter().partition(|column| column.key_ordinal > 0);
    let all = if spec.columns.len() <= max {
        spec.columns.iter().collect()
    } else {
        [key, rest].concat()
    };
    all.into_iter()
        .take(max)
        .map(|column| Field {
            name: column.name.clone(),
            field_type: FieldType::of_affinity(column.affinity),
        })
        .collect()
}
