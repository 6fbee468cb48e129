//! Tests of the whole program over real sockets and processes, in one binary.

mod cli;
mod client;
mod fences;
mod hold;
mod rig;
mod sync;
