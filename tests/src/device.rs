//! A device: a folder with an application's database, an agent's configuration, and the agent.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use uuid::Uuid;

use crate::binaries;
use crate::hub::Hub;
use crate::process::Process;
use crate::wait::until;

/// How long a process may take to be ready on a loaded machine.
const READY: Duration = Duration::from_secs(60);

/// A device and its agent while it runs.
#[derive(Debug)]
pub struct Device {
    folder: PathBuf,
    /// The device's name.
    pub name: String,
    /// The device's UUID.
    pub id: Uuid,
    /// The application's database.
    pub app_db: PathBuf,
    process: Option<Process>,
}

/// A `[[database.table]]` of the configuration.
#[derive(Debug, Clone)]
pub struct TableOverride {
    /// The table.
    pub name: &'static str,
    /// `key = value` lines, as TOML.
    pub lines: &'static str,
}

impl Device {
    /// Makes a device whose agent talks to `hub`; its database is not created.
    pub fn new(folder: &Path, name: &str, hub: &Hub, overrides: &[TableOverride]) -> Result<Self> {
        let token = hub.device_token(name)?;
        Self::with_hub(folder, name, &hub.url(), "", &token, overrides)
    }

    /// Makes a device with any hub address, extra `[hub]` lines and token.
    pub fn with_hub(
        folder: &Path,
        name: &str,
        url: &str,
        hub_lines: &str,
        token: &str,
        overrides: &[TableOverride],
    ) -> Result<Self> {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder)?;
        let device = Self {
            name: name.to_owned(),
            id: Uuid::new_v4(),
            app_db: folder.join("app.db"),
            folder,
            process: None,
        };
        let token_file = device.folder.join("token");
        std::fs::write(&token_file, format!("{token}\n"))?;
        let mut toml = format!(
            "[device]\nid = \"{}\"\nname = \"{name}\"\n\n[hub]\nurl = \"{url}\"\n\
             token_file = \"{}\"\n{hub_lines}\n[agent]\nstate_dir = \"{}\"\n\n\
             [[database]]\npath = \"{}\"\ntables = [\"*\"]\nexclude = [\"tmp_*\"]\n",
            device.id,
            token_file.display(),
            device.state_dir().display(),
            device.app_db.display(),
        );
        for table in overrides {
            write!(toml, "\n[[database.table]]\nname = \"{}\"\n{}\n", table.name, table.lines)?;
        }
        std::fs::write(device.config(), toml)?;
        Ok(device)
    }

    /// The agent's configuration file.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.folder.join("agent.toml")
    }

    /// The agent's state folder.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// Starts the agent; it need not reach the hub.
    pub fn start(&mut self) -> Result<()> {
        let mut command = Command::new(binaries::rowtide()?);
        command.arg("run").arg("--config").arg(self.config());
        self.process = Some(Process::start(&mut command, &self.folder.join("agent.log"))?);
        Ok(())
    }

    /// Kills the agent with SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().context("the agent does not run")?.kill()
    }

    /// Stops the agent with SIGTERM.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.process.take().context("the agent does not run")?.terminate(READY)
    }

    /// The running agent.
    pub fn process(&mut self) -> Result<&mut Process> {
        self.process.as_mut().context("the agent does not run")
    }

    /// What the agent has printed.
    pub fn output(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.folder.join("agent.log"))?)
    }

    /// Runs a `rowtide` command with this device's configuration.
    pub fn rowtide(&self, arguments: &[&str]) -> Result<Output> {
        Ok(Command::new(binaries::rowtide()?)
            .args(arguments)
            .arg("--config")
            .arg(self.config())
            .output()?)
    }

    /// `rowtide status --json`.
    pub fn status(&self) -> Result<Value> {
        let output = self.rowtide(&["status", "--json"])?;
        serde_json::from_slice(&output.stdout).with_context(|| {
            format!(
                "rowtide status --json printed no JSON: {}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            )
        })
    }

    /// One table of the status.
    pub fn table_status(&self, table: &str) -> Result<Value> {
        let status = self.status()?;
        let tables = status["databases"][0]["tables"].as_array();
        let found = tables.and_then(|tables| tables.iter().find(|entry| entry["name"] == table));
        found.cloned().with_context(|| format!("status has no table {table}: {status}"))
    }

    /// Waits until the agent reached the hub and has nothing pending in any table.
    pub fn wait_drained(&mut self, bound: Duration) -> Result<()> {
        until("the agent to have nothing pending", bound, || {
            if let Some(status) = self.process()?.ended()? {
                bail!("the agent ended with {status}:\n{}", self.output()?);
            }
            let status = self.status()?;
            let database = &status["databases"][0];
            let tables = database["tables"].as_array().cloned().unwrap_or_default();
            let settled = |table: &Value| {
                let phase = table["status"].as_str().unwrap_or_default();
                table["pending"] == 0 && !["seeding", "new", "attaching"].contains(&phase)
            };
            let live = database["link"] == "live" && !tables.is_empty();
            ensure!(live && tables.iter().all(settled), "status: {status}");
            Ok(Some(()))
        })
    }

    /// A connection to the application's database, as another application would open it.
    pub fn open(&self) -> Result<rusqlite::Connection> {
        let connection = rusqlite::Connection::open(&self.app_db)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        Ok(connection)
    }
}
