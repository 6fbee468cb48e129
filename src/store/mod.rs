//! Memory: objects as upstream sent them, in ordered immutable snapshots, with one writer each.
//!
//! One store holds one (GVR, encoding, scope). A reflector owns its [`Writer`]; everybody else holds cheap [`Reader`]s.
//! A reader takes the current [`Snapshot`] in O(1) and may keep it as long as it streams; the writer never waits for
//! readers and readers never see half a change. [`Fences`] remember what clients have been shown of each resource.
//!
//! All stores share one memory [`Budget`]: the [`Registry`] tells which one has to go when it is exceeded, and which ones
//! nobody has read for long.
//!
//! Invariants: a store's resource version never goes back except by [`Writer::reset`], which empties it; a snapshot is
//! complete at its version; nothing here knows HTTP.

mod budget;
mod contents;
mod digest;
pub mod fences;
mod handle;
mod life;
pub mod metrics;
mod object;
mod phase;
mod registry;
mod snapshot;
mod tenancy;

pub use self::{
    budget::Budget,
    digest::Digest,
    fences::{Fence, Fences, Passing},
    handle::{Change, Contradiction, Error, Reader, Relist, Waited, Writer, pair},
    life::{Life, Pulse},
    object::{Object, ObjectError},
    phase::{Phase, Progress, Status},
    registry::{Registry, StoreKey, Summary},
    snapshot::{ListForm, Snapshot},
    tenancy::Eviction,
};
