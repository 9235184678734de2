//! HTTPS: every message is one POST of a frame, and only a frame counts as an answer.
//!
//! Certificates are checked by rustls against the system's roots or the configured CA file; no
//! redirect is followed and nothing falls back to plain text. A page of a captive portal, a proxy's
//! 200 or another service's JSON is no answer.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use reqwest::{Certificate, Client, Response, StatusCode, redirect};
use sync_proto::limits::FRAME_BYTES_MAX;
use sync_proto::message::ToDevice;
use sync_proto::session::{Failure, Outgoing};
use sync_proto::wire;

use super::{retry, retry_after};
use crate::config::HubConfig;

/// Time to reach the hub and shake hands.
const CONNECT: Duration = Duration::from_secs(15);
/// Time without a byte of an answer: a long poll of 25 s and room for a slow link.
const READ: Duration = Duration::from_secs(60);
/// Time of a whole exchange: the largest frame over a slow link.
const TOTAL: Duration = Duration::from_secs(300);
/// Connections kept open: a long poll beside a batch.
const IDLE_CONNECTIONS: usize = 2;
/// Bytes of an error page that are looked at.
const ERROR_BYTES_MAX: usize = 4 << 10;

/// A client of one hub.
#[derive(Debug, Clone)]
pub(crate) struct Https {
    client: Client,
    /// The hub's address, and where messages go there.
    hub: String,
    url: String,
    token_file: PathBuf,
    authorization: HeaderValue,
}

