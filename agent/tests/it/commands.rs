//! The built binary: bad files and folders end in one clear line, the right code, and no traces.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::write(place.path("token"), "t0ken\n").unwrap();
        place.configure("");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn configure(&self, more: &str) {
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

    fn rowtide(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_rowtide"))
            .args(arguments)
            .arg("--config")
            .arg(self.path("agent.toml"))
            .output()
            .unwrap()
    }

    /// Everything that is in the folder now.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

fn sql(path: &Path, text: &str) {
    let status = Command::new("sqlite3").arg(path).arg(text).status().unwrap();
    assert!(status.success(), "{text}");
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn check_tells_files_that_are_no_databases_and_creates_nothing() {
    // (what stands at the path, words of the finding)
    let random: Vec<u8> =
        (0..8192_u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[2]).collect();
    let lines = "{\"id\":1,\"type\":\"Coordinator\"}\n".repeat(200).into_bytes();
    let cases: [(&str, Option<Vec<u8>>, &str); 4] = [
        ("missing", None, "no such file"),
        ("empty", Some(Vec::new()), "empty"),
        ("JSON lines", Some(lines), "not a SQLite database"),
        ("encrypted", Some(random), "not a SQLite database"),
    ];
    for (what, content, words) in cases {
        let place = Place::new();
        if let Some(content) = &content {
            std::fs::write(place.path("app.db"), content).unwrap();
        }
        let before = place.names();
        let output = place.rowtide(&["check"]);
        assert_eq!(output.status.code(), Some(1), "{what}: {}", said(&output));
        assert!(said(&output).contains(words), "{what}: {}", said(&output));
        assert!(said(&output).contains("app.db"), "{what}: {}", said(&output));
        assert_eq!(place.names(), before, "{what}");
        if let Some(content) = content {
            assert_eq!(std::fs::read(place.path("app.db")).unwrap(), content, "{what}");
        }
    }
}

#[test]
fn check_tells_a_directory() {
    let place = Place::new();
    std::fs::create_dir(place.path("app.db")).unwrap();
    let output = place.rowtide(&["check"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("directory"), "{}", said(&output));
}

#[test]
fn check_changes_nothing_and_names_tables_without_a_key() {
    let place = Place::new();
    sql(&place.path("app.db"), "CREATE TABLE good(id INTEGER PRIMARY KEY); CREATE TABLE log(v)");
    let before = std::fs::read(place.path("app.db")).unwrap();
    let output = place.rowtide(&["check"]);
    assert!(said(&output).contains("key ="), "{}", said(&output));
    assert!(said(&output).contains("good"), "{}", said(&output));
    assert_eq!(std::fs::read(place.path("app.db")).unwrap(), before);
    assert_eq!(place.names(), ["agent.toml", "app.db", "token"]);
    place.configure("exclude = [\"log\"]\n");
    assert_eq!(place.rowtide(&["check"]).status.code(), Some(0));
    place.configure("[[database.table]]\nname = \"log\"\nkey = [\"nope\"]\n");
    let output = place.rowtide(&["check"]);
    assert_ne!(output.status.code(), Some(0));
    assert!(said(&output).contains("nope"), "{}", said(&output));
}

#[test]
fn wrong_configurations_end_with_code_2() {
    let place = Place::new();
    place.configure("tabels = [\"*\"]\n");
    let output = place.rowtide(&["run"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("agent.toml:11: unknown key `tabels`"), "{}", said(&output));
    let output = Command::new(env!("CARGO_BIN_EXE_rowtide"))
        .args(["check", "--config", "/nonexistent/agent.toml"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("/nonexistent/agent.toml"), "{}", said(&output));
}

#[test]
fn a_missing_or_empty_token_is_named() {
    let place = Place::new();
    sql(&place.path("app.db"), "CREATE TABLE good(id INTEGER PRIMARY KEY)");
    std::fs::write(place.path("token"), "\n").unwrap();
    for command in ["check", "run"] {
        let output = place.rowtide(&[command]);
        assert_eq!(output.status.code(), Some(1), "{command}: {}", said(&output));
        assert!(said(&output).contains("token file is empty"), "{}", said(&output));
    }
    std::fs::remove_file(place.path("token")).unwrap();
    let output = place.rowtide(&["check"]);
    assert!(said(&output).contains("rowtide-hub token new"), "{}", said(&output));
}

#[test]
fn status_without_an_agent_says_so() {
    let place = Place::new();
    sql(&place.path("app.db"), "CREATE TABLE good(id INTEGER PRIMARY KEY)");
    let output = place.rowtide(&["status", "--json"]);
    assert_ne!(output.status.code(), Some(0));
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["alarms"][0]["code"], "agent_not_running", "{status}");
    assert_ne!(status["status"], "healthy");
    assert_eq!(place.names(), ["agent.toml", "app.db", "token"]);
}

#[test]
fn only_one_agent_runs_on_a_state_folder() {
    let place = Place::new();
    sql(&place.path("app.db"), "CREATE TABLE good(id INTEGER PRIMARY KEY)");
    let mut first = Command::new(env!("CARGO_BIN_EXE_rowtide"))
        .args(["run", "--config"])
        .arg(place.path("agent.toml"))
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while !place.path("state/control.sock").exists() {
        assert!(first.try_wait().unwrap().is_none(), "the agent ended");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let second = place.rowtide(&["run"]);
    let uninstall = place.rowtide(&["uninstall"]);
    first.kill().unwrap();
    first.wait().unwrap();
    for output in [second, uninstall] {
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains("another rowtide runs"), "{}", said(&output));
    }
}

#[test]
fn every_command_has_help_with_examples() {
    let commands: [&[&str]; 8] = [
        &[],
        &["run"],
        &["check"],
        &["status"],
        &["tables"],
        &["quarantine", "list"],
        &["reseed"],
        &["uninstall"],
    ];
    for command in commands {
        let output = Command::new(env!("CARGO_BIN_EXE_rowtide"))
            .args(command)
            .arg("--help")
            .output()
            .unwrap();
        assert!(output.status.success());
        assert!(said(&output).contains("Example"), "{command:?}: {}", said(&output));
    }
}
