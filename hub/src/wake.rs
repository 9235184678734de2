//! Wakes long polls when the feed may have grown.
//!
//! A signal without content: whoever wakes looks into the store. Writes of other processes send no
//! signal here, so waiters look again after a bounded time anyway.

use std::sync::Arc;

use tokio::sync::watch;

/// A signal that the feed may have grown. Clones are the same signal.
#[derive(Clone, Debug)]
pub struct Wake(Arc<watch::Sender<u64>>);

impl Wake {
    /// A signal that nobody waits for yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    /// Wakes everyone who waits.
    pub fn notify(&self) {
        self.0.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Starts to listen: signals from this call on are seen, also before the first wait.
    #[must_use]
    pub fn listen(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

impl Default for Wake {
    fn default() -> Self {
        Self::new()
    }
}
