//! The device protocol: one message in, one answer out.
//!
//! Tenant and device come from the credential. A message that is refused has written nothing. It
//! leaves frames and HTTP to the edge, and every decision about a row to [`crate::rules`] and
//! `sync_proto::decide`.

mod down;
mod hello;
mod sort;
mod up;

use std::sync::Arc;

use sync_proto::message::{Control, Refusal, Refused, ToDevice, ToHub};
use sync_proto::{Epoch, SourceId};

use crate::catalog::Catalog;
use crate::error::StoreError;
use crate::lineage::{DeviceCredential, EpochState, HubLife, Lineages, OpenEpoch};
use crate::plane::{MutablePlane, StatePlane};
use crate::wake::Wake;

/// Answers devices.
#[expect(missing_debug_implementations, reason = "trait objects of stores have none")]
#[derive(Clone)]
pub struct Ingest {
    pub(crate) catalog: Arc<dyn Catalog>,
    pub(crate) lineages: Arc<dyn Lineages>,
    pub(crate) state: Arc<dyn StatePlane>,
    pub(crate) mutable: Arc<dyn MutablePlane>,
    pub(crate) wake: Wake,
    pub(crate) auto_provision: bool,
}

/// Why a message gets no proper answer.
enum Stop {
    /// It is not taken; nothing of it was stored.
    Refused(Refused),
    /// The device has to do something first.
    Control(Control),
    /// A store failed.
    Store(StoreError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

fn refuse(code: Refusal, message: impl Into<String>) -> Stop {
    Stop::Refused(Refused { code, message: message.into() })
}

impl Ingest {
    /// Answers one message. A failing store becomes `Refused(Busy)`; it is logged here.
    pub async fn handle(&self, credential: &DeviceCredential, message: ToHub) -> ToDevice {
        let answer = match message {
            ToHub::Hello(hello) => self.hello(credential, hello).await.map(ToDevice::Welcome),
            ToHub::Up(batch) => self.up(credential, batch).await.map(ToDevice::Receipt),
            ToHub::DownRequest(request) => {
                self.down_request(credential, request).await.map(ToDevice::Down)
            }
            ToHub::DownReceipt(receipt) => {
                self.down_receipt(credential, receipt).await.map(|()| ToDevice::Noted)
            }
            ToHub::Report(report) => {
                self.report(credential, report).await.map(|()| ToDevice::Noted)
            }
        };
        match answer {
            Ok(answer) => answer,
            Err(Stop::Control(control)) => ToDevice::Control(control),
            Err(Stop::Refused(refused)) => {
                tracing::info!(
                    device = credential.name, code = ?refused.code, refused.message,
                    "message refused"
                );
                ToDevice::Refused(refused)
            }
            Err(Stop::Store(error)) => {
                tracing::error!(
                    device = credential.name,
                    error = &error as &(dyn std::error::Error + 'static),
                    "message not stored"
                );
                let message = format!("the hub cannot store now: {error}");
                ToDevice::Refused(Refused { code: Refusal::Busy, message })
            }
        }
    }

    /// The device's UUID, once it has greeted.
    async fn device(&self, credential: &DeviceCredential) -> Result<SourceId, Stop> {
        self.lineages.bound(credential).await?.ok_or_else(|| {
            let name = &credential.name;
            refuse(Refusal::UnknownEpoch, format!("device {name} has not greeted this hub yet"))
        })
    }

    /// The epoch that a message speaks of, when it is the database's current one.
    async fn open_epoch(
        &self,
        device: SourceId,
        database: &str,
        epoch: Epoch,
    ) -> Result<OpenEpoch, Stop> {
        opened(self.lineages.epoch(device, database, epoch).await?, database, epoch)
    }

    /// The store's life, when the message carries its generation.
    async fn life(&self, generation: u64) -> Result<HubLife, Stop> {
        let life = self.lineages.life().await?;
        if life.generation == generation {
            return Ok(life);
        }
        Err(refuse(
            Refusal::Generation,
            format!(
                "the message is of authority generation {generation}, the hub is at {}: \
                 greet again",
                life.generation
            ),
        ))
    }
}

fn opened(state: EpochState, database: &str, epoch: Epoch) -> Result<OpenEpoch, Stop> {
    match state {
        EpochState::Open(open) => Ok(open),
        EpochState::Closed => Err(refuse(
            Refusal::EpochClosed,
            format!(
                "epoch {epoch} of database {database} was closed by a later one: another copy of \
                 this file has greeted since"
            ),
        )),
        EpochState::Unknown => Err(refuse(
            Refusal::UnknownEpoch,
            format!("the hub does not know epoch {epoch} of database {database}: greet first"),
        )),
    }
}
