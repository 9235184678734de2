//! The agent's configuration: one TOML file, parsed once into checked values.
//!
//! Every error names the file, the line and the key, and what to write. Whether tables fit a
//! database is found out where the database is opened.

mod raw;

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use capture::config::{DatabaseConfig, LocalWrites, TableConfig};
use sync_proto::SourceId;
use sync_proto::limits::NAME_CHARS_MAX;
use sync_proto::schema::{Authority, Modality, Scope};
use toml::Spanned;

/// Where the configuration is by default.
pub const DEFAULT_PATH: &str = "/etc/rowtide/agent.toml";

/// A checked configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The device's UUID.
    pub device: SourceId,
    /// The device's name.
    pub name: String,
    /// Where and how the hub is reached.
    pub hub: HubConfig,
    /// The agent's own files.
    pub state_dir: PathBuf,
    /// The log filter, when the file names one.
    pub log: Option<String>,
    /// Pending rows without a receipt for this long are a stall.
    pub stalled_after: Duration,
    /// The databases, in the file's order.
    pub databases: Vec<DatabaseConfig>,
}

/// Where and how the hub is reached.
#[derive(Debug, Clone)]
pub struct HubConfig {
    /// The hub's address, without a trailing slash.
    pub url: String,
    /// The file that holds the device's token.
    pub token_file: PathBuf,
    /// A CA file instead of the system's roots.
    pub ca_file: Option<PathBuf>,
    /// The hub is on this machine.
    pub is_loopback: bool,
}

impl HubConfig {
    /// Whether the token and the rows travel in clear text over a network.
    #[must_use]
    pub fn is_exposed(&self) -> bool {
        self.url.starts_with("http:") && !self.is_loopback
    }
}

/// What is wrong with a configuration, where, and what to write.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: the configuration cannot be read: {source}; name another with --config FILE", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line of the file is wrong.
    #[error("{path}:{line}: {message}", path = path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong and what to write.
        message: String,
    },
}

impl Config {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// [`ConfigError`] at the first thing that is wrong.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        Self::parse(path, &text)
    }

    /// Checks a file's text; `path` is for messages.
    ///
    /// # Errors
    /// [`ConfigError`] at the first thing that is wrong.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        Checker { path, text }.file()
    }
}

struct Checker<'a> {
    path: &'a Path,
    text: &'a str,
}

type Checked<T> = Result<T, ConfigError>;

