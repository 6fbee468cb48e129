//! A scripted Kubernetes API server on real sockets, a TCP gate, and a small controller to put in front of both.
//!
//! This is what the integration tests, the benches and `forebay demo` run against. It is not a mock of forebay's own
//! code: [`ApiServer`] listens on a TCP port, speaks HTTP/1.1 and HTTP/2 over TLS and answers like kube-apiserver where
//! it answers at all, bytes included. Nothing here imports any other part of forebay than `api`, so a wrong idea about
//! Kubernetes cannot hide on both sides of a test.
//!
//! ```text
//! World (objects, one revision counter, bounded history)
//!   <- tests write directly                     world.create("pods", json!({...}))
//!   <- clients write over HTTP                  POST, PUT, PATCH, DELETE
//!   -> GET, LIST, WATCH, discovery              list, watch, discovery
//! Script (rules: what goes wrong, and when)     server.on(list("pods")).hold()
//! RequestLog (every request seen)               server.log().count(&list("pods"))
//! Gate (a TCP proxy that cuts and delays)       Gate::start(server.addr())
//! ```
//!
//! What it does not do: protobuf, Table and YAML output (such clauses of `Accept` are skipped), gzip, authorization,
//! admission, schema defaulting, managedFields bookkeeping.

// The tasks here belong to a test server; `lifecycle` is a layer this folder may not import.
#![allow(clippy::disallowed_methods)]

pub mod apiserver;
mod body;
pub mod call;
mod collection;
mod connection;
pub mod controller;
mod discovery;
pub mod gate;
pub mod json;
mod list;
pub mod log;
pub mod matching;
mod negotiate;
pub mod objects;
mod options;
pub mod resource;
pub mod script;
mod selector;
mod service;
mod status;
mod synthetic;
mod tls;
mod tunnel;
mod watch;
pub mod world;
mod write;

pub use apiserver::{ApiServer, Builder, StartError};
pub use call::Verb;
pub use gate::{Gate, Link};
pub use json::Node;
pub use log::{Predicate, RequestLog, Seen, TimedOut};
pub use matching::{Match, any, create, delete, discovery, get, list, named_path, patch, read, update, watch, write};
pub use resource::Resource;
pub use script::{Hold, On, Rule};
pub use tls::TlsError;
pub use watch::Watches;
pub use world::{Backup, World, WriteError};

#[cfg(test)]
mod tests;
