//! The API server side: connections and identity, discovery, and the reflectors that keep stores in step.
//!
//! ```text
//! Identity (kubeconfig or in-cluster) -> Client { forward (HTTP/1.1), bulk (HTTP/2) }
//! Reflectors::ensure(gvr, scope) -> driver -> reflector::step (pure) -> list / watch -> decoder -> store::Writer
//! Discovery -> Catalog: which resources list and watch, their scope
//! ```
//!
//! It knows nothing of clients' requests: what a read needs is decided in `route` and done in `serve`.

mod backoff;
mod client;
mod connect;
mod decoder;
pub mod discovery;
mod driver;
mod error;
pub mod identity;
mod list;
mod liveness;
mod metrics;
mod probe;
mod reflector;
mod reflectors;
mod residency;
mod watch;

pub use self::{
    client::{BoxError, Client, ClientOptions, RequestBody},
    discovery::{Catalog, Discovery},
    error::{Error, chain},
    identity::Identity,
    liveness::Reach,
    metrics::Metrics,
    probe::consistent_rv,
    reflectors::{Demand, Options as ReflectorOptions, Reflectors},
};
