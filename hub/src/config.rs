//! The hub's configuration, checked: from `hub.toml`, from flags, or the embedded default.
//!
//! The file is read once into a mirror of its text ([`raw`]) and from there into [`HubConfig`];
//! nothing behind this module checks again. Errors name the file, the line and the key. Paths in
//! the file are relative to the file's folder. Whether a port is free or a folder can be written
//! is found out by whoever uses it.

mod raw;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};

use crate::hub::HubOptions;

/// Where the hub listens when nothing is said.
pub const LISTEN_DEFAULT: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8787));

/// The folder of the stores when nothing is said, in the working directory.
pub const DATA_DEFAULT: &str = "rowtide-hub-data";

const SECONDS_PER_DAY: u64 = 24 * 3600;

/// Days that a retention may have: a hundred years, far from any overflow.
const RETENTION_DAYS_MAX: u64 = 36_500;

/// What a hub is started with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HubConfig {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The folder of the embedded stores.
    pub data: PathBuf,
    /// The certificate to serve with; without one, plain http.
    pub tls: Option<TlsFiles>,
    /// What the hub itself may be told.
    pub options: HubOptions,
}

/// PEM files of a certificate chain and its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// The chain, the hub's own certificate first.
    pub cert_file: PathBuf,
    /// The private key.
    pub key_file: PathBuf,
}

/// What the command line says; it wins over the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Overrides {
    /// The address to listen on.
    pub listen: Option<SocketAddr>,
    /// The folder of the embedded stores.
    pub data: Option<PathBuf>,
    /// Whether plain http is wanted beyond loopback.
    pub allow_plaintext: bool,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration {} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line of the file is wrong.
    #[error("{}:{line}: {message}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong, with the key.
        message: String,
    },
    /// Plain http on an address that others can reach.
    #[error(
        "listening on {listen} without TLS would send tokens and rows in the clear: set [tls] \
         cert_file and key_file, listen on a loopback address, or say allow_plaintext = true \
         under [hub] (--allow-plaintext) if something in front of the hub encrypts"
    )]
    Plaintext {
        /// The address.
        listen: SocketAddr,
    },
}

impl HubConfig {
    /// Reads a file (or takes the embedded default) and what the command line says over it.
    ///
    /// # Errors
    /// [`ConfigError`] when the file is wrong, or what it says together with the flags is.
    pub fn load(file: Option<&Path>, flags: Overrides) -> Result<Self, ConfigError> {
        let raw = file.map(raw::File::read).transpose()?.unwrap_or_default();
        let allow_plaintext = flags.allow_plaintext || raw.hub.allow_plaintext;
        let config = Self {
            listen: flags.listen.or(raw.hub.listen).unwrap_or(LISTEN_DEFAULT),
            data: flags.data.or(raw.hub.data).unwrap_or_else(|| PathBuf::from(DATA_DEFAULT)),
            tls: raw.tls,
            options: HubOptions {
                auto_provision: raw.hub.auto_provision,
                retention: raw.retention,
                ..HubOptions::default()
            },
        };
        if config.tls.is_none() && !config.listen.ip().is_loopback() && !allow_plaintext {
            return Err(ConfigError::Plaintext { listen: config.listen });
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use super::{DATA_DEFAULT, HubConfig, LISTEN_DEFAULT, Overrides};

    #[expect(clippy::unwrap_in_result, reason = "a test ends at the first surprise")]
    fn load(text: &str) -> Result<HubConfig, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hub.toml");
        std::fs::write(&path, text).unwrap();
        let name = |error: super::ConfigError| {
            error.to_string().replace(&format!("{}/", dir.path().display()), "")
        };
        let mut config = HubConfig::load(Some(&path), Overrides::default()).map_err(name)?;
        if let Ok(inside) = config.data.strip_prefix(dir.path()) {
            config.data = Path::new("DIR").join(inside);
        }
        Ok(config)
    }

    #[test]
    fn nothing_said_is_the_embedded_default() {
        for config in [HubConfig::load(None, Overrides::default()).unwrap(), load("").unwrap()] {
            assert_eq!(config.listen, LISTEN_DEFAULT);
            assert_eq!(config.data, Path::new(DATA_DEFAULT));
            assert_eq!(config.tls, None);
            assert!(config.options.auto_provision);
            assert_eq!(config.options.retention, Duration::from_secs(30 * 86_400));
        }
    }

    #[test]
    fn a_full_file_is_taken_and_flags_win() {
        let text = "[hub]\nlisten = \"0.0.0.0:443\"\ndata = \"stores\"\nauto_provision = false\n\
                    [tls]\ncert_file = \"hub.pem\"\nkey_file = \"/etc/key.pem\"\n\
                    [retention]\ndays = 7\n";
        let config = load(text).unwrap();
        assert_eq!(config.listen, SocketAddr::from(([0, 0, 0, 0], 443)));
        assert_eq!(config.data, Path::new("DIR/stores"));
        let tls = config.tls.unwrap();
        assert!(tls.cert_file.is_absolute() && tls.cert_file.ends_with("hub.pem"));
        assert_eq!(tls.key_file, Path::new("/etc/key.pem"));
        assert!(!config.options.auto_provision);
        assert_eq!(config.options.retention, Duration::from_secs(7 * 86_400));

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hub.toml");
        std::fs::write(&path, text).unwrap();
        let flags = Overrides {
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            data: Some(PathBuf::from("elsewhere")),
            allow_plaintext: false,
        };
        let config = HubConfig::load(Some(&path), flags).unwrap();
        assert_eq!(config.listen, SocketAddr::from(([127, 0, 0, 1], 0)));
        assert_eq!(config.data, Path::new("elsewhere"));
    }

    #[test]
    fn a_wrong_file_is_told_by_line_and_key() {
        for (text, error) in [
            ("\n[hub]\nlisten = \"127.0.0.1:1\"\nport = 1\n", "hub.toml:4: unknown field `port`"),
            ("[hubb]\n", "hub.toml:1: unknown field `hubb`"),
            ("[hub]\ndata = 5\n", "hub.toml:2: invalid type: integer `5`"),
            ("[hub]\nlisten = \"localhost\"\n", "hub.toml:2: hub.listen = \"localhost\" is no"),
            ("[hub]\ndata = \"a\"\ndata = \"b\"\n", "hub.toml:3: duplicate key"),
            ("[hub\n", "hub.toml:1: "),
            ("\n[tls]\ncert_file = \"a\"\n", "hub.toml:2: missing field `key_file`"),
            ("[retention]\ndays = 0\n", "hub.toml:2: retention.days = 0 is not from 1 to"),
        ] {
            let told = load(text).unwrap_err();
            assert!(told.starts_with(error), "{told:?} does not start with {error:?}");
            assert!(!told.contains('\n'), "{told:?} is more than one line");
        }
    }

    #[test]
    fn plain_http_beyond_loopback_has_to_be_asked_for() {
        let told = load("[hub]\nlisten = \"0.0.0.0:80\"\n").unwrap_err();
        assert!(told.contains("0.0.0.0:80") && told.contains("allow_plaintext"), "{told}");
        load("[hub]\nlisten = \"0.0.0.0:80\"\nallow_plaintext = true\n").unwrap();
        load("[hub]\nlisten = \"[::1]:80\"\n").unwrap();
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = HubConfig::load(Some(Path::new("/no/hub.toml")), Overrides::default());
        assert!(error.unwrap_err().to_string().contains("/no/hub.toml"));
    }
}
