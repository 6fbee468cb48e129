//! Who may ask upstream next: a few at a time, those with held reads first, and those nobody waits for never in their way.
//!
//! Turns are of two kinds. One that a held read waits for is urgent; the others are background and have a share of their
//! own, so that a hundred of them neither delay an urgent one nor starve. Which kind it is is seen anew whenever a turn
//! is given.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The turns of one kind of request. Cheap to clone.
#[derive(Clone)]
pub(super) struct Turns {
    inner: Arc<Inner>,
}

/// Asking upstream; dropped, the next one's turn begins.
pub(super) struct Turn {
    inner: Arc<Inner>,
    urgent: bool,
}

struct Inner {
    urgent: usize,
    background: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    urgent: usize,
    background: usize,
    /// In the order in which they came.
    waiting: Vec<Waiting>,
}

struct Waiting {
    is_urgent: Box<dyn Fn() -> bool + Send>,
    go: oneshot::Sender<Turn>,
}

// === impl Turns ===

impl Turns {
    /// At most `urgent` and `background` at once.
    pub(super) fn new(urgent: usize, background: usize) -> Self {
        Self { inner: Arc::new(Inner { urgent, background, state: Mutex::default() }) }
    }

    /// Waits for a turn; it is urgent while `is_urgent` says so. Whenever `changed` gives a future that resolves, it is
    /// asked again. `None` can't happen while this is awaited.
    pub(super) async fn take<F: Future<Output = ()>>(
        &self,
        is_urgent: impl Fn() -> bool + Send + 'static,
        changed: impl Fn() -> F,
    ) -> Option<Turn> {
        let (go, mut begun) = oneshot::channel();
        self.inner.state.lock().waiting.push(Waiting { is_urgent: Box::new(is_urgent), go });
        loop {
            self.inner.give();
            tokio::select! {
                biased;
                turn = &mut begun => return turn.ok(),
                () = changed() => {}
            }
        }
    }
}

// === impl Inner ===

impl Inner {
    /// Gives away the turns that are free.
    fn give(self: &Arc<Self>) {
        let mut given = Vec::new();
        {
            let mut state = self.state.lock();
            state.waiting.retain(|waiting| !waiting.go.is_closed());
            for urgent in [true, false] {
                while let Some(place) = self.next(&state, urgent) {
                    let waiting = state.waiting.remove(place);
                    *(if urgent { &mut state.urgent } else { &mut state.background }) += 1;
                    given.push((waiting.go, urgent));
                }
            }
        }
        for (go, urgent) in given {
            // Not taken because its future was dropped just now: the turn comes back, and is given to another.
            let _ = go.send(Turn { inner: self.clone(), urgent });
        }
    }

    fn next(&self, state: &State, urgent: bool) -> Option<usize> {
        let free = if urgent { state.urgent < self.urgent } else { state.background < self.background };
        free.then(|| state.waiting.iter().position(|waiting| (waiting.is_urgent)() == urgent)).flatten()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        {
            let mut state = self.inner.state.lock();
            *(if self.urgent { &mut state.urgent } else { &mut state.background }) -= 1;
        }
        self.inner.give();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        time::Duration,
    };

    use tokio::{sync::Notify, task::yield_now};

    use super::*;

    /// Whoever waits, by name, and what makes it urgent.
    struct Rig {
        turns: Turns,
        begun: Arc<Mutex<Vec<(&'static str, Turn)>>>,
    }

    struct Client {
        urgent: Arc<AtomicBool>,
        changed: Arc<Notify>,
        #[allow(clippy::disallowed_types)]
        task: tokio::task::JoinHandle<()>,
    }

    impl Rig {
        fn new(urgent: usize, background: usize) -> Self {
            Self { turns: Turns::new(urgent, background), begun: Arc::default() }
        }

        #[allow(clippy::disallowed_methods)]
        async fn come(&self, name: &'static str, urgent: bool) -> Client {
            let (urgent, changed) = (Arc::new(AtomicBool::new(urgent)), Arc::new(Notify::new()));
            let (turns, begun, is, news) = (self.turns.clone(), self.begun.clone(), urgent.clone(), changed.clone());
            let task = tokio::spawn(async move {
                let turn = turns.take(move || is.load(Ordering::Relaxed), || news.notified()).await.unwrap();
                begun.lock().push((name, turn));
            });
            Self::settle().await;
            Client { urgent, changed, task }
        }

        /// Names of those whose turn it is.
        async fn now(&self) -> Vec<&'static str> {
            Self::settle().await;
            self.begun.lock().iter().map(|(name, _)| *name).collect()
        }

        async fn end(&self, name: &str) {
            let turn = {
                let mut begun = self.begun.lock();
                let place = begun.iter().position(|(known, _)| *known == name).unwrap();
                begun.remove(place)
            };
            drop(turn);
            Self::settle().await;
        }

        async fn settle() {
            for _ in 0..20 {
                yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn the_urgent_go_first_and_nobody_waits_for_the_others() {
        let rig = Rig::new(2, 1);
        for name in ["b1", "b2", "b3"] {
            rig.come(name, false).await;
        }
        assert_eq!(rig.now().await, ["b1"]);
        for name in ["u1", "u2", "u3"] {
            rig.come(name, true).await;
        }
        assert_eq!(rig.now().await, ["b1", "u1", "u2"]);
        rig.end("b1").await;
        rig.end("u1").await;
        assert_eq!(rig.now().await, ["u2", "b2", "u3"]);
    }

    #[tokio::test]
    async fn what_becomes_urgent_goes_at_once() {
        let rig = Rig::new(1, 1);
        rig.come("b1", false).await;
        rig.come("b2", false).await;
        let third = rig.come("b3", false).await;
        assert_eq!(rig.now().await, ["b1"]);
        third.urgent.store(true, Ordering::Relaxed);
        third.changed.notify_one();
        assert_eq!(rig.now().await, ["b1", "b3"]);
    }

    #[tokio::test]
    async fn who_leaves_takes_no_turn_along() {
        let rig = Rig::new(1, 1);
        rig.come("u1", true).await;
        let gone = rig.come("u2", true).await;
        rig.come("u3", true).await;
        gone.task.abort();
        rig.end("u1").await;
        assert_eq!(rig.now().await, ["u3"]);
        rig.end("u3").await;
        tokio::time::timeout(Duration::from_secs(5), rig.turns.take(|| true, std::future::pending)).await.unwrap();
    }
}
