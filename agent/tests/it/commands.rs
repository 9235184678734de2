//! The built binary: bad files and folders end in one clear line, the right code, and no traces.

use std::process::{Command, Stdio};

use crate::place::{Place, said, sql};

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
    let first = place.run();
    let second = place.rowtide(&["run"]);
    let uninstall = place.rowtide(&["uninstall"]);
    drop(first);
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

#[test]
fn a_reader_that_has_read_enough_is_no_failure() {
    let place = Place::new();
    sql(&place.path("app.db"), "CREATE TABLE good(id INTEGER PRIMARY KEY)");
    let mut child = Command::new(env!("CARGO_BIN_EXE_rowtide"))
        .args(["tables", "--config"])
        .arg(place.path("agent.toml"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(said(&output), "");
}

#[test]
fn check_asks_the_hub_only_when_told_to() {
    let place = Place::new();
    sql(&place.path("app.db"), "CREATE TABLE good(id INTEGER PRIMARY KEY)");
    assert_eq!(place.rowtide(&["check"]).status.code(), Some(0));
    let output = place.rowtide(&["check", "--online"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("hub_unreachable"), "{}", said(&output));
}

#[test]
fn check_warns_of_a_token_that_others_can_read() {
    let place = Place::new();
    sql(&place.path("app.db"), "CREATE TABLE good(id INTEGER PRIMARY KEY)");
    let warned = |mode: &str| {
        assert!(
            Command::new("chmod").arg(mode).arg(place.path("token")).status().unwrap().success()
        );
        let output = place.rowtide(&["check"]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        said(&output).contains("open_to_others")
    };
    assert!(warned("644"));
    assert!(!warned("600"));
}

#[test]
fn a_state_folder_that_is_a_file_is_found() {
    let place = Place::new();
    sql(&place.path("app.db"), "CREATE TABLE good(id INTEGER PRIMARY KEY)");
    std::fs::write(place.path("state"), "").unwrap();
    for command in ["check", "run"] {
        let output = place.rowtide(&[command]);
        assert_eq!(output.status.code(), Some(1), "{command}: {}", said(&output));
        assert!(said(&output).contains("state folder"), "{command}: {}", said(&output));
    }
}

#[test]
fn without_root_certificates_https_says_what_to_install() {
    let place = Place::new();
    sql(&place.path("app.db"), "CREATE TABLE good(id INTEGER PRIMARY KEY)");
    place.configure_hub("https://127.0.0.1:9");
    let output = place
        .command(&["check"])
        .env("SSL_CERT_FILE", place.path("none"))
        .env("SSL_CERT_DIR", place.path("none"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("install ca-certificates"), "{}", said(&output));
    std::fs::write(place.path("ca.pem"), "no certificate").unwrap();
    place.configure_hub(&format!(
        "https://127.0.0.1:9\"\nca_file = \"{}",
        place.path("ca.pem").display()
    ));
    let output = place.rowtide(&["check"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("ca.pem"), "{}", said(&output));
}

#[test]
fn uninstall_goes_on_beside_a_file_that_is_missing() {
    let place = Place::new();
    let more = format!("[[database]]\npath = \"{}\"\n", place.path("second.db").display());
    place.configure(&more);
    sql(&place.path("second.db"), "CREATE TABLE good(id INTEGER PRIMARY KEY)");
    let output = place.rowtide(&["uninstall"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("app.db: there is no such file"), "{}", said(&output));
    assert!(said(&output).contains("second: nothing of ours was there"), "{}", said(&output));
}
