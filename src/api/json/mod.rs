//! JSON without trees: scanners that find a few fields in raw object text.
//!
//! None of this validates JSON beyond what it reads: the bytes come from an API server, and are handed on as they came.
//! It never panics, whatever the bytes, needs no recursion, and runs at gigabytes a second (`benches/scan.rs`).
//! `serde_json` is the oracle in the tests, and reads the rare string that has escapes in it.

mod cursor;
pub mod object;
mod skip;
#[cfg(test)]
mod strategies;
mod text;

pub use cursor::ScanError;
