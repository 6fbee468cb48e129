//! The client side of a request: what it asks for, how, and who asks.
//!
//! Pure functions from a method, a URI and headers to plain facts; `route` decides from them. The rules are
//! kube-apiserver's own (its `RequestInfo`, its parameter decoding, its content negotiation). Whatever these functions do
//! not understand completely they mark instead of guessing, so that the request can be forwarded: see
//! [`info::RequestInfo::irregular`] and [`options::ReadOptions::is_understood`].

pub mod admission;
pub mod caller;
pub mod duration;
pub mod hop;
pub mod info;
pub mod negotiate;
pub mod options;
mod query;
