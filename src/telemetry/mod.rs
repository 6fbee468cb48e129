//! How the process is observed: the log, the metric root, label types, the access event.
//!
//! Modules own their metrics and register them here (`registry`); this folder knows none of them. Nothing secret ever
//! comes here: no headers, no bodies, no query strings.

pub mod access_log;
pub mod labels;
pub mod logging;
mod process;
pub mod registry;

pub use access_log::AccessEvent;
pub use labels::{ResourceLabels, Verb};
