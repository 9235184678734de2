//! The cloud end: stores rows of devices, gives receipts for them, and feeds rows back down.
//!
//! [`Hub`] is the whole: stores behind traits ([`catalog::Catalog`], [`lineage::Lineages`],
//! [`plane::StatePlane`], [`plane::MutablePlane`], [`query::QueryEngine`]), the device protocol
//! ([`ingest::Ingest`]) and the writes of the API. Only [`api`], [`serve`] and [`tls`] know HTTP,
//! and nothing below knows them. Which row is newer is decided by `sync_proto::decide` alone.
#![forbid(unsafe_code)]

pub mod api;
pub mod catalog;
pub mod clock;
pub mod config;
pub mod error;
pub mod hub;
pub mod ingest;
pub mod json;
pub mod lineage;
pub mod plane;
pub mod query;
pub mod rules;
pub mod serve;
mod store;
pub mod tls;
pub mod wake;

pub use crate::error::StoreError;
pub use crate::hub::{Hub, HubOptions};
