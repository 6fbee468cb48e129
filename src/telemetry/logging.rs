//! The log on stderr: one line an event, klog's shape or JSON.
//!
//! Verbosity is Kubernetes' `--v`. Libraries never get below `INFO`: their debug output holds headers, and headers hold
//! tokens. Text from peers is quoted and escaped, so nobody can forge a line.

use std::{
    fmt::{self, Write as _},
    io,
    time::{SystemTime, UNIX_EPOCH},
};

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, Targets},
    fmt::{
        FmtContext, FormatEvent, FormatFields, FormattedFields, MakeWriter,
        format::{DefaultFields, Writer},
    },
    layer::SubscriberExt,
    registry::LookupSpan,
    util::{SubscriberInitExt, TryInitError},
};

use super::access_log;

/// Shape of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// klog's.
    Text,
    /// One JSON object a line.
    Json,
}

/// klog's head, then the message and the fields.
#[derive(Debug)]
struct Klog {
    pid: u32,
}

/// Installs the process's log on stderr.
///
/// # Errors
///
/// When one is installed already.
pub fn init(format: Format, verbosity: u8) -> Result<(), TryInitError> {
    subscriber(format, filter(verbosity), io::stderr).try_init()
}

/// Installs a log of warnings and errors alone, for commands that share the terminal with someone else's output.
///
/// # Errors
///
/// When one is installed already.
pub fn init_quiet(format: Format) -> Result<(), TryInitError> {
    subscriber(format, Targets::new().with_default(LevelFilter::WARN), io::stderr).try_init()
}

/// A subscriber that writes to `writer`.
fn subscriber<W>(format: Format, filter: Targets, writer: W) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(writer);
    match format {
        Format::Text => {
            let layer = layer.event_format(Klog { pid: std::process::id() }).fmt_fields(DefaultFields::new());
            Box::new(tracing_subscriber::registry().with(layer.with_filter(filter)))
        }
        Format::Json => {
            let layer = layer.json().flatten_event(true).with_current_span(true).with_span_list(false);
            Box::new(tracing_subscriber::registry().with(layer.with_filter(filter)))
        }
    }
}

/// 0-1 info, 2-4 debug, 5 and up trace, for our own targets; libraries warn, and inform from 2 on.
fn filter(verbosity: u8) -> Targets {
    let (own, libraries) = match verbosity {
        0..=1 => (LevelFilter::INFO, LevelFilter::WARN),
        2..=4 => (LevelFilter::DEBUG, LevelFilter::INFO),
        5.. => (LevelFilter::TRACE, LevelFilter::INFO),
    };
    Targets::new().with_default(libraries).with_target("forebay", own).with_target(access_log::TARGET, own)
}

// === impl Klog ===

impl<S, N> FormatEvent<S, N> for Klog
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        let severity = match *metadata.level() {
            Level::ERROR => 'E',
            Level::WARN => 'W',
            _ => 'I',
        };
        let stamp = Stamp(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
        write!(out, "{severity}{stamp} {:>7} {}]", self.pid, metadata.target())?;
        let mut line = Line::default();
        event.record(&mut line);
        out.write_str(&line.message)?;
        out.write_str(&line.fields)?;
        for span in context.event_scope().into_iter().flatten() {
            let extensions = span.extensions();
            if let Some(fields) = extensions.get::<FormattedFields<N>>().filter(|fields| !fields.is_empty()) {
                write!(out, " {fields}")?;
            }
        }
        out.write_char('\n')
    }
}

/// `MMDD hh:mm:ss.micros` in UTC, from the time since the epoch.
struct Stamp(std::time::Duration);

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (month, day) = month_and_day(seconds / 86_400);
        let (h, m, s) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        write!(f, "{month:02}{day:02} {h:02}:{m:02}:{s:02}.{:06}", self.0.subsec_micros())
    }
}

/// Month and day of a day since 1970-01-01, in the Gregorian calendar: years are counted from March, so that the leap
/// day comes last.
fn month_and_day(days: u64) -> (u64, u64) {
    // Days since 0000-03-01, within its 400-year era, within its year.
    let era = (days + 719_468) % 146_097;
    let year = (era - era / 1_460 + era / 36_524 - era / 146_096) / 365;
    let day_of_year = era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    (if month < 10 { month + 3 } else { month - 9 }, day)
}

/// Message and fields of one event, as text.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

// === impl Line ===

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.record_debug(field, &format_args!("{value}"));
        } else {
            let _ = write!(self.fields, " {}={value:?}", field.name());
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.record_str(field, &value.to_string());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let out = if field.name() == "message" {
            self.message.push(' ');
            &mut self.message
        } else {
            let _ = write!(self.fields, " {}=", field.name());
            &mut self.fields
        };
        let _ = write!(Escaped(out), "{value:?}");
    }
}

