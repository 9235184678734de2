//! What the hub knows besides rows: projects, tokens and dataspaces.
//!
//! The trait is what an engine has to offer; types here are checked values. Physical tables belong
//! to the planes, devices and their progress to [`crate::lineage`]. A token's plain text exists
//! only in the answer to its creation.

use std::collections::BTreeSet;

use async_trait::async_trait;
use sync_proto::SourceId;
use sync_proto::key::KeyType;
use sync_proto::limits::NAME_CHARS_MAX;
use sync_proto::schema::{Affinity, Authority, Modality, Scope};
use uuid::Uuid;

use crate::clock::UnixMillis;
use crate::error::StoreError;
use crate::rules;

/// Declared columns of one dataspace: half of what SQLite holds, so that its views fit too.
pub const FIELDS_MAX: usize = 1_000;

/// Names one project.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProjectId(pub String);

impl ProjectId {
    /// The project that every store starts with.
    #[must_use]
    pub fn default_project() -> Self {
        Self("default".to_owned())
    }
}

/// Who a token speaks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CredentialKind {
    /// One device, by its name; it acts only as itself.
    Device {
        /// The device's name.
        name: String,
    },
    /// A caller of the API.
    Api {
        /// The token's label: the author in the history of rows.
        name: String,
    },
}

/// How well an identity is proven; recorded with every write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdentityStrength {
    /// A bearer token.
    Token,
    /// A client certificate.
    Certificate,
}

impl IdentityStrength {
    /// The name in the history.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Certificate => "certificate",
        }
    }
}

/// What a presented token stands for. Tenant, device and author come from here, never from a body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credential {
    /// The project that it is valid in.
    pub project: ProjectId,
    /// Device or API.
    pub kind: CredentialKind,
    /// How well it is proven.
    pub strength: IdentityStrength,
    /// What it may do; `["*"]` is everything in its project.
    pub roles: Vec<String>,
}

/// A token to create.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewToken {
    /// The project.
    pub project: ProjectId,
    /// Device or API.
    pub kind: CredentialKind,
    /// What it may do.
    pub roles: Vec<String>,
}

/// A token that was given out. Its plain text is kept nowhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenInfo {
    /// Its number: names it for people, proves nothing.
    pub id: i64,
    /// Device or API.
    pub kind: CredentialKind,
    /// When it was given out.
    pub created_at: UnixMillis,
}

/// Whether undeclared columns are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Undeclared columns are kept in readable overflow.
    Hybrid,
    /// Undeclared columns are refused.
    Typed,
}

impl Layout {
    /// The name in the API and in stores.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hybrid => "hybrid",
            Self::Typed => "typed",
        }
    }

    /// The layout of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Hybrid, Self::Typed].into_iter().find(|layout| layout.name() == name)
    }
}

/// A field's declared type. Embedded SQLite stores every value exactly whatever the type says; it
/// tells how key texts in URLs are read, and other engines which column to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FieldType {
    /// Anything.
    Any,
    /// 64-bit integers.
    Integer,
    /// Doubles.
    Real,
    /// Numbers of either class.
    Numeric,
    /// Text.
    String,
    /// Blobs.
    Blob,
    /// true and false, stored as 1 and 0.
    Boolean,
}

impl FieldType {
    const ALL: [Self; 7] = [
        Self::Any,
        Self::Integer,
        Self::Real,
        Self::Numeric,
        Self::String,
        Self::Blob,
        Self::Boolean,
    ];

    /// The name in the API and in stores.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Integer => "integer",
            Self::Real => "real",
            Self::Numeric => "numeric",
            Self::String => "string",
            Self::Blob => "blob",
            Self::Boolean => "boolean",
        }
    }

    /// The type of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|field_type| field_type.name() == name)
    }

    /// The type of a device's column.
    #[must_use]
    pub const fn of_affinity(affinity: Affinity) -> Self {
        match affinity {
            Affinity::Integer => Self::Integer,
            Affinity::Text => Self::String,
            Affinity::Real => Self::Real,
            Affinity::Blob => Self::Any,
            Affinity::Numeric => Self::Numeric,
        }
    }

    /// How a bare key part of this type is read from a URL.
    #[must_use]
    pub const fn key_type(self) -> KeyType {
        match self {
            Self::Any | Self::Numeric => KeyType::Any,
            Self::Integer | Self::Boolean => KeyType::Integer,
            Self::Real => KeyType::Real,
            Self::String => KeyType::Text,
            Self::Blob => KeyType::Blob,
        }
    }
}

