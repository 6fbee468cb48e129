//! Starts the caches that `--preload` names as soon as discovery knows the resources, and tells readiness about them.

use std::{cmp::Reverse, sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::{
    admin::ResourceCheck,
    api::gvr::{Gvr, Scope},
    config::ResourceSelector,
    lifecycle::ReadyToken,
    store::{Phase, StoreKey, Summary},
    upstream::{Catalog, Demand, Discovery, Reflectors},
};

/// How often resources that upstream does not serve yet are looked for: a CRD may come later.
const RETRY: Duration = Duration::from_secs(2);

/// The resources to preload. Cheap to clone.
#[derive(Clone)]
pub(super) struct Preload {
    wanted: Arc<Mutex<Vec<(ResourceSelector, Option<Gvr>)>>>,
    max_staleness: Duration,
}

// === impl Preload ===

impl Preload {
    pub(super) fn new(selectors: &[ResourceSelector], max_staleness: Duration) -> Self {
        let wanted = selectors.iter().map(|selector| (selector.clone(), None)).collect();
        Self { wanted: Arc::new(Mutex::new(wanted)), max_staleness }
    }

    /// Waits for discovery, then starts what is wanted as it becomes known.
    pub(super) async fn run(self, discovery: Discovery, reflectors: Reflectors, upstream_seen: ReadyToken) {
        while !discovery.known_within(Duration::from_secs(3600)).await {}
        upstream_seen.mark_ready();
        loop {
            if let Some(catalog) = discovery.catalog() {
                for gvr in self.resolve(&catalog) {
                    reflectors.ensure(&StoreKey { gvr, scope: Scope::All }, Demand::Background);
                }
            }
            if self.wanted.lock().iter().all(|(_, gvr)| gvr.is_some()) {
                return;
            }
            discovery.refresh();
            tokio::time::sleep(RETRY).await;
        }
    }

    /// What readiness says of a store.
    pub(super) fn check(&self, store: &Summary) -> ResourceCheck {
        let required = store.key.scope == Scope::All
            && self.wanted.lock().iter().any(|(_, gvr)| gvr.as_ref() == Some(&store.key.gvr));
        ResourceCheck {
            name: format!("cache-sync/{}", store.key),
            // A resource that can't be cached is forwarded: waiting for it would be waiting for ever.
            ready: !matches!(store.phase, Phase::Syncing | Phase::Stopped),
            required,
            detail: detail(store, self.max_staleness),
        }
    }

    /// The preloaded resources nobody knows yet.
    pub(super) fn unresolved(&self) -> Vec<ResourceCheck> {
        let wanted = self.wanted.lock();
        let unknown = wanted.iter().filter(|(_, gvr)| gvr.is_none());
        unknown
            .map(|(selector, _)| ResourceCheck {
                name: format!("cache-sync/{selector}"),
                ready: false,
                required: true,
                detail: "not known to upstream's discovery yet".to_owned(),
            })
            .collect()
    }

    fn resolve(&self, catalog: &Catalog) -> Vec<Gvr> {
        let mut found = Vec::new();
        for (selector, gvr) in self.wanted.lock().iter_mut().filter(|(_, gvr)| gvr.is_none()) {
            let served = catalog.cacheable().filter(|gvr| selector.matches(gvr));
            if let Some(best) = served.min_by_key(|gvr| Reverse(stability(&gvr.version))) {
                *gvr = Some(best.clone());
                found.push(best.clone());
            }
        }
        found
    }
}

/// Kubernetes' version priority: `v2` before `v1` before `v2beta1` before `v1alpha1`.
fn stability(version: &str) -> (u8, u32, u32) {
    let Some(rest) = version.strip_prefix('v') else { return (0, 0, 0) };
    let (level, major, minor) = match rest.split_once("beta").map(|parts| (2, parts)) {
        Some((level, (major, minor))) => (level, major, minor),
        None => match rest.split_once("alpha") {
            Some((major, minor)) => (1, major, minor),
            None => (3, rest, "0"),
        },
    };
    match (major.parse(), minor.parse()) {
        (Ok(major), Ok(minor)) => (level, major, minor),
        _ => (0, 0, 0),
    }
}

fn detail(store: &Summary, max_staleness: Duration) -> String {
    match store.phase {
        Phase::Syncing => {
            let of = store.expected.map_or(String::new(), |total| format!("/{total}"));
            let left = store.time_left.map_or(String::new(), |left| format!(", {}s left", left.as_secs()));
            format!("syncing, {}{of} objects, {:.0}/s{left}", store.objects, store.rate)
        }
        Phase::Synced => {
            let age = store.age.as_secs();
            let unproven = if store.age > max_staleness { ", not proven since: reads are forwarded" } else { "" };
            format!("{} objects, rv {}, complete {age}s ago{unproven}", store.objects, store.rv)
        }
        Phase::Refused(code) => format!("upstream answers {code}: reads are forwarded"),
        Phase::Unservable(reason) => format!("not cached, {reason}: reads are forwarded"),
        Phase::OverBudget => "over the memory budget: reads are forwarded".to_owned(),
        Phase::Stopped => "stopped".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_kubernetes_orders_them() {
        let order = ["v10", "v2", "v1", "v2beta2", "v2beta1", "v1beta1", "v3alpha1", "v1alpha2", "foo1"];
        for pair in order.windows(2) {
            assert!(stability(pair[0]) > stability(pair[1]), "{pair:?}");
        }
    }
}
