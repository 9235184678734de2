//! What systemd is told, over the socket that it names in `NOTIFY_SOCKET`.
//!
//! Without that socket nothing happens. A message that does not arrive is no reason to fail: the
//! manager then acts on its own time-outs.

use std::ffi::OsStr;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The service manager, if there is one.
#[derive(Debug)]
pub(crate) struct Service {
    socket: Option<(UnixDatagram, SocketAddr)>,
}

impl Service {
    /// Finds the manager by the environment.
    pub(crate) fn find() -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET").as_deref().and_then(connect);
        Self { socket }
    }

    /// Stores are open or waiting; the network is not waited for.
    pub(crate) fn ready(&self) {
        self.tell("READY=1\nSTATUS=running");
    }

    /// The daemon is going down.
    pub(crate) fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=stopping");
    }

    fn tell(&self, message: &str) {
        if let Some((socket, address)) = &self.socket {
            if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
                tracing::debug!("the service manager was not told: {error}");
            }
        }
    }
}

fn connect(name: &OsStr) -> Option<(UnixDatagram, SocketAddr)> {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::ffi::OsStrExt as _;
    let address = match name.as_bytes().split_first()? {
        (b'@', abstract_name) => SocketAddr::from_abstract_name(abstract_name).ok()?,
        _ => SocketAddr::from_pathname(name).ok()?,
    };
    Some((UnixDatagram::unbound().ok()?, address))
}
