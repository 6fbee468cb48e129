//! What must not grow: memory, descriptors and tasks of forebay, as its own `/metrics` tells them.

use anyhow::{Context, Result};

/// One look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// Bytes resident.
    pub(crate) memory: f64,
    descriptors: f64,
    pub(crate) tasks: f64,
    held: f64,
}

// === impl Figures ===

impl Figures {
    pub(crate) const HEADING: &str = "minute   memory MB   descriptors     tasks      held   clients";

    pub(crate) fn of(metrics: &str) -> Result<Self> {
        let read = |name| metric(metrics, name);
        Ok(Self {
            memory: read("process_resident_memory_bytes")?,
            descriptors: read("process_open_fds")?,
            tasks: read("forebay_tasks")?,
            held: read("forebay_held_requests")?,
        })
    }

    pub(crate) fn line(&self, minute: &str, clients: &str) -> String {
        let Self { memory, descriptors, tasks, held } = self;
        format!("{minute:>6}{:>12.1}{descriptors:>14}{tasks:>10}{held:>10}   {clients}", memory / 1e6)
    }

    /// What is larger than under full load before; nothing may be, now that all have left. Memory may be up to a twentieth
    /// more, because an allocator gives back late.
    pub(crate) fn grown_over(&self, loaded: &Self) -> Vec<String> {
        let figures = [
            ("memory", self.memory, loaded.memory * 1.05),
            ("descriptors", self.descriptors, loaded.descriptors),
            ("tasks", self.tasks, loaded.tasks),
            ("held reads", self.held, 0.0),
        ];
        let grown = figures.iter().filter(|(_, now, most)| now > most);
        grown.map(|(what, now, most)| format!("{what} {now} is above {most}")).collect()
    }
}

/// The sum of all series of a metric.
pub(crate) fn metric(text: &str, name: &str) -> Result<f64> {
    let values = text.lines().filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        (series.split('{').next() == Some(name)).then(|| value.parse::<f64>().ok())?
    });
    values.fold(None, |sum: Option<f64>, value| Some(sum.unwrap_or(0.0) + value)).with_context(|| format!("no {name}"))
}
