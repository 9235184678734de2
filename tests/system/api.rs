//! The HTTP API's rules on a real hub: versions, conditions, keys, paging, queries, tokens.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::Hub;
use system_tests::hub::{Answer, percent};

fn hub_with(dataspace: &Value) -> Result<(tempfile::TempDir, Hub)> {
    let folder = tempfile::tempdir()?;
    let hub = Hub::start(folder.path())?;
    let answer = hub.call("POST", "/dataspaces", &[], Some(dataspace))?;
    ensure!(answer.status == 201, "{answer:?}");
    Ok((folder, hub))
}

fn settings() -> Value {
    json!({
        "name": "settings", "modality": "state", "authority": "cloud", "natural_key": ["k"],
        "fields": [{ "path": "k", "type": "string" }, { "path": "v", "type": "string" }],
    })
}

fn put(hub: &Hub, key: &str, headers: &[(&str, &str)], body: &Value) -> Result<Answer> {
    hub.call("PUT", &format!("/dataspaces/settings/rows/{}", percent(key)), headers, Some(body))
}

#[test]
fn conditions_and_versions_guard_every_write() -> Result<()> {
    let (_folder, hub) = hub_with(&settings())?;
    let body = |v: &str| json!({ "values": { "v": v } });
    let first = put(&hub, "a", &[("if-none-match", "*")], &body("1"))?;
    ensure!(first.status == 201 && first.etag.as_deref() == Some("\"1\""), "{first:?}");
    ensure!(put(&hub, "a", &[("if-none-match", "*")], &body("2"))?.status >= 409, "created twice");
    ensure!(
        put(&hub, "a", &[("if-match", "\"1\"")], &body("2"))?.status == 200,
        "If-Match of today"
    );
    let stale = put(&hub, "a", &[("if-match", "\"1\"")], &body("3"))?;
    ensure!(stale.status == 409 && stale.body["current"]["version"] == 2, "{stale:?}");
    let path = "/dataspaces/settings/rows/a";
    let gone = hub.call("DELETE", path, &[("if-match", "\"2\"")], None)?;
    ensure!(gone.status == 200 || gone.status == 204, "{gone:?}");
    for method in ["GET", "DELETE"] {
        let answer = hub.call(method, path, &[], None)?;
        ensure!(answer.status == 404, "{method} of a tombstone: {answer:?}");
    }
    let back = put(&hub, "a", &[], &body("4"))?;
    ensure!(back.status == 201 && back.body["version"] == 4, "{back:?}");
    Ok(())
}

#[test]
fn writes_at_the_same_time_each_get_a_version_of_their_own() -> Result<()> {
    let (_folder, hub) = hub_with(&settings())?;
    let versions: Result<Vec<i64>> = std::thread::scope(|scope| {
        let hub = &hub;
        let write = |n: i32| {
            scope.spawn(move || {
                let answer = put(hub, "one", &[], &json!({ "values": { "v": n.to_string() } }))?;
                answer.body["version"].as_i64().with_context(|| format!("{answer:?}"))
            })
        };
        let writers: Vec<_> = (0..20).map(write).collect();
        let join = |writer: std::thread::ScopedJoinHandle<'_, Result<i64>>| {
            writer.join().map_err(|_panic| anyhow::anyhow!("a writer panicked"))?
        };
        writers.into_iter().map(join).collect()
    });
    let mut versions = versions?;
    versions.sort_unstable();
    ensure!(versions == (1..=20).collect::<Vec<i64>>(), "{versions:?}");
    Ok(())
}

