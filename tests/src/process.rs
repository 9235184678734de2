//! One child process that is ended with its handle, and whose output goes to a file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::wait::until;

/// A running child.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`, appending its output to `log`.
    pub fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let file = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("{} cannot be opened", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("{command:?} did not start"))?;
        Ok(Self { child, log: log.to_path_buf() })
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it as a power cut would: SIGKILL, no chance to tidy up.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("the process cannot be killed")?;
        self.child.wait().context("the process cannot be waited for")?;
        Ok(())
    }

    /// Asks it to stop (SIGTERM) and gives its exit status.
    pub fn terminate(&mut self, bound: Duration) -> Result<ExitStatus> {
        let status = Command::new("kill").arg(self.pid().to_string()).status()?;
        anyhow::ensure!(status.success(), "kill {} failed", self.pid());
        until("the process to stop on SIGTERM", bound, || Ok(self.child.try_wait()?))
    }

    /// The exit status, once it ended by itself.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Everything that it has printed.
    pub fn output(&self) -> Result<String> {
        let bytes = std::fs::read(&self.log)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A line of `/proc/PID/status` in KiB, such as `VmRSS` or `VmHWM`.
    pub fn memory_kib(&self, field: &str) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status
            .lines()
            .find(|line| line.starts_with(field))
            .with_context(|| format!("/proc/{}/status has no {field}", self.pid()))?;
        let number = line.split_whitespace().nth(1).context("the line has no number")?;
        Ok(number.parse()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Already ended is fine: then both calls do nothing.
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}
