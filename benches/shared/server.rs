//! A server in a process of its own, ready when its kubeconfig is there.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use tokio::time::{Instant, sleep};

use crate::{process::Process, target::Target, usage::Usage};

/// From the start of a process to the file that says it is ready.
const START: Duration = Duration::from_secs(120);

/// It ends with this value.
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) usage: Usage,
    pub(crate) target: Target,
}

// === impl Server ===

impl Server {
    /// Waits until a process has written its kubeconfig.
    pub(crate) async fn ready(name: &str, mut process: Process, kubeconfig: &Path) -> Result<Self> {
        let deadline = Instant::now() + START;
        while !kubeconfig.is_file() {
            ensure!(process.exited().is_none(), "{name} ended at once:\n{}", process.log_tail(10));
            ensure!(Instant::now() < deadline, "{name} is not ready after {START:?}:\n{}", process.log_tail(10));
            sleep(Duration::from_millis(10)).await;
        }
        let pid = process.pid().with_context(|| format!("{name} has no pid"))?;
        Ok(Self { process, usage: Usage::of(pid), target: Target::from_kubeconfig(kubeconfig)? })
    }

    /// Starts forebay in front of the server of this kubeconfig; its own is `dir/forebay.kubeconfig`.
    pub(crate) async fn forebay(dir: &Path, upstream: &Path, flags: &[&str]) -> Result<Self> {
        let kubeconfig: PathBuf = dir.join("forebay.kubeconfig");
        let _ = fs::remove_file(&kubeconfig);
        let mut args = vec![
            "run".to_owned(),
            format!("--kubeconfig={}", upstream.display()),
            "--secure-port=0".to_owned(),
            "--admin-address=127.0.0.1:0".to_owned(),
            format!("--write-kubeconfig={}", kubeconfig.display()),
        ];
        args.extend(flags.iter().map(|&flag| flag.to_owned()));
        let program = Path::new(env!("CARGO_BIN_EXE_forebay"));
        let process = Process::start("forebay", dir, program, &args, &[("NO_COLOR", "1")])?;
        Self::ready("forebay", process, &kubeconfig).await
    }
}