impl Checker<'_> {
    fn file(&self) -> Checked<Config> {
        let raw: raw::File = toml::from_str(self.text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let message = with_hint(error.message());
            let message = match self.key_before(span.start) {
                Some(key) => format!("{key}: {message}"),
                None => message,
            };
            self.wrong(span, message)
        })?;
        if raw.database.is_empty() {
            let message = "no [[database]] is named; add one with path = \"…\"";
            return Err(self.wrong(0..0, message));
        }
        Ok(Config {
            device: self.device_id(&raw.device.id)?,
            name: self.name(&raw.device.name, "device.name")?,
            hub: self.hub(&raw.hub)?,
            state_dir: raw.agent.state_dir.unwrap_or_else(|| "/var/lib/rowtide".to_owned()).into(),
            log: raw.agent.log.as_ref().map(|log| self.log_filter(log)).transpose()?,
            stalled_after: Duration::from_secs(raw.agent.stalled_after_s.unwrap_or(60).max(1)),
            databases: self.databases(&raw.database)?,
        })
    }

    fn device_id(&self, id: &Spanned<String>) -> Checked<SourceId> {
        uuid::Uuid::parse_str(id.get_ref()).map(SourceId).map_err(|error| {
            self.wrong(id.span(), format!("device.id {:?} is no UUID: {error}", id.get_ref()))
        })
    }

    fn name(&self, name: &Spanned<String>, key: &str) -> Checked<String> {
        let text = name.get_ref();
        let legal = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if text.is_empty() || text.len() > NAME_CHARS_MAX || !text.chars().all(legal) {
            let message =
                format!("{key} {text:?} must be 1 to {NAME_CHARS_MAX} of A-Z a-z 0-9 . _ -");
            return Err(self.wrong(name.span(), message));
        }
        Ok(text.clone())
    }

    fn log_filter(&self, log: &Spanned<String>) -> Checked<String> {
        match log.get_ref().parse::<tracing_subscriber::filter::LevelFilter>() {
            Ok(_level) => Ok(log.get_ref().clone()),
            Err(_no_level) => Err(self.wrong(
                log.span(),
                format!(
                    "agent.log {:?} is no level: error, warn, info, debug, trace",
                    log.get_ref()
                ),
            )),
        }
    }

    fn hub(&self, hub: &raw::Hub) -> Checked<HubConfig> {
        let url = hub.url.get_ref().trim_end_matches('/');
        let wrong = |message: String| Err(self.wrong(hub.url.span(), message));
        let Some((scheme, rest)) = url.split_once("://") else {
            return wrong(format!("hub.url {url:?} has no scheme; write https://HOST[:PORT]"));
        };
        let parsed = match reqwest::Url::parse(url) {
            Ok(parsed) => parsed,
            Err(error) => return wrong(format!("hub.url {url:?} is no address: {error}")),
        };
        let bare = parsed.username().is_empty() && parsed.password().is_none();
        if !bare || parsed.query().is_some() || parsed.fragment().is_some() {
            // The address is shown in messages; what is beside it may be secret.
            return wrong("hub.url must be scheme, host, port and path only".to_owned());
        }
        let is_loopback = is_loopback(&parsed);
        match scheme {
            "https" => {}
            "http" if hub.allow_plaintext || is_loopback => {}
            "http" => {
                return wrong(format!(
                    "hub.url {url:?} would send the token in clear text; write https://{rest}, or \
                     set allow_plaintext = true in [hub] if the network itself is encrypted"
                ));
            }
            "mqtt" | "mqtts" => {
                return wrong(format!(
                    "hub.url {url:?}: MQTT is not available in this version; write https://…"
                ));
            }
            other => return wrong(format!("hub.url has the scheme {other:?}; write https://…")),
        }
        Ok(HubConfig {
            url: url.to_owned(),
            token_file: hub.token_file.get_ref().into(),
            ca_file: hub.ca_file.as_ref().map(|file| file.get_ref().into()),
            is_loopback,
        })
    }

    fn databases(&self, raw: &[Spanned<raw::Database>]) -> Checked<Vec<DatabaseConfig>> {
        let mut names = BTreeSet::new();
        let mut paths = BTreeSet::new();
        let mut databases = Vec::with_capacity(raw.len());
        for entry in raw {
            let database = self.database(entry.get_ref())?;
            if !names.insert(database.name.clone()) {
                let message = format!(
                    "two databases are named {:?}; give one of them another name = \"…\"",
                    database.name
                );
                return Err(self.wrong(entry.span(), message));
            }
            if !paths.insert(database.path.clone()) {
                let message = format!(
                    "two databases have the path {:?}; put their tables into one [[database]]",
                    database.path
                );
                return Err(self.wrong(entry.get_ref().path.span(), message));
            }
            databases.push(database);
        }
        Ok(databases)
    }

    fn database(&self, raw: &raw::Database) -> Checked<DatabaseConfig> {
        let path = PathBuf::from(raw.path.get_ref());
        let name = match &raw.name {
            Some(name) => self.name(name, "database.name")?,
            None => {
                let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
                let stem = Spanned::new(raw.path.span(), stem.unwrap_or_default());
                self.name(&stem, "the database's name, taken from its path,")?
            }
        };
        let mut overrides = Vec::with_capacity(raw.table.len());
        for table in &raw.table {
            overrides.push(self.table(table.get_ref())?);
        }
        self.refuse_shared_names(&raw.table, &overrides)?;
        let tables = raw.tables.clone().unwrap_or_else(|| vec!["*".to_owned()]);
        Ok(DatabaseConfig { name, path, tables, exclude: raw.exclude.clone(), overrides })
    }

    fn table(&self, raw: &raw::Table) -> Checked<TableConfig> {
        let modality = self.choice(
            raw.modality.as_ref(),
            "modality",
            &[("state", Modality::State), ("mutable", Modality::Mutable)],
        )?;
        let authority = self.choice(
            raw.authority.as_ref(),
            "authority",
            &[("device", Authority::Device), ("cloud", Authority::Cloud)],
        )?;
        let scope = self.choice(
            raw.scope.as_ref(),
            "scope",
            &[("source", Scope::Source), ("all", Scope::All)],
        )?;
        let authority = authority.unwrap_or_default();
        if let (Some(Scope::All), Authority::Device, Some(at)) = (scope, authority, &raw.scope) {
            let message =
                "scope = \"all\" is for authority = \"cloud\": rows of a device are its own";
            return Err(self.wrong(at.span(), message));
        }
        if raw.name.get_ref().is_empty() {
            return Err(self.wrong(raw.name.span(), "table.name is empty; name a table"));
        }
        Ok(TableConfig {
            name: raw.name.get_ref().clone(),
            modality: modality.unwrap_or_default(),
            authority,
            scope,
            dataspace: raw.dataspace.clone(),
            key: raw.key.as_ref().map(|key| self.key(key)).transpose()?,
            local_writes: self.local_writes(raw.local_writes.as_ref(), authority)?,
        })
    }

    fn key(&self, key: &Spanned<Vec<String>>) -> Checked<Vec<String>> {
        let mut columns = BTreeSet::new();
        let mut names = key.get_ref().iter();
        match names.find(|column| !columns.insert(column.to_ascii_lowercase())) {
            Some(column) => {
                let message = format!("key names the column {column:?} twice; name it once");
                Err(self.wrong(key.span(), message))
            }
            None => Ok(key.get_ref().clone()),
        }
    }

    fn local_writes(
        &self,
        choice: Option<&Spanned<String>>,
        authority: Authority,
    ) -> Checked<LocalWrites> {
        let Some(choice) = choice else { return Ok(LocalWrites::default()) };
        let message = match (choice.get_ref().as_str(), authority) {
            ("revert", Authority::Cloud) => return Ok(LocalWrites::Revert),
            ("revert" | "reject" | "propose", Authority::Device) => {
                "local_writes is for authority = \"cloud\": the application owns this table; remove \
                 the line"
                    .to_owned()
            }
            (choice @ ("reject" | "propose"), Authority::Cloud) => format!(
                "local_writes = {choice:?} is not available in this version; write \"revert\""
            ),
            (other, _) => format!("local_writes {other:?} is unknown; write \"revert\""),
        };
        Err(self.wrong(choice.span(), message))
    }

    fn choice<T: Copy>(
        &self,
        value: Option<&Spanned<String>>,
        key: &str,
        choices: &[(&str, T)],
    ) -> Checked<Option<T>> {
        let Some(value) = value else { return Ok(None) };
        if let Some((_, choice)) = choices.iter().find(|(name, _)| name == value.get_ref()) {
            return Ok(Some(*choice));
        }
        let names: Vec<String> = choices.iter().map(|(name, _)| format!("{name:?}")).collect();
        let message =
            format!("{key} {:?} is unknown; write {}", value.get_ref(), names.join(" or "));
        Err(self.wrong(value.span(), message))
    }

    fn refuse_shared_names(
        &self,
        raw: &[Spanned<raw::Table>],
        tables: &[TableConfig],
    ) -> Checked<()> {
        let mut names = BTreeSet::new();
        let mut dataspaces = BTreeSet::new();
        for (entry, table) in raw.iter().zip(tables) {
            if !names.insert(table.name.to_ascii_lowercase()) {
                let message = format!("table {:?} has two sections; keep one", table.name);
                return Err(self.wrong(entry.span(), message));
            }
            let dataspace = table.dataspace.as_ref().unwrap_or(&table.name).to_ascii_lowercase();
            if !dataspaces.insert(dataspace) {
                let message = format!(
                    "table {:?} maps to the dataspace of another table; give it its own dataspace",
                    table.name
                );
                return Err(self.wrong(entry.span(), message));
            }
        }
        Ok(())
    }

    /// The key that a place on the right of its line's `=` belongs to.
    fn key_before(&self, at: usize) -> Option<&str> {
        let before = self.text.get(..at)?;
        let line = before.rsplit('\n').next()?;
        Some(line.split_once('=')?.0.trim())
    }

    fn wrong(&self, span: Range<usize>, message: impl Into<String>) -> ConfigError {
        let before = self.text.get(..span.start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        ConfigError::Wrong { path: self.path.to_owned(), line, message: message.into() }
    }
}

fn is_loopback(url: &reqwest::Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// The parser's own words, with the nearest key where a key is unknown.
fn with_hint(message: &str) -> String {
    let message = message.trim_end().replace('\n', "; ");
    let Some(rest) = message.strip_prefix("unknown field `") else { return message };
    let (key, expected) = rest.split_once('`').unwrap_or((rest, ""));
    let known = expected.split('`').skip(1).step_by(2);
    let near = known
        .map(|name| (distance(key, name), name.len().abs_diff(key.len()), name))
        .min()
        .filter(|(distance, _, name)| *distance <= 1 + name.len() / 3);
    match near {
        Some((_, _, name)) => format!("unknown key `{key}`; did you mean `{name}`?"),
        None => format!("unknown key `{key}`{}", expected.replace("one of", "write one of")),
    }
}

/// Edits from one word to another: insert, drop, replace.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}
