//! The hub's certificate: read from PEM files, checked before the hub listens.
//!
//! rustls with ring. Clients are proven by tokens, so no client certificate is asked for.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::TlsFiles;

/// Why the hub cannot serve TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("{} cannot be used as the hub's {what}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Certificate or key.
        what: &'static str,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// There is no certificate in the file.
    #[error("{} holds no certificate: PEM with BEGIN CERTIFICATE is expected", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// Certificate and key do not go together, or are of a kind that is not supported.
    #[error(
        "the certificate {} and the key {} cannot be used together",
        files.cert_file.display(),
        files.key_file.display()
    )]
    Pair {
        /// The files.
        files: TlsFiles,
        /// What is wrong.
        source: rustls::Error,
    },
}

/// Reads the files.
///
/// # Errors
/// [`TlsError`] when the hub could not prove itself with them.
pub fn server_config(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = read_chain(&files.cert_file)?;
    let key = PrivateKeyDer::from_pem_file(&files.key_file)
        .map_err(|source| unusable(&files.key_file, "private key", source))?;
    let pair = |source| TlsError::Pair { files: files.clone(), source };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(pair)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unusable = |source| unusable(path, "certificate", source);
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(path)
        .map_err(unusable)?
        .collect::<Result<_, _>>()
        .map_err(unusable)?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate { path: path.to_owned() });
    }
    Ok(chain)
}

fn unusable(path: &Path, what: &'static str, source: pem::Error) -> TlsError {
    TlsError::File { path: path.to_owned(), what, source }
}
