//! Runs `forebay` as a process: to its end, or in front of the scripted API server.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use tokio::time::Instant;

/// The program under test.
pub(crate) const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay");

/// Far above anything that passes, the demo included.
const PATIENCE: Duration = Duration::from_secs(180);

pub(crate) struct Output {
    /// `None` after a signal.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command to its end.
pub(crate) fn finish(mut command: Command) -> Output {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let read = |mut from: Box<dyn Read + Send>| {
        thread::spawn(move || {
            let mut text = String::new();
            from.read_to_string(&mut text).unwrap();
            text
        })
    };
    let stdout = read(Box::new(child.stdout.take().unwrap()));
    let stderr = read(Box::new(child.stderr.take().unwrap()));
    let deadline = Instant::now() + PATIENCE;
    let code = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("{command:?} does not end");
        }
        thread::sleep(Duration::from_millis(10));
    };
    Output { code, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// `forebay run`, killed when dropped.
pub(crate) struct Running {
    child: Child,
    /// For clients.
    pub(crate) kubeconfig: PathBuf,
    /// Address of the admin port.
    pub(crate) admin: String,
}

// === impl Running ===

impl Running {
    /// Starts it on ports of the kernel's choice; its files go to `folder`.
    pub(crate) fn start(upstream: &Path, folder: &Path, flags: &[&str]) -> Self {
        let kubeconfig = folder.join("kubeconfig-forebay");
        let mut child = Command::new(FOREBAY)
            .args(["run", "--secure-port=0", "--admin-address=127.0.0.1:0"])
            .arg(format!("--kubeconfig={}", upstream.display()))
            .arg(format!("--write-kubeconfig={}", kubeconfig.display()))
            .args(flags)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let (said, admin) = mpsc::channel();
        // Reads on to the end, so that the pipe is never full.
        thread::spawn(move || {
            let mut seen = String::new();
            for line in log.lines().map_while(Result::ok) {
                if let Some((_, address)) =
                    line.split_once("admin listening").and_then(|(_, rest)| rest.split_once("addr="))
                {
                    let _ = said.send(Ok(address.split_whitespace().next().unwrap_or_default().to_owned()));
                }
                seen = format!("{seen}{line}\n");
            }
            let _ = said.send(Err(seen));
        });
        let admin = admin.recv_timeout(Duration::from_secs(30)).expect("an admin address in the log in time");
        let admin = admin.unwrap_or_else(|log| panic!("forebay ended at once:\n{log}"));
        assert!(fs::exists(&kubeconfig).unwrap());
        Self { child, kubeconfig, admin }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
