//! Capture on real files: one binary, one module for each concern.

mod apply;
mod capture_keys;
mod cloud;
mod local;
mod model;
mod parked;
mod property;
mod row;
