//! A device in a temporary folder: its configuration, its application's file, the built binary.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// A configured device without a hub: nothing listens at its address.
pub(crate) struct Place {
    folder: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::write(place.path("token"), "t0ken\n").unwrap();
        place.configure("");
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Configures a hub at `url`, which may go on into further lines.
    pub(crate) fn configure_hub(&self, url: &str) {
        let text = std::fs::read_to_string(self.path("agent.toml")).unwrap();
        let hub = text.lines().find(|line| line.starts_with("url =")).unwrap();
        let text = text.replace(hub, &format!("url = \"{url}\""));
        std::fs::write(self.path("agent.toml"), text).unwrap();
    }

    /// Configures one database, with `more` lines after its path.
    pub(crate) fn configure(&self, more: &str) {
        let text = format!(
            "[device]\nid = \"7f9c24e8-3b12-4fef-91e0-56a2d5a1c0de\"\nname = \"gw-07\"\n\
             [hub]\nurl = \"http://127.0.0.1:9\"\ntoken_file = \"{}\"\n\
             [agent]\nstate_dir = \"{}\"\n[[database]]\npath = \"{}\"\n{more}",
            self.path("token").display(),
            self.path("state").display(),
            self.path("app.db").display(),
        );
        std::fs::write(self.path("agent.toml"), text).unwrap();
    }

    pub(crate) fn rowtide(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rowtide"));
        command.args(arguments).arg("--config").arg(self.path("agent.toml"));
        command.env_remove("RUST_LOG").env_remove("NOTIFY_SOCKET");
        command
    }

    /// Starts the agent and waits until it can be asked.
    pub(crate) fn run(&self) -> Agent {
        self.run_with("ROWTIDE_TEST", Path::new(""))
    }

    /// The same with a variable in its environment.
    pub(crate) fn run_with(&self, variable: &str, value: &Path) -> Agent {
        let agent = self.spawn(variable, value);
        until("the agent's answer", || {
            let status = self.status();
            !status.to_string().contains("agent_not_running")
        });
        agent
    }

    /// Starts the agent and waits for nothing.
    pub(crate) fn spawn(&self, variable: &str, value: &Path) -> Agent {
        let log = std::fs::File::create(self.path("log")).unwrap();
        let mut command = self.command(&["run"]);
        Agent(command.env(variable, value).stderr(log).spawn().unwrap())
    }

    /// What a running agent says, or the files without one.
    pub(crate) fn status(&self) -> Value {
        let output = self.rowtide(&["status", "--json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(&output)))
    }

    /// The status of the only database.
    pub(crate) fn database(&self) -> String {
        self.status()["databases"][0]["status"].as_str().unwrap().to_owned()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }

    /// Everything that is in the folder now.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

pub(crate) fn sql(path: &Path, text: &str) {
    let status = Command::new("sqlite3").arg(path).arg(text).status().unwrap();
    assert!(status.success(), "{text}");
}

pub(crate) fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// A running agent; killed when dropped.
pub(crate) struct Agent(Child);

impl Agent {
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Processor time that it has used.
    pub(crate) fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap();
        // The name in parentheses may hold spaces.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 10)
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) fn terminate(mut self) -> ExitStatus {
        let killed = Command::new("kill").args(["-TERM", &self.id().to_string()]).status();
        assert!(killed.unwrap().success());
        let mut ended = None;
        until("the end after SIGTERM", || {
            ended = self.0.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended already.
        self.0.kill().unwrap_or_default();
        self.0.wait().unwrap();
    }
}

/// Waits until something holds, at most ten seconds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}
