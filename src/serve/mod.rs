//! One file per way of answering: from the cache, held, forwarded, refused.
//!
//! ```text
//! Proxy::handle -> request::* -> route::decide -> held (until the store may answer) -> cached
//!                                              -> forward (-> tunnel after 101)     -> observe raises fences
//!                                              -> error (every Status forebay makes)
//! ```
//!
//! Every response leaves here with a decision and a reason, which become one access event and one counter.

mod body;
mod cached;
mod error;
mod forward;
mod held;
mod list_body;
mod metrics;
mod observe;
mod proxy;
mod record;
mod tunnel;

pub use self::{
    body::Body,
    metrics::{Metrics, Savings},
    proxy::{OnHoldTimeout, Options, Parts, Proxy},
};
