//! Runs the Go programs of these tests, kube-controller-manager and kubectl against a kubeconfig.

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::build::{CLIENTS, KUBECTL, Program};

/// A running Go program that reports JSON lines: a subcommand of `forebay-clients`, or another one. It ends when this value
/// is dropped, or with the test process.
#[derive(Debug)]
pub(crate) struct GoClient {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    what: String,
}

// === impl GoClient ===

impl GoClient {
    /// A subcommand of `forebay-clients`.
    pub(crate) async fn start(subcommand: &str, kubeconfig: &Path, args: &[&str], env: &[(&str, &str)]) -> Self {
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        let args: Vec<&str> = [subcommand, &kubeconfig].into_iter().chain(args.iter().copied()).collect();
        Self::start_program(&CLIENTS, &args, env).await
    }

    pub(crate) async fn start_program(program: &'static Program, args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut child = Command::new(built(program).await)
            .args(args)
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        Self { child, stdin, lines: BufReader::new(stdout).lines(), what: args.join(" ") }
    }

    /// The next line of its report; `None` at the end. Panics when nothing comes for too long.
    pub(crate) async fn next(&mut self, within: Duration) -> Option<Value> {
        let line = tokio::time::timeout(within, self.lines.next_line())
            .await
            .unwrap_or_else(|_| panic!("{}: no line within {within:?}", self.what))
            .unwrap()?;
        Some(serde_json::from_str(&line).unwrap_or_else(|e| panic!("{}: {e}: {line}", self.what)))
    }

    /// Lines up to and including the one with this event.
    pub(crate) async fn until(&mut self, event: &str, within: Duration) -> Vec<Value> {
        let what = format!("{}: {event} was not reported within {within:?}", self.what);
        let read = async {
            let mut seen = Vec::new();
            while let Some(line) = self.next(within).await {
                seen.push(line);
                if seen.last().unwrap()["event"] == event {
                    return seen;
                }
            }
            panic!("{}: ended without {event}", self.what);
        };
        tokio::time::timeout(within, read).await.unwrap_or_else(|_| panic!("{what}"))
    }

    /// Closes its stdin, which asks it to report and end.
    pub(crate) fn close(&mut self) {
        self.stdin = None;
    }

    /// Waits for its end; panics unless it succeeded.
    pub(crate) async fn finish(mut self, within: Duration) {
        self.close();
        let status = tokio::time::timeout(within, self.child.wait()).await;
        let status = status.unwrap_or_else(|_| panic!("{} has not ended within {within:?}", self.what)).unwrap();
        assert!(status.success(), "{}: {status}", self.what);
    }
}

/// Runs kubectl to its end, with a cache folder of its own.
pub(crate) async fn kubectl(kubeconfig: &Path, args: &[&str]) -> Output {
    kubectl_with_input(kubeconfig, args, "").await
}

/// As `kubectl`, with something on stdin.
pub(crate) async fn kubectl_with_input(kubeconfig: &Path, args: &[&str], input: &str) -> Output {
    let mut child = kubectl_command(kubeconfig, args).await.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stdin, input.as_bytes()).await.unwrap();
    drop(stdin);
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, child.wait_with_output())
        .await
        .unwrap_or_else(|_| panic!("kubectl {args:?} has not ended within {limit:?}"))
        .unwrap()
}

/// A kubectl that is not started yet, all its streams piped.
pub(crate) async fn kubectl_command(kubeconfig: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(built(&KUBECTL).await);
    command
        .env("KUBECONFIG", kubeconfig)
        .arg(format!("--cache-dir={}", kubeconfig.with_extension("kubectl-cache").display()))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// The ready program; building it does not block the test's runtime.
pub(crate) async fn built(program: &'static Program) -> std::path::PathBuf {
    tokio::task::spawn_blocking(|| program.path()).await.unwrap().unwrap_or_else(|why| panic!("{why}"))
}
