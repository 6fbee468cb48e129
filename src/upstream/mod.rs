//! The API server side: connections and identity, discovery, and the reflectors that keep stores in step.
//!
//! ```text
//! Identity (kubeconfig or in-cluster) -> Keyring (credentials, kept current) -> Lanes { forward (HTTP/1.1), bulk (HTTP/2) } -> Client
//! Reflectors::ensure(gvr, scope) -> driver -> reflector::step (pure) -> list / watch -> decoder -> store::Writer
//! Discovery -> Catalog: which resources list and watch, their scope
//! ```
//!
//! It knows nothing of clients' requests: what a read needs is decided in `route` and done in `serve`.

mod backoff;
mod body;
mod client;
mod connect;
mod credentials;
mod decoder;
mod dial;
pub mod discovery;
mod driver;
mod error;
mod exec;
mod failure;
pub mod identity;
mod keyring;
mod lanes;
mod list;
mod liveness;
mod metrics;
mod probe;
mod purpose;
mod reflector;
mod reflectors;
mod residency;
mod turns;
mod watch;

pub use self::{
    body::{BoxError, RequestBody},
    client::{Client, ClientOptions, Manner},
    connect::ConnectError,
    discovery::{Catalog, Discovery},
    error::{Error, chain},
    failure::Failure,
    identity::Identity,
    keyring::Renewal,
    liveness::Reach,
    metrics::Metrics,
    probe::consistent_rv,
    purpose::Purpose,
    reflectors::{Demand, Options as ReflectorOptions, Reflectors},
};
