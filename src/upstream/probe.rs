//! The cheapest question that tells upstream's version of now: a consistent LIST of one key that can't exist.
//!
//! It costs upstream one read of etcd's revision and moves its cache of this kind, which makes the next bookmark useful.
//! A GET's 404 carries no version, and an RV=0 list would tell an old one (`api-semantics.md` section 8).

use serde::Deserialize;

use crate::api::{
    gvr::{Gvr, Scope},
    resource_version::ResourceVersion,
};

use super::{Client, Error, purpose::Purpose};

const WHAT: Purpose = Purpose::Probe;

/// Legal as a path segment, so that upstream reads one key, and never a name: names don't end in a dash.
const NOBODY: &str = "forebay-probe-";

#[derive(Deserialize)]
struct List {
    metadata: Meta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    resource_version: String,
}

/// A version at least as new as everything that had happened when this was called. With a namespace in `scope`, or for a
/// cluster-scoped resource, upstream reads one key for it.
pub async fn consistent_rv(client: &Client, gvr: &Gvr, scope: &Scope) -> Result<ResourceVersion, Error> {
    let path = format!("{}?fieldSelector=metadata.name%3D{NOBODY}", gvr.path(scope));
    let (_, body) = client.get_all(WHAT, gvr, &path, "application/json").await?;
    let list: List =
        serde_json::from_slice(&body).map_err(|error| Error::Junk { what: WHAT, message: error.to_string() })?;
    list.metadata.resource_version.parse().map_err(|error: crate::api::resource_version::NotANumber| Error::Junk {
        what: WHAT,
        message: error.to_string(),
    })
}