impl Https {
    /// A client for the configured hub; reads the token and CA files.
    ///
    /// # Errors
    /// When a file cannot be read, holds nothing usable, or the system has no root certificates.
    pub(crate) fn new(hub: &HubConfig) -> Result<Self> {
        let authorization = read_token(&hub.token_file)?;
        let mut builder = Client::builder()
            .connect_timeout(CONNECT)
            .read_timeout(READ)
            .timeout(TOTAL)
            .redirect(redirect::Policy::none())
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .tcp_keepalive(Duration::from_secs(60));
        if hub.is_loopback {
            // A proxy of the environment leads away from this machine.
            builder = builder.no_proxy();
        }
        if let Some(file) = &hub.ca_file {
            let pem = std::fs::read(file)
                .with_context(|| format!("{}: the CA file cannot be read", file.display()))?;
            let roots = Certificate::from_pem_bundle(&pem)
                .with_context(|| format!("{}: the CA file is no PEM", file.display()))?;
            ensure!(!roots.is_empty(), "{}: the CA file holds no certificate", file.display());
            builder = builder.tls_certs_only(roots);
        } else if !hub.url.starts_with("https:") {
            // Plain text needs no roots, and a small system may have none.
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().context(
            "the HTTPS client cannot be set up; where the system has no root certificates, install \
             ca-certificates or name a ca_file in [hub]",
        )?;
        let url = format!("{}/v1/sync/message", hub.url);
        Ok(Self {
            client,
            hub: hub.url.clone(),
            url,
            token_file: hub.token_file.clone(),
            authorization,
        })
    }

    /// Reads the token file again: a token that was replaced holds from the next message on.
    pub(crate) fn renew_token(&mut self) {
        match read_token(&self.token_file) {
            Ok(authorization) => self.authorization = authorization,
            Err(error) => tracing::warn!("{error:#}; the token that was read before stays in use"),
        }
    }

    /// Sends one message and waits for its answer.
    ///
    /// # Errors
    /// What to do about the failure.
    pub(crate) async fn exchange(&self, message: Outgoing) -> Result<ToDevice, Failure> {
        let frame = match message {
            Outgoing::Message(message) => wire::encode_to_hub(&message),
            Outgoing::Frame(frame) => frame,
        };
        let request = self
            .client
            .post(&self.url)
            .header(AUTHORIZATION, self.authorization.clone())
            .header(CONTENT_TYPE, wire::MEDIA_TYPE)
            .body(frame);
        let response = request.send().await.map_err(|error| retry(describe(&self.url, &error)))?;
        let status = response.status();
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        if status == StatusCode::OK && kind == Some(wire::MEDIA_TYPE) {
            let bytes = self.body(response, FRAME_BYTES_MAX).await?;
            return wire::decode_to_device(&bytes)
                .map_err(|error| retry(format!("{}: the hub's answer: {error}", self.url)));
        }
        Err(self.refusal(response).await)
    }

    /// Asks whether the hub is ready, without a token.
    ///
    /// # Errors
    /// When it cannot be reached, or says that it is not.
    pub(crate) async fn ready(&self) -> Result<()> {
        let url = format!("{}/readyz", self.hub);
        let response = self.client.get(&url).send().await;
        let response = response.map_err(|error| anyhow!("{}", describe(&self.hub, &error)))?;
        let status = response.status();
        ensure!(status == StatusCode::OK, "{url}: {status}; is this a hub, and is it up?");
        Ok(())
    }

    async fn body(&self, mut response: Response, bytes_max: usize) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        while let Some(chunk) =
            response.chunk().await.map_err(|error| retry(describe(&self.url, &error)))?
        {
            if bytes.len() + chunk.len() > bytes_max {
                return Err(retry(format!("{}: an answer of over {bytes_max} bytes", self.url)));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    /// What an answer that is no frame means.
    async fn refusal(&self, response: Response) -> Failure {
        let status = response.status();
        let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let after = after.and_then(|text| text.parse().ok()).map(Duration::from_secs);
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or("no content type").to_owned();
        let said = match self.body(response, ERROR_BYTES_MAX).await {
            Ok(bytes) => hub_error(&bytes),
            Err(_) => None,
        };
        let said = said.map(|said| format!(": {said}")).unwrap_or_default();
        let url = &self.url;
        match status {
            StatusCode::PAYLOAD_TOO_LARGE => Failure::TooLarge {
                error: format!("{url}: the hub takes no message of this size{said}"),
            },
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => retry(format!(
                "{url}: the hub refuses this device's token ({status}){said}; make a new one with \
                 `rowtide-hub token new --device NAME` and write it to {}, which is read again",
                self.token_file.display()
            )),
            StatusCode::OK => {
                retry(format!("{url}: not a hub: 200 with {kind} (a proxy or a captive portal?)"))
            }
            _ if status.is_redirection() => {
                retry(format!("{url}: not a hub: redirected ({status}); a captive portal?"))
            }
            _ => retry_after(format!("{url}: {status}{said}"), after),
        }
    }
}

/// What kept a request from an answer, with its causes.
fn describe(url: &str, error: &reqwest::Error) -> String {
    let mut text = format!("{url}: the hub cannot be reached");
    let mut source = std::error::Error::source(error);
    if error.is_timeout() {
        text.push_str(": timed out");
    }
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Reads the token, one line, as the header that carries it.
///
/// # Errors
/// When the file cannot be read, is empty, or holds what no header can carry.
fn read_token(file: &Path) -> Result<HeaderValue> {
    let text = std::fs::read_to_string(file).with_context(|| {
        format!(
            "{}: the token file cannot be read; write the output of \
             `rowtide-hub token new --device NAME` to it",
            file.display()
        )
    })?;
    let token = text.trim();
    ensure!(!token.is_empty(), "{}: the token file is empty", file.display());
    let mut authorization =
        HeaderValue::from_str(&format!("Bearer {token}")).with_context(|| {
            format!("{}: the token has illegal characters; it is one line of text", file.display())
        })?;
    authorization.set_sensitive(true);
    Ok(authorization)
}

/// The message of the hub's JSON error.
fn hub_error(bytes: &[u8]) -> Option<String> {
    let json: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    json["error"]["message"].as_str().map(str::to_owned)
}