/// One declared column of a dataspace. Names differ in more than ASCII case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// The name, as first declared.
    pub name: String,
    /// The type.
    pub field_type: FieldType,
}

/// A keyed table of current rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dataspace {
    /// The store's own number: names physical tables, never shown.
    pub number: i64,
    /// The public id.
    pub id: Uuid,
    /// The project.
    pub project: ProjectId,
    /// The name, unique in the project without regard to ASCII case.
    pub name: String,
    /// State or mutable: which plane holds the rows.
    pub modality: Modality,
    /// Who writes.
    pub authority: Authority,
    /// Which devices rows go to.
    pub scope: Scope,
    /// Whether undeclared columns are kept.
    pub layout: Layout,
    /// Names of the key fields, in key order; empty: one row per source.
    pub natural_key: Vec<String>,
    /// The declared columns, the key's among them, in order of declaration.
    pub fields: Vec<Field>,
    /// Creation time.
    pub created_at: UnixMillis,
}

impl Dataspace {
    /// The source of rows that belong to no single device (scope `all`).
    #[must_use]
    pub const fn own_source(&self) -> SourceId {
        SourceId(self.id)
    }

    /// The source under which a row is stored that `device` sends (`None`: the API writes it and
    /// names no source). `None` when the scope asks for a source and none is named.
    #[must_use]
    pub const fn source_for(&self, device: Option<SourceId>) -> Option<SourceId> {
        match (self.scope, device) {
            (Scope::All, _) => Some(self.own_source()),
            (Scope::Source, device) => device,
        }
    }

    /// How the parts of a bare key in a URL are read.
    #[must_use]
    pub fn key_types(&self) -> Vec<KeyType> {
        let type_of = |name: &String| {
            self.field(name).map_or(KeyType::Any, |field| field.field_type.key_type())
        };
        self.natural_key.iter().map(type_of).collect()
    }

    /// The declared field of that name, without regard to ASCII case, as SQLite compares names.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name.eq_ignore_ascii_case(name))
    }
}

/// A dataspace to create.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewDataspace {
    /// The project.
    pub project: ProjectId,
    /// The name.
    pub name: String,
    /// State or mutable.
    pub modality: Modality,
    /// Who writes.
    pub authority: Authority,
    /// Which devices rows go to.
    pub scope: Scope,
    /// Whether undeclared columns are kept.
    pub layout: Layout,
    /// Names of the key fields, in key order. Those missing in `fields` are added to them.
    pub natural_key: Vec<String>,
    /// The declared columns.
    pub fields: Vec<Field>,
}

impl NewDataspace {
    /// Checks the whole and adds key fields that are not declared.
    ///
    /// # Errors
    /// [`CreateError::Invalid`], saying what to change.
    pub fn checked(mut self) -> Result<Self, CreateError> {
        check_dataspace_name(&self.name)?;
        if self.modality == Modality::Mutable && self.natural_key.is_empty() {
            return invalid(format!(
                "dataspace {:?} is mutable and has no key: declare natural_key, or make it a \
                 state dataspace",
                self.name
            ));
        }
        if self.authority == Authority::Device && self.scope == Scope::All {
            return invalid(format!(
                "dataspace {:?} is device-authoritative, so its rows belong to single devices: \
                 use scope \"source\", or authority \"cloud\"",
                self.name
            ));
        }
        for (index, name) in self.natural_key.iter().enumerate() {
            if self.natural_key[..index].iter().any(|other| other.eq_ignore_ascii_case(name)) {
                return invalid(format!("key field {name:?} is named twice"));
            }
            if !self.fields.iter().any(|field| field.name.eq_ignore_ascii_case(name)) {
                self.fields.push(Field { name: name.clone(), field_type: FieldType::Any });
            }
        }
        check_fields(&self.fields)?;
        Ok(self)
    }
}

