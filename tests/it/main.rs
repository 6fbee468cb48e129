//! Tests of the whole program over real sockets and processes, in one binary.

mod cli;
mod client;
mod failures;
mod fences;
mod framing;
mod hold;
mod identity;
mod raw;
mod rig;
mod sync;
mod tunnel;
mod wire;
