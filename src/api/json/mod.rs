//! JSON without trees: scanners that find a few fields in raw object text and cut lists and watch streams into objects.
//!
//! ```text
//! list body   -> list::Splitter       -> item text ----> normal::from_list_item  \
//!                                                                                 > stored text -> object::scan -> Facts
//! watch body  -> frames::FrameDecoder -> object text --> normal::from_event_object /
//! stored text -> normal::list_item    -> between list::ListEnvelope::head and ::tail: a list body again, byte for byte
//! ```
//!
//! None of this validates JSON beyond what it reads: the bytes come from an API server, and are handed on as they came.
//! It never panics, whatever the bytes, needs no recursion, and runs at gigabytes a second (`benches/scan.rs`).
//! `serde_json` is the oracle in the tests, and reads the rare string that has escapes in it.

mod cursor;
mod envelope;
pub mod frames;
pub mod list;
pub mod normal;
pub mod object;
mod skip;
#[cfg(test)]
mod strategies;
mod text;

pub use cursor::ScanError;
