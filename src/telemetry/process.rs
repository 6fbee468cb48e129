//! Figures of the process, read from `/proc` at each scrape, under the names every Prometheus client uses.

use std::fs;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

/// Clock ticks in a second in `/proc`: USER_HZ, which Linux fixes at 100 for user space.
const TICKS: f64 = 100.0;

#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    /// A file that can't be read leaves its figures out: a scrape must not fail for it.
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let system = fs::read_to_string("/proc/stat").unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        if let Some(cpu) = cpu_seconds(&stat) {
            counter(&mut encoder, "process_cpu_seconds", "User and system CPU time spent", cpu)?;
        }
        for (name, help, value) in [
            ("process_resident_memory_bytes", "Resident memory", kilobytes(&status, "VmRSS:")),
            ("process_virtual_memory_bytes", "Virtual memory", kilobytes(&status, "VmSize:")),
            ("process_start_time_seconds", "Start of the process since the epoch", start_seconds(&stat, &system)),
            ("process_open_fds", "Open file descriptors", open_files()),
            ("process_max_fds", "Largest number of open file descriptors", max_files(&limits)),
            ("forebay_tasks", "Tasks of the runtime that have not ended", tasks()),
        ] {
            if let Some(value) = value {
                let gauge = ConstGauge::new(value);
                gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
            }
        }
        Ok(())
    }
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> std::fmt::Result {
    let counter = ConstCounter::new(value);
    counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)
}

/// Field `number` of `/proc/self/stat`, counted from 1 as proc(5) does. The second may hold blanks and parentheses.
fn stat_field(stat: &str, number: usize) -> Option<f64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((stat_field(stat, 14)? + stat_field(stat, 15)?) / TICKS)
}

fn start_seconds(stat: &str, system: &str) -> Option<f64> {
    let boot: f64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot + stat_field(stat, 22)? / TICKS)
}

/// `VmRSS:      1234 kB` in bytes.
fn kilobytes(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let amount: f64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(amount * 1024.0)
}

fn open_files() -> Option<f64> {
    // One of the entries is the directory being read.
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as f64)
}

/// Only a scrape outside the runtime has none.
fn tasks() -> Option<f64> {
    let runtime = tokio::runtime::Handle::try_current().ok()?;
    Some(runtime.metrics().num_alive_tasks() as f64)
}

/// The soft limit; none of it is said if it is `unlimited`.
fn max_files(limits: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_after_the_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 100 0 0 0 250 150 0 0 20 0 4 0 1000 1 2 3";
        assert_eq!(cpu_seconds(stat), Some(4.0));
        assert_eq!(start_seconds(stat, "cpu 1\nbtime 1700000000\nx"), Some(1_700_000_010.0));
        assert_eq!(cpu_seconds(""), None);
        assert_eq!(kilobytes("Name: x\nVmRSS:\t   12 kB\n", "VmRSS:"), Some(12_288.0));
        let limits = "Limit  Soft\nMax open files            1024                 4096                 files \n";
        assert_eq!(max_files(limits), Some(1024.0));
        assert_eq!(max_files("Max open files            unlimited            unlimited            files"), None);
    }
}
