//! One round of discovery: the aggregated documents where upstream has them, else the plain ones, and the APIServices
//! that tell which groups another server answers for.
//!
//! A round that somebody waits for is a single request, as long as no group or version has come or gone.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use serde::Deserialize;

use crate::api::gvr::Gvr;

use super::{
    super::{Client, Error, purpose::Purpose},
    Entry,
};

const WHAT: Purpose = Purpose::Discovery;
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
const PLAIN: &str = "application/json";
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

type GroupVersions = HashSet<(String, String)>;

/// What one round found.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    pub(super) resources: HashMap<Gvr, Entry>,
    /// Group and version of those that could not be read.
    pub(super) failed: GroupVersions,
    /// Group and version of those that another server answers for.
    foreign: GroupVersions,
    /// Every named group and version.
    named: GroupVersions,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(default)]
    kind: String,
}

#[derive(Deserialize)]
struct List<T> {
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct Group {
    metadata: Option<Meta>,
    #[serde(default)]
    versions: Vec<GroupVersion>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GroupVersion {
    version: String,
    #[serde(default)]
    resources: Vec<Aggregated>,
    #[serde(default)]
    freshness: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Aggregated {
    response_kind: Option<Kind>,
    resource: String,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    verbs: Vec<String>,
}

#[derive(Deserialize)]
struct Versions {
    #[serde(default)]
    versions: Vec<String>,
}

#[derive(Deserialize)]
struct Groups {
    #[serde(default)]
    groups: Vec<PlainGroup>,
}

#[derive(Deserialize)]
struct PlainGroup {
    name: String,
    #[serde(default)]
    versions: Vec<PlainVersion>,
}

#[derive(Deserialize)]
struct PlainVersion {
    version: String,
}

#[derive(Deserialize)]
struct Resources {
    #[serde(default)]
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    namespaced: bool,
    #[serde(default)]
    verbs: Vec<String>,
}

#[derive(Deserialize)]
struct ApiService {
    spec: Option<ApiServiceSpec>,
}

#[derive(Deserialize)]
struct ApiServiceSpec {
    #[serde(default)]
    group: String,
    #[serde(default)]
    version: String,
    service: Option<serde::de::IgnoredAny>,
}

/// Asks upstream for everything it serves. After a `last` round, only for what most likely has changed.
///
/// # Errors
///
/// When one of the requests fails, other than for lack of rights.
pub(super) async fn catalog(client: &Client, last: Option<&Fetched>) -> Result<Fetched, Error> {
    let (_, apis) = client.get_all(WHAT, &WHAT, "/apis", AGGREGATED).await?;
    let kind: Kind = parse(&apis)?;
    if kind.kind != "APIGroupDiscoveryList" {
        return plain(client, parse(&apis)?).await;
    }
    let groups: List<Group> = parse(&apis)?;
    let named = groups.items.iter().flat_map(Group::named).collect();
    if let Some(last) = last.filter(|last| last.named == named) {
        let core = last.resources.iter().filter(|(gvr, _)| gvr.group.is_empty());
        let resources = core.map(|(gvr, entry)| (gvr.clone(), entry.clone())).collect();
        let mut fetched = Fetched { resources, foreign: last.foreign.clone(), named, ..Fetched::default() };
        fetched.add_aggregated(groups);
        return Ok(fetched);
    }
    // Asked for after the groups: whatever is among them has its APIService by now.
    let mut fetched = Fetched { foreign: foreign_groups(client).await?, named, ..Fetched::default() };
    fetched.add_aggregated(groups);
    let (_, api) = client.get_all(WHAT, &WHAT, "/api", AGGREGATED).await?;
    fetched.add_aggregated(parse(&api)?);
    Ok(fetched)
}

/// From a server without aggregated discovery, which has named its groups.
async fn plain(client: &Client, groups: Groups) -> Result<Fetched, Error> {
    let mut fetched = Fetched { foreign: foreign_groups(client).await?, ..Fetched::default() };
    let (_, api) = client.get_all(WHAT, &WHAT, "/api", PLAIN).await?;
    let versions: Versions = parse(&api)?;
    for version in versions.versions {
        fetched.add_plain(client, "", &version).await?;
    }
    for group in groups.groups {
        for version in group.versions {
            fetched.add_plain(client, &group.name, &version.version).await?;
        }
    }
    Ok(fetched)
}

/// Groups and versions that another server answers for. An identity that may not list APIServices can't know; then the
/// check that versions are numbers is what remains.
async fn foreign_groups(client: &Client) -> Result<GroupVersions, Error> {
    let body = match client.get_all(WHAT, &WHAT, API_SERVICES, PLAIN).await {
        Ok((_, body)) => body,
        Err(error) if matches!(error.code(), Some(401 | 403 | 404)) => return Ok(HashSet::new()),
        Err(error) => return Err(error),
    };
    let specs = parse::<List<ApiService>>(&body)?.items.into_iter().filter_map(|service| service.spec);
    Ok(specs.filter(|spec| spec.service.is_some()).map(|spec| (spec.group, spec.version)).collect())
}

// === impl Group ===

impl Group {
    fn named(&self) -> impl Iterator<Item = (String, String)> {
        let name = self.metadata.as_ref().map(|meta| meta.name.as_str()).unwrap_or_default();
        self.versions.iter().map(move |version| (name.to_owned(), version.version.clone()))
    }
}

// === impl Fetched ===

impl Fetched {
    fn add_aggregated(&mut self, list: List<Group>) {
        for group in list.items {
            let name = group.metadata.map(|meta| meta.name).unwrap_or_default();
            for version in group.versions {
                // An aggregated server that is down is listed with what was last known of it.
                if version.freshness == "Stale" {
                    self.failed.insert((name.clone(), version.version.clone()));
                }
                for resource in version.resources {
                    let resource = Resource {
                        name: resource.resource,
                        kind: resource.response_kind.map(|kind| kind.kind).unwrap_or_default(),
                        namespaced: resource.scope == "Namespaced",
                        verbs: resource.verbs,
                    };
                    self.add(&name, &version.version, &resource);
                }
            }
        }
    }

    async fn add_plain(&mut self, client: &Client, group: &str, version: &str) -> Result<(), Error> {
        let path = match group {
            "" => format!("/api/{version}"),
            group => format!("/apis/{group}/{version}"),
        };
        let list: Resources = match client.get_all(WHAT, &WHAT, &path, PLAIN).await {
            Ok((_, body)) => parse(&body)?,
            // One broken group must not hide the others.
            Err(Error::Status { .. }) => {
                self.failed.insert((group.to_owned(), version.to_owned()));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        for resource in list.resources.iter().filter(|resource| !resource.name.contains('/')) {
            self.add(group, version, resource);
        }
        Ok(())
    }

    fn add(&mut self, group: &str, version: &str, resource: &Resource) {
        let can = |wanted: &str| resource.verbs.iter().any(|verb| verb == wanted);
        let ours = !self.foreign.contains(&(group.to_owned(), version.to_owned()));
        let entry = Entry {
            kind: resource.kind.as_str().into(),
            namespaced: resource.namespaced,
            cacheable: ours && can("list") && can("watch"),
            gets: can("get"),
        };
        self.resources.insert(Gvr::new(group, version, &resource.name), entry);
    }
}

fn parse<'a, T: Deserialize<'a>>(body: &'a Bytes) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|error| Error::Junk { what: WHAT, message: error.to_string() })
}
