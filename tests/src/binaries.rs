//! Where the built binaries are.
//!
//! They stand beside the test or demo binary, in the same profile; what is missing is built by the
//! cargo that runs us. A run outside cargo without them is an error that says how to build.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// The `rowtide` binary.
pub fn rowtide() -> Result<PathBuf> {
    find("rowtide")
}

/// The `rowtide-hub` binary.
pub fn rowtide_hub() -> Result<PathBuf> {
    find("rowtide-hub")
}

/// Builds both binaries in the profile of the running program, when cargo runs us. The first time
/// takes minutes, so cargo's own progress is shown.
pub fn build() -> Result<()> {
    let Some(cargo) = std::env::var_os("CARGO") else { return Ok(()) };
    let folder = profile_folder()?;
    let mut command = Command::new(cargo);
    command.args(["build", "-p", "agent", "-p", "hub", "--bins"]);
    if folder.ends_with("release") {
        command.arg("--release");
    }
    if let Some(target) = folder.parent() {
        command.arg("--target-dir").arg(target);
    }
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    let status = command.status().context("cargo build -p agent -p hub did not start")?;
    if !status.success() {
        bail!("cargo build -p agent -p hub failed ({status}); its own output says why");
    }
    Ok(())
}

fn find(name: &str) -> Result<PathBuf> {
    let path = profile_folder()?.join(name);
    if !path.exists() {
        bail!("{} is missing; build it: cargo build -p agent -p hub", path.display());
    }
    Ok(path)
}

/// `target/debug` or `target/release`: tests run one folder below, in `deps`.
fn profile_folder() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("the running program has no path")?;
    let folder = exe.parent().context("the running program has no folder")?;
    let folder = if folder.ends_with("deps") { folder.parent() } else { Some(folder) };
    folder.map(Path::to_path_buf).context("the running program has no target folder")
}
