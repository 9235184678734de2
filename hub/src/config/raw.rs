//! `hub.toml` as it is written: keys, their types, and the lines that they stand on.
//!
//! Unknown keys are errors. What a value means is checked here as far as one value tells; how
//! values fit together is checked in [`super`].

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::{ConfigError, RETENTION_DAYS_MAX, SECONDS_PER_DAY, TlsFiles};
use crate::hub::HubOptions;

/// The file, each value checked.
pub(super) struct File {
    pub(super) hub: Hub,
    pub(super) tls: Option<TlsFiles>,
    pub(super) retention: Duration,
}

/// The section `[hub]`.
pub(super) struct Hub {
    pub(super) listen: Option<SocketAddr>,
    pub(super) data: Option<PathBuf>,
    pub(super) auto_provision: bool,
    pub(super) allow_plaintext: bool,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Text {
    hub: HubText,
    tls: Option<TlsText>,
    retention: RetentionText,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct HubText {
    listen: Option<Spanned<String>>,
    data: Option<PathBuf>,
    auto_provision: Option<bool>,
    allow_plaintext: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TlsText {
    cert_file: PathBuf,
    key_file: PathBuf,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct RetentionText {
    days: Option<Spanned<u64>>,
}

impl Default for File {
    fn default() -> Self {
        let defaults = HubOptions::default();
        Self {
            hub: Hub {
                listen: None,
                data: None,
                auto_provision: defaults.auto_provision,
                allow_plaintext: false,
            },
            tls: None,
            retention: defaults.retention,
        }
    }
}

impl File {
    /// Reads and checks a file.
    pub(super) fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let at = |offset: usize, message: String| ConfigError::Line {
            path: path.to_owned(),
            line: line_of(&text, offset),
            message,
        };
        let written: Text = toml::from_str(&text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            at(offset, error.message().lines().collect::<Vec<_>>().join(", "))
        })?;
        let defaults = Self::default();
        let listen = match &written.hub.listen {
            None => None,
            Some(listen) => Some(listen.get_ref().parse().map_err(|_no_address| {
                let message = format!(
                    "hub.listen = {:?} is no address: write an IP address and a port, as in \
                     \"127.0.0.1:8787\"",
                    listen.get_ref()
                );
                at(listen.span().start, message)
            })?),
        };
        let retention = match &written.retention.days {
            None => defaults.retention,
            Some(days) if (1..=RETENTION_DAYS_MAX).contains(days.get_ref()) => {
                Duration::from_secs(days.get_ref() * SECONDS_PER_DAY)
            }
            Some(days) => {
                let message = format!(
                    "retention.days = {} is not from 1 to {RETENTION_DAYS_MAX}",
                    days.get_ref()
                );
                return Err(at(days.span().start, message));
            }
        };
        // An absolute path stays what it is.
        let folder = path.parent().unwrap_or_else(|| Path::new(""));
        Ok(Self {
            hub: Hub {
                listen,
                data: written.hub.data.map(|data| folder.join(data)),
                auto_provision: written.hub.auto_provision.unwrap_or(defaults.hub.auto_provision),
                allow_plaintext: written.hub.allow_plaintext,
            },
            tls: written.tls.map(|tls| TlsFiles {
                cert_file: folder.join(tls.cert_file),
                key_file: folder.join(tls.key_file),
            }),
            retention,
        })
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}
