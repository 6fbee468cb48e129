//! Tests of the whole program over real sockets and processes, in one binary.

mod cli;
mod client;
mod fences;
mod framing;
mod hold;
mod raw;
mod rig;
mod sync;
mod wire;
