//! Runs the real `forebay` binary in front of the test control plane.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use crate::client::{Answer, HttpClient, Protocol};
use crate::process::{Process, Scratch};

/// From exec to a kubeconfig on disk. It writes it as soon as it listens, whatever upstream does.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// A running forebay. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Forebay {
    process: Process,
    kubeconfig: PathBuf,
    admin: String,
    // Last, so that the process is gone before its folder.
    _scratch: Scratch,
}

// === impl Forebay ===

impl Forebay {
    /// `forebay run` with the upstream of this kubeconfig; waits until it has written its own.
    pub(crate) async fn start(upstream: &Path) -> Self {
        Self::start_with(upstream, &[]).await
    }

    /// As `start`, with further flags.
    pub(crate) async fn start_with(upstream: &Path, flags: &[&str]) -> Self {
        let scratch = Scratch::new().unwrap();
        let kubeconfig = scratch.path().join("kubeconfig");
        let mut args = vec![
            "run".to_owned(),
            format!("--kubeconfig={}", upstream.display()),
            "--secure-port=0".to_owned(),
            "--admin-address=127.0.0.1:0".to_owned(),
            format!("--write-kubeconfig={}", kubeconfig.display()),
        ];
        args.extend(flags.iter().map(|&flag| flag.to_owned()));
        // Another build, such as a release build, can be put under the same tests.
        let program =
            std::env::var_os("FOREBAY_TEST_BINARY").map_or(env!("CARGO_BIN_EXE_forebay").into(), PathBuf::from);
        let mut process =
            Process::start("forebay", scratch.path(), &program, &args, &[("NO_COLOR", "1"), ("RUST_BACKTRACE", "1")])
                .unwrap();
        let deadline = Instant::now() + START_DEADLINE;
        let admin = loop {
            if kubeconfig.is_file()
                && let Some(address) = admin_address(&process.log())
            {
                break format!("http://{address}");
            }
            let log = process.log_tail(20);
            assert!(process.exited().is_none(), "forebay ended at once:\n{log}");
            assert!(
                Instant::now() < deadline,
                "forebay: no kubeconfig and admin address after {START_DEADLINE:?}:\n{log}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        Self { process, kubeconfig, admin, _scratch: scratch }
    }

    /// The kubeconfig it has written, for clients.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A client with forebay's own token.
    pub(crate) async fn client(&self) -> HttpClient {
        HttpClient::from_kubeconfig(&self.kubeconfig, Protocol::Http1).await
    }

    pub(crate) async fn client_over(&self, protocol: Protocol) -> HttpClient {
        HttpClient::from_kubeconfig(&self.kubeconfig, protocol).await
    }

    /// GET on the admin port.
    pub(crate) async fn admin(&self, path: &str) -> Answer {
        HttpClient::plain(&self.admin).get(path).await
    }

    /// Its stderr so far.
    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    pub(crate) fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// From the line `... admin listening addr=127.0.0.1:NNNN`.
fn admin_address(log: &str) -> Option<&str> {
    let line = log.lines().find(|line| line.contains("admin listening"))?;
    let address = line.split_once("addr=")?.1;
    let end = address.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | ':'))).unwrap_or(address.len());
    Some(&address[..end]).filter(|address| !address.is_empty())
}

#[test]
fn admin_address_is_found_in_a_log() {
    let log = "x INFO starting\n2026 INFO forebay::admin: admin listening addr=127.0.0.1:6481\n";
    assert_eq!(admin_address(log), Some("127.0.0.1:6481"));
    assert_eq!(admin_address("admin listening addr=127.0.0.1:1\x1b[0m x"), Some("127.0.0.1:1"));
    assert_eq!(admin_address("nothing yet"), None);
}
