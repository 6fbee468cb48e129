//! What a process has used, from `/proc`: CPU of all its threads, resident memory now and at its peak.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result};

/// A process to be measured.
#[derive(Clone, Debug)]
pub(crate) struct Usage {
    proc: PathBuf,
}

// === impl Usage ===

impl Usage {
    pub(crate) fn of(pid: u32) -> Self {
        Self { proc: PathBuf::from(format!("/proc/{pid}")) }
    }

    /// User and system time of the threads that are alive. (`/proc/PID/stat` counts ended threads as well, but in
    /// ticks of 10 ms; the workers of all these servers live as long as the server.)
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let mut total = 0;
        let tasks = self.proc.join("task");
        for thread in fs::read_dir(&tasks).with_context(|| format!("can't read {}", tasks.display()))? {
            // A thread may end while we look.
            let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
            total += text.split_ascii_whitespace().next().and_then(|nanos| nanos.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(Duration::from_nanos(total))
    }

    /// Bytes resident now.
    pub(crate) fn resident(&self) -> Result<u64> {
        self.status("VmRSS")
    }

    /// Bytes resident at most, since the start.
    pub(crate) fn peak(&self) -> Result<u64> {
        self.status("VmHWM")
    }

    fn status(&self, field: &str) -> Result<u64> {
        let path = self.proc.join("status");
        let text = fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        Ok(kib.with_context(|| format!("no {field} in {}", path.display()))? * 1024)
    }
}
