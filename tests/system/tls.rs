//! HTTPS: a hub with a certificate of a private CA; the agent takes it only with that CA.

use std::net::TcpListener;
use std::process::Command;

use anyhow::{Result, ensure};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use system_tests::process::Process;
use system_tests::{Device, binaries, until, writer};

use crate::BOUND;

#[test]
fn rows_go_up_over_https_and_an_unknown_ca_is_named() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    std::fs::write(path("ca.pem"), ca.self_signed(&ca_key)?.pem())?;
    let key = KeyPair::generate()?;
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = CertificateParams::new(names)?.signed_by(&key, &Issuer::new(ca, &ca_key))?;
    std::fs::write(path("cert.pem"), certificate.pem())?;
    std::fs::write(path("key.pem"), key.serialize_pem())?;

    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let data = path("data");
    std::fs::write(
        path("hub.toml"),
        format!(
            "[hub]\nlisten = \"127.0.0.1:{port}\"\ndata = \"{}\"\n\n[tls]\ncert_file = \"{}\"\nkey_file = \"{}\"\n",
            data.display(),
            path("cert.pem").display(),
            path("key.pem").display(),
        ),
    )?;
    let mut command = Command::new(binaries::rowtide_hub()?);
    command.arg("serve").arg("--config").arg(path("hub.toml"));
    let mut hub = Process::start(&mut command, &path("hub.log"))?;
    let token = until("a device token", BOUND, || {
        ensure!(hub.ended()?.is_none(), "{}", hub.output()?);
        let output = Command::new(binaries::rowtide_hub()?)
            .args(["token", "new", "--device", "gw-07", "--data"])
            .arg(&data)
            .output()?;
        ensure!(output.status.success(), "{output:?}");
        Ok(Some(String::from_utf8(output.stdout)?.trim().to_owned()))
    })?;
    let url = format!("https://localhost:{port}");
    let ca_line = format!("ca_file = \"{}\"\n", path("ca.pem").display());
    let mut device = Device::with_hub(folder.path(), "gw-07", &url, &ca_line, &token, &[])?;
    writer::shell(
        &device.app_db,
        "CREATE TABLE t(id INTEGER PRIMARY KEY, v); INSERT INTO t VALUES(1, 2)",
    )?;
    device.start()?;
    device.wait_drained(BOUND)?;
    ensure!(device.table_status("t")?["last_receipt"].is_string(), "{}", device.status()?);
    device.stop()?;

    // Without the CA the same hub is refused, and status says why.
    let other_key = KeyPair::generate()?;
    let mut other = CertificateParams::new(Vec::new())?;
    other.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    std::fs::write(path("ca.pem"), other.self_signed(&other_key)?.pem())?;
    writer::shell(&device.app_db, "INSERT INTO t VALUES(2, 3)")?;
    device.start()?;
    until("the certificate error in status", BOUND, || {
        let status = device.status()?.to_string();
        let named = status.contains("ertificate");
        Ok((named && device.table_status("t")?["pending"] == 1).then_some(()))
    })
}
