//! Serving a hub: from the configuration to the last answer.
//!
//! Everything that can be wrong is found before the hub says that it is ready: the certificate,
//! the port, the stores. At the end long polls are answered at once, other requests are finished
//! within a grace time. Signals are the caller's; so is where errors are shown.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum_server::Handle;
use axum_server::tls_rustls::RustlsConfig;
use hyper_util::rt::TokioTimer;
use tokio::sync::watch;

use crate::api;
use crate::config::HubConfig;
use crate::error::StoreError;
use crate::hub::Hub;
use crate::tls::{self, TlsError};

/// How long requests may take to finish once the hub is told to end.
const GRACE: Duration = Duration::from_secs(10);

/// How long a client may take for the head of a request; also ends connections that idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// Why a hub does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another process has the port.
    #[error(
        "{listen} is in use by another process: end that one, or choose another address with \
         --listen or hub.listen"
    )]
    InUse {
        /// The address.
        listen: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {listen}: check that it is an address of this host")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The stores cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The ready file cannot be written.
    #[error("the ready file {} cannot be written", path.display())]
    ReadyFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The server ended by itself.
    #[error("the server failed")]
    Failed(#[source] io::Error),
}

/// Serves until `end` is ready, then finishes what is under way.
///
/// # Errors
/// [`ServeError`] when the hub cannot start, or its server fails.
pub async fn serve(
    config: HubConfig,
    ready_file: Option<&Path>,
    end: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    let tls = config.tls.as_ref().map(tls::server_config).transpose()?;
    let listener = listen(config.listen)?;
    let address = listener
        .local_addr()
        .map_err(|source| ServeError::Listen { listen: config.listen, source })?;
    let hub = Hub::open_embedded(&config.data, config.options)?;

    let (closing, closed) = watch::channel(false);
    let app = api::router(hub.clone(), closed).into_make_service();
    let handle = Handle::new();
    let reaper = tokio::spawn(async move { hub.run_reaper().await });
    let closer = tokio::spawn(close_at(end, closing, handle.clone()));

    let scheme = if tls.is_some() { "https" } else { "http" };
    tracing::info!(data = %config.data.display(), "listening on {scheme}://{address}");
    if let Some(path) = ready_file {
        write_ready_file(path, address)
            .map_err(|source| ServeError::ReadyFile { path: path.to_owned(), source })?;
    }
    let mut server = axum_server::from_tcp(listener).map_err(ServeError::Failed)?.handle(handle);
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let server = server.http1_only();
    let served = match tls {
        None => server.serve(app).await,
        Some(tls) => {
            let acceptor =
                axum_server::tls_rustls::RustlsAcceptor::new(RustlsConfig::from_config(tls));
            server.acceptor(acceptor).serve(app).await
        }
    };
    closer.abort();
    reaper.abort();
    served.map_err(ServeError::Failed)?;
    tracing::info!("ended");
    Ok(())
}

fn listen(listen: SocketAddr) -> Result<TcpListener, ServeError> {
    let bind = || {
        let listener = TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    bind().map_err(|source: io::Error| {
        if source.kind() == io::ErrorKind::AddrInUse {
            ServeError::InUse { listen }
        } else {
            ServeError::Listen { listen, source }
        }
    })
}

/// Long polls first, so that no request is left that waits for something.
async fn close_at(
    end: impl Future<Output = ()> + Send,
    closing: watch::Sender<bool>,
    handle: Handle<SocketAddr>,
) {
    end.await;
    tracing::info!("ending");
    closing.send_replace(true);
    handle.graceful_shutdown(Some(GRACE));
    // Whoever reads `closing` sees it until the process is gone.
    closing.closed().await;
}

/// Writes the address so that a reader finds the whole line or no file.
fn write_ready_file(path: &Path, address: SocketAddr) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = folder.unwrap_or_else(|| Path::new(".")).join(name);
    let mut file = std::fs::File::create(&new)?;
    writeln!(file, "{address}")?;
    drop(file);
    std::fs::rename(&new, path)
}
