//! The TOML file as it is written, field by field. Nothing but [`super`] uses it.

use serde::Deserialize;
use toml::Spanned;

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) device: Device,
    pub(super) hub: Hub,
    #[serde(default)]
    pub(super) agent: Agent,
    #[serde(default)]
    pub(super) database: Vec<Spanned<Database>>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct Device {
    pub(super) id: Spanned<String>,
    pub(super) name: Spanned<String>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct Hub {
    pub(super) url: Spanned<String>,
    pub(super) token_file: Spanned<String>,
    pub(super) ca_file: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) allow_plaintext: bool,
}

#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Agent {
    pub(super) state_dir: Option<String>,
    pub(super) log: Option<Spanned<String>>,
    pub(super) stalled_after_s: Option<u64>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct Database {
    pub(super) path: Spanned<String>,
    pub(super) name: Option<Spanned<String>>,
    pub(super) tables: Option<Vec<String>>,
    #[serde(default)]
    pub(super) exclude: Vec<String>,
    #[serde(default)]
    pub(super) table: Vec<Spanned<Table>>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    pub(super) name: Spanned<String>,
    pub(super) modality: Option<Spanned<String>>,
    pub(super) authority: Option<Spanned<String>>,
    pub(super) scope: Option<Spanned<String>>,
    pub(super) dataspace: Option<String>,
    pub(super) key: Option<Spanned<Vec<String>>>,
    pub(super) local_writes: Option<Spanned<String>>,
}
