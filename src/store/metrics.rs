//! Figures of every store, read when they are asked for: objects, bytes, version, silence, phase.
//!
//! Nothing is counted while events are applied; a scrape walks the registry.

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

use crate::api::gvr::Scope;

use super::{Registry, Summary};

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
        let figures: [(&str, &str, fn(&Summary) -> f64); 5] = [
            ("store_objects", "Objects held, or loaded so far", |store| store.objects as f64),
            ("store_bytes", "Payload bytes held", |store| store.bytes as f64),
            ("store_resource_version", "Version at which the store is complete", |store| store.rv.0 as f64),
            ("store_silence_seconds", "Time since upstream was last heard on this resource", |store| {
                store.silence.as_secs_f64()
            }),
            ("store_synced", "1 while the store has a complete snapshot", |store| {
                f64::from(u8::from(store.phase == super::Phase::Synced))
            }),
        ];
        for (name, help, figure) in figures {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for store in &stores {
                let gvr = &store.key.gvr;
                // Namespaces are no label: a store of one namespace is summed up with its fellows by name.
                let scope = if store.key.scope == Scope::All { "all" } else { "namespace" };
                let labels = [
                    ("group", &*gvr.group),
                    ("version", &*gvr.version),
                    ("resource", &*gvr.resource),
                    ("scope", scope),
                ];
                ConstGauge::new(figure(store)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