/// Whether fields can be declared together.
///
/// # Errors
/// [`CreateError::Invalid`] for names that cannot be used or occur twice, and for too many.
pub fn check_fields(fields: &[Field]) -> Result<(), CreateError> {
    if fields.len() > FIELDS_MAX {
        return invalid(format!("{} fields are more than {FIELDS_MAX}", fields.len()));
    }
    let mut names = BTreeSet::new();
    for field in fields {
        rules::check_column_name(&field.name).map_err(CreateError::Invalid)?;
        if !names.insert(field.name.to_ascii_lowercase()) {
            return invalid(format!("field {:?} is declared twice", field.name));
        }
    }
    Ok(())
}

/// Whether a name can be a device's or a database's: `[A-Za-z0-9._-]{1,64}`.
#[must_use]
pub fn is_plain_name(name: &str) -> bool {
    (1..=NAME_CHARS_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

fn check_dataspace_name(name: &str) -> Result<(), CreateError> {
    let reserved = name.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("sqlite_"));
    if name.is_empty() || name.len() > 128 || name.chars().any(char::is_control) || reserved {
        return invalid(format!(
            "dataspace name {name:?} cannot be used: 1 to 128 bytes, no control characters, not \
             starting with sqlite_"
        ));
    }
    if Uuid::try_parse(name).is_ok() {
        return invalid(format!("dataspace name {name:?} reads as an id: choose another"));
    }
    Ok(())
}

fn invalid<T>(message: String) -> Result<T, CreateError> {
    Err(CreateError::Invalid(message))
}

/// Why a dataspace or a token was not created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The name is taken in the project.
    #[error("a dataspace named {name:?} exists already")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// A name, key or field cannot be used; the message says why.
    #[error("{0}")]
    Invalid(String),
    /// The project does not exist.
    #[error("project {0:?} does not exist")]
    NoProject(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The catalog as an engine has to offer it. What one process writes, others see at once.
#[async_trait]
pub trait Catalog: Send + Sync {
    /// Whether a project exists.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn has_project(&self, project: &ProjectId) -> Result<bool, StoreError>;

    /// Creates a token and returns its plain text, which is kept nowhere.
    ///
    /// # Errors
    /// [`CreateError`] when the device's name cannot be used or the store fails.
    async fn create_token(&self, token: NewToken) -> Result<String, CreateError>;

    /// What a presented token stands for; `None` for one that was never given out.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn credential(&self, plain: &str) -> Result<Option<Credential>, StoreError>;

    /// The tokens of a project, by number.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn tokens(&self, project: &ProjectId) -> Result<Vec<TokenInfo>, StoreError>;

    /// Makes a token worthless; false when the project has none of that number.
    ///
    /// # Errors
    /// [`StoreError`] when nothing was written.
    async fn revoke_token(&self, project: &ProjectId, id: i64) -> Result<bool, StoreError>;

    /// Creates a dataspace. Its rows can be written at once.
    ///
    /// # Errors
    /// [`CreateError`] when its name is taken or it cannot be made.
    async fn create_dataspace(&self, new: NewDataspace) -> Result<Dataspace, CreateError>;

    /// Every dataspace of a project, by name.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn dataspaces(&self, project: &ProjectId) -> Result<Vec<Dataspace>, StoreError>;

    /// The dataspace with that id (in UUID form) or name.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot answer.
    async fn dataspace(
        &self,
        project: &ProjectId,
        id_or_name: &str,
    ) -> Result<Option<Dataspace>, StoreError>;

    /// Declares those of `fields` that the dataspace does not have yet, and returns it.
    ///
    /// # Errors
    /// [`CreateError`] when a name cannot be used, or the dataspace would get too many columns.
    async fn add_fields(
        &self,
        dataspace: &Dataspace,
        fields: Vec<Field>,
    ) -> Result<Dataspace, CreateError>;
}