/// Passes text on with control characters escaped: a value may come from a peer, a line must stay one line.
struct Escaped<'a>(&'a mut String);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if c.is_control() { self.0.extend(c.escape_default()) } else { self.0.push(c) }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use parking_lot::Mutex;

    use super::*;
    use crate::{
        api::gvr::Gvr,
        telemetry::{AccessEvent, Verb},
    };

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: Format, verbosity: u8, emit: impl FnOnce()) -> String {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        tracing::subscriber::with_default(subscriber(format, filter(verbosity), move || writer.clone()), emit);
        let bytes = buffer.0.lock().clone();
        String::from_utf8(bytes).expect("utf-8")
    }

    fn event(decision: &'static str, status: u16) -> AccessEvent<'static> {
        AccessEvent {
            method: "GET",
            verb: Verb::Get,
            path: "/api/v1/namespaces/a/pods/b",
            gvr: None,
            ns: Some("a"),
            name: Some("b"),
            decision,
            reason: "synced",
            status,
            rv_wanted: None,
            rv_served: Some(42),
            wait: Duration::ZERO,
            duration: Duration::from_micros(1500),
            user_agent: "evil\nE0101 forged",
            bytes: 7,
        }
    }

    #[test]
    fn dates() {
        for (day, want) in [
            (0, (1, 1)),
            (58, (2, 28)),
            (59, (3, 1)),
            (789, (2, 29)),
            (11_016, (2, 29)),
            (20_453, (12, 31)),
            (20_454, (1, 1)),
        ] {
            assert_eq!(month_and_day(day), want, "{day}");
        }
        let stamp = Stamp(Duration::new(20_453 * 86_400 + 86_399, 1_000));
        assert_eq!(stamp.to_string(), "1231 23:59:59.000001");
    }

    #[test]
    fn text_lines_look_like_klog() {
        let text = logged(Format::Text, 0, || {
            let span = tracing::info_span!("task", task.name = "reflector");
            let _entered = span.enter();
            tracing::warn!(gvr = %Gvr::new("", "v1", "pods"), objects = 3, why = "a \"b\"", "relist\nnow");
        });
        let (head, rest) = text.split_once("] ").expect("head");
        assert!(head.starts_with('W') && head.ends_with(" forebay::telemetry::logging::tests"), "{head}");
        assert_eq!(rest, "relist\\nnow gvr=v1/pods objects=3 why=\"a \\\"b\\\"\" task.name=\"reflector\"\n");
    }

    #[test]
    fn access_events_cannot_forge_lines_and_hide_empty_fields() {
        let gvr = Gvr::new("", "v1", "pods");
        let text = logged(Format::Text, 2, || AccessEvent { gvr: Some(&gvr), ..event("hit", 200) }.emit());
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains(" access] method=\"GET\" verb=\"GET\" path="), "{text}");
        assert!(
            text.contains(" gvr=v1/pods ") && text.contains(" rv.served=42 ") && !text.contains("rv.wanted"),
            "{text}"
        );
        assert!(text.contains("user_agent=\"evil\\nE0101 forged\""), "{text}");
    }

    #[test]
    fn refusals_and_failures_are_always_seen() {
        assert_eq!(logged(Format::Text, 0, || event("hit", 200).emit()), "");
        assert!(!logged(Format::Text, 0, || event("rejected", 401).emit()).is_empty());
        for (decision, status, wanted) in [("hit", 200, false), ("rejected", 401, true), ("forwarded", 502, true)] {
            logged(Format::Text, 0, || assert_eq!(AccessEvent::enabled(decision, status), wanted, "{decision}"));
        }
        assert!(!logged(Format::Text, 0, || event("forwarded", 502).emit()).is_empty());
    }

    #[test]
    fn json_is_one_flat_object_a_line() {
        let text = logged(Format::Json, 2, || event("hit", 200).emit());
        let object: serde_json::Value = serde_json::from_str(&text).expect("one object");
        assert_eq!(object["target"], "access");
        assert_eq!(object["rv.served"], 42);
        assert_eq!(object["duration_ms"], 1.5);
    }

    #[test]
    fn libraries_never_talk_about_headers() {
        for verbosity in 0..=10 {
            let text = logged(Format::Text, verbosity, || {
                tracing::debug!(target: "hyper::proto", "headers");
                tracing::debug!(target: "h2::codec", "headers");
                tracing::trace!(target: "rustls", "headers");
                tracing::debug!(target: "kube_client::client", "headers");
            });
            assert_eq!(text, "", "--v={verbosity}");
        }
    }

    #[test]
    fn verbosity_opens_our_own_levels() {
        let lines = |verbosity| {
            logged(Format::Text, verbosity, || {
                tracing::info!("a");
                tracing::debug!("b");
                tracing::trace!("c");
            })
            .lines()
            .count()
        };
        assert_eq!([0, 1, 2, 4, 5, 10].map(lines), [1, 1, 2, 2, 3, 3]);
    }
}
