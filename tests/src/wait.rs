//! Waiting for a condition, never for a time.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Tries `condition` until it gives a value; the last error says why it never did.
pub fn until<T>(
    what: &str,
    bound: Duration,
    mut condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    let mut last = String::from("it never held");
    while start.elapsed() < bound {
        match condition() {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => {}
            Err(error) => last = format!("{error:#}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bail!("waited {bound:?} for {what}: {last}")
}
