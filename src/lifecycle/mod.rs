//! The life of the process: supervised tasks, the two-phase drain, signals, readiness.
//!
//! ```text
//! signal or failed critical task -> shutdown::supervise -> Drain (tell everyone) -> guards dropped or deadline -> abort
//! ```
//!
//! Nothing here knows sockets or Kubernetes. This folder is the only one that may start tasks (`tasks`).

pub mod drain;
pub mod readiness;
pub mod shutdown;
pub mod tasks;

pub use drain::{Drain, DrainToken, Drained, Guard};
pub use readiness::{Readiness, ReadyToken};
pub use shutdown::{Signals, Timing, supervise};
pub use tasks::{Class, Failure, Tasks};