#[test]
fn odd_keys_name_one_row_each() -> Result<()> {
    let (_folder, hub) = hub_with(&settings())?;
    let keys = ["a/b", "100%", "a,b", "ü\u{1F600}", " ", "i:1", "?x=1#y", "..", "a b"];
    for key in keys {
        // The tagged form says exactly which text is meant, also where it looks tagged itself.
        let tagged = sync_proto::NaturalKey::of(&[sync_proto::Value::text(key)]);
        let answer = put(&hub, tagged.as_str(), &[], &json!({ "values": { "v": key } }))?;
        ensure!(answer.status == 201, "{key:?}: {answer:?}");
        let path = format!("/dataspaces/settings/rows/{}", percent(tagged.as_str()));
        let row = hub.get(&path)?;
        ensure!(row["values"]["v"] == key && row["values"]["k"] == key, "{key:?}: {row}");
    }
    ensure!(hub.rows("settings")?.len() == keys.len(), "keys collided");
    let mismatch = put(&hub, "a", &[], &json!({ "values": { "k": "b", "v": "x" } }))?;
    ensure!(mismatch.status == 400, "a key that is not the path's: {mismatch:?}");
    Ok(())
}

#[test]
fn pages_hold_every_row_once() -> Result<()> {
    let (_folder, hub) = hub_with(&settings())?;
    for n in 0..57 {
        put(&hub, &format!("k{n:03}"), &[], &json!({ "values": { "v": "x" } }))?;
    }
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = hub.get(&format!("/dataspaces/settings/rows?limit=10{after}"))?;
        let rows = page["rows"].as_array().context("no rows")?;
        ensure!(rows.len() <= 10, "{} rows on a page of 10", rows.len());
        seen.extend(rows.iter().map(|row| row["values"]["k"].to_string()));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={}", percent(next));
    }
    let mut distinct = seen.clone();
    distinct.sort();
    distinct.dedup();
    ensure!(
        seen.len() == 57 && distinct.len() == 57,
        "{} rows, {} distinct",
        seen.len(),
        distinct.len()
    );
    Ok(())
}

#[test]
fn queries_read_the_views_and_nothing_else() -> Result<()> {
    let (_folder, hub) = hub_with(&settings())?;
    put(&hub, "a", &[], &json!({ "values": { "v": "x" } }))?;
    let rows = hub.query("SELECT k, v, _version FROM settings")?;
    ensure!(rows == [vec![json!("a"), json!("x"), json!(1)]], "{rows:?}");
    let forbidden = [
        "SELECT * FROM tokens",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM pragma_database_list",
        "DELETE FROM settings",
        "INSERT INTO settings(k) VALUES('b')",
        "ATTACH 'x.db' AS x",
        "PRAGMA journal_mode = delete",
        "SELECT 1; SELECT 2",
        "CREATE TABLE x(y)",
        "SELECT load_extension('x')",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT sum(i) FROM n",
        "no sql at all",
    ];
    for sql in forbidden {
        let answer = hub.call("POST", "/query", &[], Some(&json!({ "sql": sql })))?;
        ensure!(answer.status >= 400, "{sql}: {answer:?}");
        ensure!(answer.body["error"]["message"].is_string(), "{sql}: {answer:?}");
    }
    ensure!(hub.rows("settings")?.len() == 1, "a query wrote");
    Ok(())
}

#[test]
fn tokens_open_only_their_own_doors() -> Result<()> {
    let (_folder, hub) = hub_with(&settings())?;
    let url = format!("{}/projects/default/dataspaces", hub.url());
    let status = |token: &str, url: &str| -> Result<u16> {
        let agent: ureq::Agent =
            ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let answer = agent.get(url).header("authorization", format!("Bearer {token}")).call()?;
        Ok(answer.status().as_u16())
    };
    ensure!(status(hub.api_token(), &url)? == 200, "the API token");
    ensure!(status("wrong", &url)? == 401, "an unknown token");
    ensure!(status(&hub.device_token("gw-07")?, &url)? == 403, "a device's token");
    for open in ["healthz", "readyz"] {
        ensure!(status("", &format!("{}/{open}", hub.url()))? == 200, "{open} needs no token");
    }
    ensure!(
        hub.call("GET", "/dataspaces/nothing/rows", &[], None)?.status == 404,
        "unknown dataspace"
    );
    ensure!(hub.call("GET", "/devices/nobody", &[], None)?.status == 404, "unknown device");
    Ok(())
}
