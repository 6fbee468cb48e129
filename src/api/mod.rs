//! Kubernetes words: resources, resource versions, selectors, statuses and the encodings of objects.
//!
//! No I/O, no async, no clock. Everything here is a pure function over bytes and strings, so that every rule of the
//! API can be tested by a table.

pub mod field_selector;
pub(crate) mod go_text;
pub mod gvr;
pub mod hash;
pub mod json;
pub mod label_selector;
pub mod protobuf;
pub mod resource_version;
pub mod status;
