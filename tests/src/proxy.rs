//! A loopback proxy between agent and hub that keeps every frame and can deliver old ones again.
//!
//! It knows frames only as the wire does. Replaying is done with the very bytes that passed.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use sync_proto::message::{DownBatch, Receipt, ToDevice, ToHub};
use sync_proto::wire;
use tiny_http::{Header, Method, Request, Response, Server};

/// Worker threads: a long poll and a window of batches at the same time.
const WORKERS: usize = 12;

/// Milliseconds that a request for rows waits at the hub.
const POLL_MS_MAX: u32 = 1_000;

/// What passed and what is to be delivered again.
#[derive(Debug, Default)]
struct Shared {
    up: Mutex<Vec<Vec<u8>>>,
    down: Mutex<Vec<DownBatch>>,
    replay: Mutex<Vec<(DownBatch, SyncSender<()>)>>,
    /// Who waits for the agent to ask again after a replay: it has then dealt with it.
    replayed: Mutex<Vec<SyncSender<()>>>,
}

/// A running proxy.
pub struct Proxy {
    server: Arc<Server>,
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    hub_url: String,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("hub_url", &self.hub_url).finish_non_exhaustive()
    }
}

impl Proxy {
    /// Starts a proxy in front of the hub at `hub_url`.
    pub fn start(hub_url: &str) -> Result<Self> {
        let server = Server::http("127.0.0.1:0").map_err(|error| anyhow!("proxy: {error}"))?;
        let server = Arc::new(server);
        let shared = Arc::new(Shared::default());
        let workers = (0..WORKERS)
            .map(|_| {
                let (server, shared) = (Arc::clone(&server), Arc::clone(&shared));
                let hub_url = hub_url.to_owned();
                std::thread::spawn(move || {
                    while let Ok(request) = server.recv() {
                        serve(request, &shared, &hub_url);
                    }
                })
            })
            .collect();
        Ok(Self { server, shared, workers, hub_url: hub_url.to_owned() })
    }

    /// The address for the agent's configuration.
    pub fn url(&self) -> Result<String> {
        let address = self.server.server_addr().to_ip().context("the proxy has no address")?;
        Ok(format!("http://{address}"))
    }

    /// Every UpBatch frame that passed so far.
    #[must_use]
    pub fn up_frames(&self) -> Vec<Vec<u8>> {
        lock(&self.shared.up).clone()
    }

    /// Every DownBatch with rows that passed so far.
    #[must_use]
    pub fn down_batches(&self) -> Vec<DownBatch> {
        lock(&self.shared.down).clone()
    }

    /// Sends an old UpBatch frame to the hub again, as the device, and gives its receipt.
    pub fn replay_up(&self, frame: &[u8], token: &str) -> Result<Receipt> {
        let answer = forward(frame, &format!("Bearer {token}"), &self.hub_url)?.1;
        if let ToDevice::Receipt(receipt) = answer {
            return Ok(receipt);
        }
        Err(anyhow!("the hub answered a replay with {answer:?}"))
    }

    /// Answers the agent's next request for rows with an old DownBatch, and returns once the agent
    /// has taken it (it asked again).
    pub fn replay_down(&self, batch: &DownBatch, bound: Duration) -> Result<()> {
        let (taken, wait) = sync_channel(1);
        lock(&self.shared.replay).push((batch.clone(), taken));
        wait.recv_timeout(bound).context("the agent did not ask for rows in time")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        for _ in &self.workers {
            self.server.unblock();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(mut request: Request, shared: &Shared, hub_url: &str) {
    let mut body = Vec::new();
    let read = request.as_reader().read_to_end(&mut body);
    let credential = header(&request, "authorization").unwrap_or_default();
    let answer = match (read, request.method()) {
        (Ok(_), Method::Post) => relay(&body, &credential, shared, hub_url),
        (Ok(_), _) => Err(anyhow!("only POST is relayed")),
        (Err(error), _) => Err(error.into()),
    };
    // An agent that hung up meanwhile asks again.
    match answer {
        Ok((status, bytes, kind)) => {
            let response = Response::from_data(bytes).with_status_code(status);
            let response = match Header::from_bytes("content-type", kind) {
                Ok(header) => response.with_header(header),
                Err(()) => response,
            };
            request.respond(response).unwrap_or_default();
        }
        Err(error) => {
            let response = Response::from_string(format!("{error:#}")).with_status_code(502);
            request.respond(response).unwrap_or_default();
        }
    }
}

fn header(request: &Request, name: &'static str) -> Option<String> {
    let found = request.headers().iter().find(|header| header.field.equiv(name));
    found.map(|header| header.value.to_string())
}

fn relay(
    body: &[u8],
    credential: &str,
    shared: &Shared,
    hub_url: &str,
) -> Result<(u16, Vec<u8>, String)> {
    let message = wire::decode_to_hub(body)?;
    if matches!(message, ToHub::DownRequest(_)) {
        for taken in lock(&shared.replayed).drain(..) {
            taken.send(()).unwrap_or_default();
        }
        let next = lock(&shared.replay).pop();
        if let Some((batch, taken)) = next {
            let frame = wire::encode_to_device(&ToDevice::Down(batch));
            lock(&shared.replayed).push(taken);
            return Ok((200, frame, wire::MEDIA_TYPE.to_owned()));
        }
    }
    let (raw, answer) = forward_raw(&polled(body, &message), credential, hub_url)?;
    if matches!(message, ToHub::Up(_)) {
        lock(&shared.up).push(body.to_vec());
    }
    if let Some(ToDevice::Down(batch)) = answer {
        if batch.prev != batch.next {
            lock(&shared.down).push(batch);
        }
    }
    Ok(raw)
}

/// The frame to pass on: a request for rows waits less, so that a replay gets its turn soon.
fn polled(body: &[u8], message: &ToHub) -> Vec<u8> {
    if let ToHub::DownRequest(request) = message {
        let mut request = request.clone();
        request.wait_ms = request.wait_ms.min(POLL_MS_MAX);
        return wire::encode_to_hub(&ToHub::DownRequest(request));
    }
    body.to_vec()
}

type Raw = (u16, Vec<u8>, String);

fn forward(body: &[u8], credential: &str, hub_url: &str) -> Result<(Raw, ToDevice)> {
    let (raw, answer) = forward_raw(body, credential, hub_url)?;
    let answer = answer.with_context(|| {
        format!("the hub answered {}: {}", raw.0, String::from_utf8_lossy(&raw.1))
    })?;
    Ok((raw, answer))
}

fn forward_raw(body: &[u8], credential: &str, hub_url: &str) -> Result<(Raw, Option<ToDevice>)> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(90)))
        .build()
        .into();
    let mut response = agent
        .post(format!("{hub_url}/v1/sync/message"))
        .header("authorization", credential)
        .header("content-type", wire::MEDIA_TYPE)
        .send(body)?;
    let kind = response.headers().get("content-type");
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned();
    let status = response.status().as_u16();
    let bytes = response.body_mut().with_config().limit(64 << 20).read_to_vec()?;
    let answer = wire::decode_to_device(&bytes).ok();
    Ok(((status, bytes, kind), answer))
}
