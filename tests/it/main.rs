//! Tests of the whole program over real sockets and processes, in one binary.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests spawn tasks, and measure real time")]

mod admission;
mod answers;
mod backoff;
mod bounds;
mod child;
mod cli;
mod client;
mod exec;
mod failures;
mod fences;
mod frames;
mod framing;
mod h2;
mod hold;
mod identity;
mod lanes;
mod life;
mod memory;
mod process;
mod raw;
mod recovery;
mod relist;
mod retry;
mod rig;
mod rotation;
mod startup;
mod sync;
mod timeouts;
mod tunnel;
mod wire;
