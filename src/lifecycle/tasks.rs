//! The supervised task set: the only place in this crate that starts tasks.
//!
//! Every long-lived task has a name and a [`Class`]. A critical task that ends before the drain has started, or
//! panics, is a [`Failure`] that names it; whoever waits in [`Tasks::failed`] shuts the process down. Other tasks that
//! fail are logged. Tasks end by themselves when the drain starts; those still running when it is aborted are dropped.
//!
//! Connections and requests use [`Tasks::spawn_connection`], which costs no more than a plain spawn. Their end is
//! nobody's concern; a panic in one is caught by the runtime and ends that one alone.

use std::{borrow::Cow, fmt, future::Future, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::DrainToken;

/// A set of tasks with one supervisor. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tasks {
    inner: Arc<Inner>,
}

/// What the end of a task means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The process is of no use without it: its unexpected end is a [`Failure`].
    Critical,
    /// Its end is fine, its error or panic is logged.
    BestEffort,
}

/// A critical task ended although nobody asked it to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("task {name:?} {cause}")]
pub struct Failure {
    /// Name given at the start of the task.
    pub name: String,
    /// How it ended: `panicked: ...`, `failed: ...`, `ended unexpectedly`.
    pub cause: String,
}

/// What a task may return: nothing, or a `Result` whose error is logged.
pub trait Outcome: Send + 'static {
    /// The error to report, if it is one.
    fn error(self) -> Option<String>;
}

#[derive(Debug)]
struct Inner {
    drain: DrainToken,
    tracker: TaskTracker,
    // The first failure wins: later ones are usually its consequences.
    failure: Mutex<Option<Failure>>,
    failed: Notify,
}

// === impl Outcome ===

impl Outcome for () {
    fn error(self) -> Option<String> {
        None
    }
}

impl<E: fmt::Display + Send + 'static> Outcome for Result<(), E> {
    fn error(self) -> Option<String> {
        // `{:#}` prints the whole chain of an anyhow error on one line.
        self.err().map(|error| format!("{error:#}"))
    }
}

// === impl Tasks ===

impl Tasks {
    /// An empty set. The end of a critical task counts as a failure until `drain` has started.
    pub fn new(drain: DrainToken) -> Self {
        let inner = Inner { drain, tracker: TaskTracker::new(), failure: Mutex::new(None), failed: Notify::new() };
        Self { inner: Arc::new(inner) }
    }

    /// Starts a named task inside a span of that name.
    pub fn spawn<F>(&self, name: impl Into<Cow<'static, str>>, class: Class, future: F)
    where
        F: Future + Send + 'static,
        F::Output: Outcome,
    {
        let name = name.into();
        let span = tracing::debug_span!("task", task.name = %name);
        // Two tasks, so that a panic arrives here as a value.
        let mut task = self.inner.tracker.spawn(future.instrument(span));
        let inner = Arc::clone(&self.inner);
        self.inner.tracker.spawn(async move {
            let ended = tokio::select! {
                ended = &mut task => ended,
                () = inner.drain.aborted() => {
                    task.abort();
                    return;
                }
            };
            let cause = match ended {
                Ok(outcome) => match outcome.error() {
                    Some(error) => format!("failed: {error}"),
                    None if class == Class::Critical && !inner.drain.is_draining() => "ended unexpectedly".to_owned(),
                    None => return,
                },
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => format!("panicked: {}", panic_text(panic.as_ref())),
                    // Cancelled: the runtime is going away.
                    Err(_) => return,
                },
            };
            inner.report(Failure { name: name.into_owned(), cause }, class);
        });
    }

    /// Starts a task for one connection or request: no name, no supervisor, only counted.
    ///
    /// The future watches the drain itself.
    pub fn spawn_connection<F>(&self, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        drop(self.inner.tracker.spawn(future));
    }

    /// Resolves with the first failure of a critical task; never, if there is none. Cancel safe.
    pub async fn failed(&self) -> Failure {
        loop {
            // Subscribed before the check, so that a failure in between is not lost.
            let notified = self.inner.failed.notified();
            if let Some(failure) = self.inner.failure.lock().clone() {
                return failure;
            }
            notified.await;
        }
    }

    /// Resolves when every task, connections included, has ended. Call it last, after the drain.
    pub async fn ended(&self) {
        self.inner.tracker.close();
        self.inner.tracker.wait().await;
    }

    /// Tasks alive now: two for each named task, one for each connection.
    pub fn len(&self) -> usize {
        self.inner.tracker.len()
    }

    /// Is no task alive?
    pub fn is_empty(&self) -> bool {
        self.inner.tracker.is_empty()
    }
}

// === impl Inner ===

impl Inner {
    fn report(&self, failure: Failure, class: Class) {
        if class == Class::BestEffort || self.drain.is_draining() {
            tracing::warn!(task.name = %failure.name, "task {}", failure.cause);
            return;
        }
        tracing::error!(task.name = %failure.name, "critical task {}", failure.cause);
        self.failure.lock().get_or_insert(failure);
        self.failed.notify_waiters();
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no text)")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lifecycle::Drain;

    async fn failure(tasks: &Tasks) -> Option<Failure> {
        tokio::time::timeout(Duration::from_secs(5), tasks.failed()).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn every_unexpected_end_of_a_critical_task_names_it() {
        type Ending = fn() -> std::pin::Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;
        let endings: [(Ending, &str); 3] = [
            (|| Box::pin(async { Ok(()) }), "ended unexpectedly"),
            (|| Box::pin(async { Err("no more events".to_owned()) }), "failed: no more events"),
            (|| Box::pin(async { panic!("boom {}", 1) }), "panicked: boom 1"),
        ];
        for (ending, cause) in endings {
            let drain = Drain::new();
            let tasks = Tasks::new(drain.token());
            tasks.spawn("reflector pods", Class::BestEffort, ending());
            assert_eq!(failure(&tasks).await, None, "{cause}: best effort");
            tasks.spawn("listener", Class::Critical, ending());
            let want = Failure { name: "listener".into(), cause: cause.into() };
            assert_eq!(failure(&tasks).await, Some(want.clone()));
            // It stays known, for waiters that come late.
            assert_eq!(failure(&tasks).await, Some(want));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_drain_has_started_ends_are_expected() {
        let drain = Drain::new();
        let tasks = Tasks::new(drain.token());
        let token = drain.token();
        tasks.spawn("listener", Class::Critical, async move { token.draining().await });
        drain.start();
        tasks.ended().await;
        assert_eq!(failure(&tasks).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_abort_drops_named_tasks_that_hang() {
        let drain = Drain::new();
        let tasks = Tasks::new(drain.token());
        tasks.spawn("stuck", Class::Critical, std::future::pending::<()>());
        drain.abort();
        tokio::time::timeout(Duration::from_secs(5), tasks.ended()).await.expect("all tasks end");
        assert!(tasks.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_panicking_connection_hurts_nobody() {
        let drain = Drain::new();
        let tasks = Tasks::new(drain.token());
        tasks.spawn_connection(async { panic!("one bad connection") });
        assert_eq!(failure(&tasks).await, None);
        tasks.ended().await;
    }
}
