//! The decision: a pure function from plain facts about a request and a store to an enum with a reason.
//!
//! Two questions, asked in this order: may the cache answer such a request at all ([`decide()`]), and may this store answer
//! it now ([`readiness()`]). Whatever is not understood completely is forwarded; forwarding is always a correct answer.

mod decide;
mod readiness;
mod reason;

pub use self::{
    decide::{Decision, Facts, Never, Read, Want, decide},
    readiness::{Fence, Life, Readiness, readiness},
    reason::Reason,
};
