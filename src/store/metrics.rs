//! Figures of every store, read when they are asked for: objects, bytes, version, silence, phase.
//!
//! Nothing is counted for them while events are applied; a scrape walks the registry. And the memory of all stores beside
//! its budget.

use std::ops::Add;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

use crate::api::gvr::Scope;

use super::{Phase, Registry, Summary};

type Figure = fn(&Summary) -> f64;
type Fold = fn(f64, f64) -> f64;

/// Exports [`Registry::summaries`].
#[derive(Debug)]
pub struct StoreMetrics {
    registry: Registry,
}

// === impl StoreMetrics ===

impl StoreMetrics {
    /// Exports the stores of `registry`.
    pub fn new(registry: Registry) -> Self {
        Self { registry }
    }
}

impl Collector for StoreMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let stores = self.registry.summaries();
        // The last tells how stores of single namespaces become one figure: their namespaces are no label.
        let figures: [(&str, &str, Figure, Fold); 6] = [
            ("store_objects", "Objects held, or loaded so far", |store| store.objects as f64, Add::add),
            ("store_bytes", "Payload bytes held", |store| store.bytes as f64, Add::add),
            ("store_resource_version", "Version at which the store is complete", |store| store.rv.0 as f64, f64::min),
            (
                "store_silence_seconds",
                "Time since upstream was last heard on this resource",
                |store| store.silence.as_secs_f64(),
                f64::max,
            ),
            (
                "store_age_seconds",
                "Time since it was last proven that the store lacked nothing",
                |store| store.age.as_secs_f64(),
                f64::max,
            ),
            (
                "store_synced",
                "1 while the store has a complete snapshot",
                |store| f64::from(u8::from(store.phase == Phase::Synced)),
                f64::min,
            ),
        ];
        for (name, help, figure, fold) in figures {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            // Summaries are ordered by resource, so fellows are neighbours.
            for fellows in stores.chunk_by(|a, b| labels(a) == labels(b)) {
                let value = fellows.iter().map(figure).reduce(fold).unwrap_or_default();
                ConstGauge::new(value).encode(family.encode_family(&labels(&fellows[0]))?)?;
            }
        }
        let budget = self.registry.budget();
        let limit = budget.limit().map(|limit| ("memory_budget_bytes", "Memory all stores may take", limit));
        let used = ("memory_used_bytes", "Memory all stores take, with loads under way", budget.used());
        for (name, help, bytes) in std::iter::once(used).chain(limit) {
            let gauge = ConstGauge::new(bytes);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

fn labels(store: &Summary) -> [(&'static str, &str); 4] {
    let gvr = &store.key.gvr;
    let scope = if store.key.scope == Scope::All { "all" } else { "namespace" };
    [("group", &*gvr.group), ("version", &*gvr.version), ("resource", &*gvr.resource), ("scope", scope)]
}

#[cfg(test)]
mod tests {
    use prometheus_client::{encoding::prometheus_text, registry};

    use super::*;
    use crate::{api::gvr::Gvr, store::StoreKey};

    #[test]
    fn stores_of_single_namespaces_are_one_series() {
        let stores = Registry::default();
        let mut writers = Vec::new();
        for scope in [Scope::Namespace("a".into()), Scope::All, Scope::Namespace("b".into())] {
            let key = StoreKey { gvr: Gvr::new("", "v1", "pods"), scope };
            let (reader, writer) = stores.open(&key);
            reader.progress().add_loaded(2);
            writers.push(writer);
        }
        let mut root = registry::Registry::default();
        root.register_collector(Box::new(StoreMetrics::new(stores)));
        let mut text = String::new();
        prometheus_text::encode(&mut text, &root).unwrap();
        let objects: Vec<&str> = text.lines().filter(|line| line.starts_with("store_objects{")).collect();
        let of =
            |scope, n| format!("store_objects{{group=\"\",version=\"v1\",resource=\"pods\",scope=\"{scope}\"}} {n}.0");
        assert_eq!(objects, [of("all", 2), of("namespace", 4)]);
    }
}
