//! The root of all metrics, and its two text forms.
//!
//! Modules register under [`own`], which puts `forebay_` before their names; figures that are called the same in every
//! program (`process_*`, `rest_client_*`) go to the root itself.

use prometheus_client::{
    encoding::{prometheus_text, text},
    metrics::info::Info,
    registry::Registry,
};

use super::process::Process;

/// Which text form a scraper asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// Prometheus' own, version 0.0.4: what promtool, curl and old scrapers read.
    Text,
    /// OpenMetrics 1.0: what Prometheus asks for.
    OpenMetrics,
}

/// A root with the figures of the process and `forebay_build_info`.
pub fn root(version: &'static str) -> Registry {
    let mut root = Registry::default();
    root.register_collector(Box::new(Process));
    let build = Info::new(vec![("version", version)]);
    own(&mut root).register("build", "Version of the running program", build);
    root
}

/// Where modules register their metrics.
pub fn own(root: &mut Registry) -> &mut Registry {
    root.sub_registry_with_prefix("forebay")
}

/// All metrics as text. Takes some milliseconds for thousands of series.
///
/// # Errors
///
/// When a metric refuses to be encoded: a program error.
pub fn encode(root: &Registry, exposition: Exposition) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    match exposition {
        Exposition::Text => prometheus_text::encode(&mut out, root)?,
        Exposition::OpenMetrics => text::encode(&mut out, root)?,
    }
    Ok(out)
}

// === impl Exposition ===

impl Exposition {
    /// The form for an `Accept` header: OpenMetrics only for those who name it.
    pub fn for_accept(accept: Option<&str>) -> Self {
        let named = accept.is_some_and(|accept| accept.contains("application/openmetrics-text"));
        if named { Self::OpenMetrics } else { Self::Text }
    }

    /// The `Content-Type` that goes with it.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => prometheus_text::CONTENT_TYPE,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::{
        encoding::EncodeLabelSet,
        metrics::{counter::Counter, family::Family},
    };

    use super::*;
    use crate::{
        api::gvr::Gvr,
        telemetry::{ResourceLabels, Verb},
    };

    #[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
    struct Labels {
        verb: Verb,
        #[prometheus(flatten)]
        resource: ResourceLabels,
    }

    #[test]
    fn names_labels_and_process_figures() {
        let mut root = root("1.2.3");
        let requests = Family::<Labels, Counter>::default();
        own(&mut root).register("requests", "Requests", requests.clone());
        let pods = ResourceLabels::known(&Gvr::new("", "v1", "pods"));
        requests.get_or_create(&Labels { verb: Verb::List, resource: pods }).inc();
        requests.get_or_create(&Labels { verb: Verb::Other, resource: ResourceLabels::other() }).inc_by(2);
        let text = encode(&root, Exposition::Text).expect("encode");
        for want in [
            "# TYPE forebay_requests_total counter\n",
            "forebay_requests_total{verb=\"LIST\",group=\"\",version=\"v1\",resource=\"pods\"} 1\n",
            "forebay_requests_total{verb=\"other\",group=\"other\",version=\"other\",resource=\"other\"} 2\n",
            "forebay_build_info{version=\"1.2.3\"} 1\n",
            "# TYPE process_cpu_seconds_total counter\n",
            "# TYPE process_resident_memory_bytes gauge\n",
            "\nprocess_open_fds ",
            "\nprocess_start_time_seconds ",
        ] {
            assert!(text.contains(want), "{want:?} is not in\n{text}");
        }
        assert!(!text.contains("# EOF"));
        assert!(encode(&root, Exposition::OpenMetrics).expect("encode").ends_with("# EOF\n"));
    }

    #[test]
    fn open_metrics_only_when_asked_for() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4";
        assert_eq!(Exposition::for_accept(Some(prometheus)), Exposition::OpenMetrics);
        for accept in [None, Some("*/*"), Some("text/plain")] {
            assert_eq!(Exposition::for_accept(accept), Exposition::Text);
        }
    }
}
