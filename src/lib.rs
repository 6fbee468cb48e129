//! forebay: a sidecar in front of kube-apiserver.
//!
//! It answers GET and LIST from its own watch-fed cache, holds a read until the cache it needs has synced, and forwards
//! everything else untouched. Two flows meet in the store:
//!
//! ```text
//! read:   listener -> connection -> service -> request::info -> route::decide (pure) -> serve::{cached, held, forward, reject}
//! write:  upstream::{list, watch} -> decoder -> reflector (pure step) -> store::Writer -> {snapshot, waiters}
//! ```
//!
//! The folders are layers; a file imports from its own folder and from lower layers only (`tests/architecture.rs`).

pub mod api;
pub mod config;
pub mod lifecycle;
pub mod request;
pub mod route;
pub mod serve;
pub mod server;
pub mod store;
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
pub mod upstream;

pub mod admin;
pub mod app;
pub mod cli;
