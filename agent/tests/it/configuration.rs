//! Every wrong configuration is one line that names file, line, key and the way out.

use std::path::Path;

use agent::config::Config;
use sync_proto::schema::{Authority, Modality};

const GOOD: &str = r#"
[device]
id = "7f9c24e8-3b12-4fef-91e0-56a2d5a1c0de"   # UUID, the source_id
name = "gw-07"

[hub]
url = "http://127.0.0.1:8787"
token_file = "/etc/rowtide/token"

[agent]
state_dir = "/var/lib/rowtide"

[[database]]
path = "/var/lib/app/app.db"
tables = ["*"]
exclude = ["tmp_*"]

[[database.table]]
name = "settings"
modality = "state"
authority = "cloud"
local_writes = "revert"
"#;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("agent.toml"), text).map_err(|error| error.to_string())
}

#[test]
fn the_documented_file_works_as_written() {
    let config = parse(GOOD).unwrap();
    assert_eq!(config.name, "gw-07");
    assert_eq!(config.hub.url, "http://127.0.0.1:8787");
    let [database] = config.databases.as_slice() else { panic!("one database") };
    assert_eq!(database.name, "app");
    assert_eq!(database.exclude, ["tmp_*"]);
    let [table] = database.overrides.as_slice() else { panic!("one table") };
    assert_eq!((table.modality, table.authority), (Modality::State, Authority::Cloud));
    assert_eq!(table.key, None);
}

#[test]
fn wrong_files_say_where_and_what_to_write() {
    // (what is replaced, by what, the line, words of the message)
    let cases = [
        ("name = \"gw-07\"", "naem = \"gw-07\"", 4, "unknown key `naem`; did you mean `name`?"),
        ("exclude =", "excludes =", 16, "did you mean `exclude`?"),
        ("authority = \"cloud\"", "authority = \"clowd\"", 21, "\"device\" or \"cloud\""),
        ("modality = \"state\"", "modality = \"states\"", 20, "\"state\" or \"mutable\""),
        (
            "local_writes = \"revert\"",
            "local_writes = \"reject\"",
            22,
            "not available in this version",
        ),
        (
            "local_writes = \"revert\"",
            "local_writes = \"propose\"",
            22,
            "not available in this version",
        ),
        ("7f9c24e8-", "xyz", 3, "no UUID"),
        ("gw-07", "gw 07", 4, "must be 1 to 64"),
        ("http://127.0.0.1:8787", "http://hub.example:8787", 7, "allow_plaintext = true"),
        ("http://127.0.0.1:8787", "mqtt://hub.example:1883", 7, "MQTT is not available"),
        ("http://127.0.0.1:8787", "hub.example", 7, "no scheme"),
        ("http://127.0.0.1:8787", "ftp://hub.example", 7, "https://"),
        ("http://127.0.0.1:8787", "https://user:secret@hub.example", 7, "host, port and path only"),
        ("http://127.0.0.1:8787", "https://hub.example/?token=x", 7, "host, port and path only"),
        ("authority = \"cloud\"", "authority = \"device\"", 22, "remove the line"),
        ("name = \"settings\"", "name = \"\"", 19, "name a table"),
        ("modality = \"state\"", "key = [\"a\", \"A\"]", 20, "twice"),
        ("tables = [\"*\"]", "tables = \"*\"", 15, "tables: invalid type"),
        ("name = \"gw-07\"", "name = 7", 4, "name: invalid type"),
        ("name = \"gw-07\"", "", 2, "missing field `name`"),
        ("[agent]", "[agents]", 10, "unknown key `agents`; did you mean `agent`?"),
        ("[hub]", "[hub", 6, ""),
    ];
    assert!(!parse(&GOOD.replace("127.0.0.1", "user:secret@h")).expect_err("").contains("secret"));
    for (from, to, line, words) in cases {
        assert!(GOOD.contains(from), "{from}");
        let error = parse(&GOOD.replacen(from, to, 1)).expect_err(to);
        assert!(error.starts_with(&format!("agent.toml:{line}: ")), "{to}: {error}");
        assert!(error.contains(words), "{to}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn names_and_dataspaces_are_used_once() {
    let twice = format!("{GOOD}\n[[database]]\npath = \"/srv/app.db\"\n");
    assert!(parse(&twice).expect_err("two").contains("two databases are named \"app\""));
    let path = format!("{GOOD}\n[[database]]\npath = \"/var/lib/app/app.db\"\nname = \"b\"\n");
    assert!(parse(&path).expect_err("path").starts_with("agent.toml:25: two databases have the"));
    let named = format!("{GOOD}\n[[database]]\npath = \"/srv/app.db\"\nname = \"other\"\n");
    assert_eq!(parse(&named).unwrap().databases.len(), 2);
    let shared = format!("{GOOD}\n[[database.table]]\nname = \"b\"\ndataspace = \"settings\"\n");
    assert!(parse(&shared).expect_err("shared").contains("its own dataspace"));
    let sections = format!("{GOOD}\n[[database.table]]\nname = \"Settings\"\ndataspace = \"x\"\n");
    assert!(parse(&sections).expect_err("sections").contains("two sections"));
}

#[test]
fn scope_all_is_for_cloud_tables() {
    let wrong = format!("{GOOD}\n[[database.table]]\nname = \"b\"\nscope = \"all\"\n");
    assert!(parse(&wrong).expect_err("scope").contains("authority = \"cloud\""));
    let document = format!("{GOOD}\n[[database.table]]\nname = \"b\"\nkey = []\n");
    assert_eq!(parse(&document).unwrap().databases[0].overrides[1].key, Some(Vec::new()));
}

#[test]
fn plaintext_is_for_loopback_or_said_to_be_wanted() {
    for host in ["localhost:1", "127.0.0.1", "[::1]:8787"] {
        let text = GOOD.replace("127.0.0.1:8787", host);
        assert!(parse(&text).is_ok(), "{host}");
    }
    let text = GOOD.replace("127.0.0.1:8787", "10.0.0.1\"\nallow_plaintext = true #");
    assert!(parse(&text).is_ok(), "{:?}", parse(&text).err());
}
