//! The house rules that a program can check: sizes, openings, edges, lint inheritance.
//!
//! A file that must break a rule is named here with its reason.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

const LINES_MAX: usize = 500;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// Every file that git tracks or would, below the root.
fn files(ending: &str) -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .context("git did not start")?;
    ensure!(output.status.success(), "git ls-files failed");
    let names = String::from_utf8(output.stdout)?;
    let paths = names.lines().filter(|name| name.ends_with(ending)).map(|name| root().join(name));
    Ok(paths.filter(|path| path.exists()).collect())
}

fn report(faults: &[String]) -> Result<()> {
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

#[test]
fn rust_files_are_small_and_say_what_they_are() -> Result<()> {
    let mut faults = Vec::new();
    for path in files(".rs")? {
        let text = std::fs::read_to_string(&path)?;
        let name = path.display();
        if text.lines().count() > LINES_MAX {
            faults.push(format!("{name}: {} lines, at most {LINES_MAX}", text.lines().count()));
        }
        if !text.starts_with("//!") {
            faults.push(format!("{name}: does not open with //!"));
        }
        if path.ends_with("mod.rs") {
            faults.push(format!("{name}: name the file after its module"));
        }
        for (index, line) in text.lines().enumerate() {
            if line.contains(concat!("TO", "DO")) || line.contains(concat!("FIX", "ME")) {
                faults.push(format!("{name}:{}: a leftover", index + 1));
            }
        }
    }
    report(&faults)
}

#[test]
fn no_file_is_named_after_nothing() -> Result<()> {
    let vague = ["utils", "util", "helpers", "helper", "common", "misc", "manager", "base"];
    let named = |path: &PathBuf| {
        path.file_stem().is_some_and(|stem| vague.contains(&stem.to_string_lossy().as_ref()))
    };
    let faults: Vec<String> = files(".rs")?
        .iter()
        .filter(|path| named(path))
        .map(|path| path.display().to_string())
        .collect();
    report(&faults)
}

#[test]
fn packages_inherit_lints_and_depend_one_way() -> Result<()> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()?;
    ensure!(output.status.success(), "cargo metadata failed");
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let names: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    // Beside the workspace's own edges: who may touch a file, a runtime or a client.
    let watched = ["rusqlite", "tokio", "reqwest", "axum"];
    let mut edges = BTreeSet::new();
    for package in packages {
        let manifest = package["manifest_path"].as_str().context("no manifest")?;
        let text = std::fs::read_to_string(manifest)?;
        ensure!(
            text.contains("[lints]\nworkspace = true"),
            "{manifest} does not inherit the lints"
        );
        for dependency in package["dependencies"].as_array().context("no dependencies")? {
            let name = dependency["name"].as_str().context("no name")?;
            if names.contains(&name) || watched.contains(&name) {
                let kind = dependency["kind"].as_str().unwrap_or("normal");
                edges.insert(format!(
                    "{} -> {name} ({kind})",
                    package["name"].as_str().unwrap_or("?")
                ));
            }
        }
    }
    let found: String = edges.iter().map(|edge| format!("{edge}\n")).collect();
    let golden = std::fs::read_to_string(root().join("tests/golden/edges.txt"))?;
    ensure!(found == golden, "tests/golden/edges.txt differs from the workspace:\n{found}");
    Ok(())
}

#[test]
fn prose_names_the_binaries_and_files_that_exist() -> Result<()> {
    let mut faults = Vec::new();
    for path in files(".md")? {
        let text = std::fs::read_to_string(&path)?;
        let folder = path.parent().unwrap_or_else(|| Path::new("."));
        for (_, rest) in text.match_indices("](").map(|(at, found)| (at, &text[at + found.len()..]))
        {
            let target = rest.split([')', '#']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") && !folder.join(target).exists() {
                faults.push(format!("{}: links to {target}, which is not there", path.display()));
            }
        }
    }
    report(&faults)
}
