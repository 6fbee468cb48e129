//! Where a connection's requests enter the proxy.

use std::future::Future;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;

use crate::serve::{Body, Proxy};

use super::Handler;

impl Handler for Proxy {
    type Body = Body;

    fn handle(&self, request: Request<Incoming>) -> impl Future<Output = Response<Body>> + Send {
        Proxy::handle(self, request)
    }

    fn refuse(&self, code: StatusCode, why: &str) -> Response<Body> {
        Proxy::unreadable(self, code, why)
    }
}
