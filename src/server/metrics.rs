//! Counters of the listener.

use std::sync::atomic::AtomicI64;

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Counters of the listener. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    connections: Family<ProtocolLabels, Gauge<i64, AtomicI64>>,
    accepted: Counter,
    accept_errors: Counter,
    handshake_failures: Family<HandshakeLabels, Counter>,
}

/// HTTP version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum HandshakeFailure {
    Timeout,
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProtocolLabels {
    protocol: Protocol,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HandshakeLabels {
    reason: HandshakeFailure,
}

/// An open connection: counted while it lives.
#[derive(Debug)]
pub(super) struct Open(Gauge<i64, AtomicI64>);

// === impl Metrics ===

impl Metrics {
    /// Registers the counters.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("connections", "Client connections open now", metrics.connections.clone());
        registry.register("connections_accepted", "Client connections accepted", metrics.accepted.clone());
        registry.register("accept_errors", "Errors of accept, such as no file left", metrics.accept_errors.clone());
        registry.register(
            "tls_handshake_failures",
            "TLS handshakes of clients that failed",
            metrics.handshake_failures.clone(),
        );
        metrics
    }

    pub(super) fn accepted(&self) {
        self.accepted.inc();
    }

    pub(super) fn accept_error(&self) {
        self.accept_errors.inc();
    }

    pub(super) fn handshake_failed(&self, reason: HandshakeFailure) {
        self.handshake_failures.get_or_create(&HandshakeLabels { reason }).inc();
    }

    pub(super) fn open(&self, protocol: Protocol) -> Open {
        let gauge = self.connections.get_or_create(&ProtocolLabels { protocol }).clone();
        gauge.inc();
        Open(gauge)
    }
}

// === impl Protocol ===

impl EncodeLabelValue for Protocol {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        let text = match self {
            Self::Http1 => "http/1.1",
            Self::Http2 => "h2",
        };
        EncodeLabelValue::encode(&text, encoder)
    }
}

// === impl HandshakeFailure ===

impl EncodeLabelValue for HandshakeFailure {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        let text = match self {
            Self::Timeout => "timeout",
            Self::Refused => "refused",
        };
        EncodeLabelValue::encode(&text, encoder)
    }
}

// === impl Open ===

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}
