//! Tests of the whole program over real sockets and processes, in one binary.

mod cli;
