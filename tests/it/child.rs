//! The real binary as a child process: started with nothing but what a test gives it, watched line by line, and gone
//! when the test is.

use std::{net::TcpListener, path::PathBuf, process::Stdio, sync::Arc};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    process::{Child, Command},
    sync::watch,
    task::JoinHandle,
};

use crate::{
    client::{Access, Client, Protocol, Reply},
    rig::within,
};

/// A running `forebay`. Dropping it kills it.
pub(crate) struct Process {
    child: Child,
    stderr: watch::Receiver<String>,
    reading: [JoinHandle<()>; 2],
    stdout: Arc<parking_lot::Mutex<String>>,
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit code; none if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// `forebay run`, listening.
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) admin_url: String,
    pub(crate) kubeconfig: PathBuf,
    _dir: tempfile::TempDir,
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).unwrap().port()
}

/// A kubeconfig whose server nobody answers for.
pub(crate) fn unreachable() -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:{}'}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: c}}}}]\nusers: [{{name: c, user: {{token: t}}}}]\n",
        free_port()
    )
}

// === impl Process ===

impl Process {
    /// Starts it with these arguments and this environment, and a PATH.
    pub(crate) fn start(args: &[&str], env: &[(&str, &str)]) -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(args).env_clear().env("PATH", path).envs(env.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let (tx, stderr) = watch::channel(String::new());
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let errors = tokio::spawn(async move {
            let mut line = Vec::new();
            while lines.read_until(b'\n', &mut line).await.is_ok_and(|n| n > 0) {
                tx.send_modify(|text| text.push_str(&String::from_utf8_lossy(&line)));
                line.clear();
            }
        });
        let (stdout, mut pipe) = (Arc::<parking_lot::Mutex<String>>::default(), child.stdout.take().unwrap());
        let to = stdout.clone();
        let output = tokio::spawn(async move {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes).await;
            *to.lock() = String::from_utf8_lossy(&bytes).into_owned();
        });
        Self { child, stderr, reading: [errors, output], stdout }
    }

    /// The first line of stderr that contains `part`, now or later.
    pub(crate) async fn line(&self, part: &str) -> String {
        let mut stderr = self.stderr.clone();
        let found = |text: &str| text.lines().find(|line| line.contains(part)).map(str::to_owned);
        let seen = within(part, stderr.wait_for(|text| found(text).is_some())).await;
        let line = seen.ok().and_then(|text| found(&text));
        line.unwrap_or_else(|| panic!("it ended without saying {part:?}:\n{}", self.stderr()))
    }

    /// Stderr so far.
    pub(crate) fn stderr(&self) -> String {
        self.stderr.borrow().clone()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id().expect("it runs")).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// Whether it has not ended yet.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end.
    pub(crate) async fn end(mut self) -> Ended {
        let status = within("its end", self.child.wait()).await.unwrap();
        for reading in self.reading {
            within("the end of its output", reading).await.unwrap();
        }
        Ended { code: status.code(), stdout: self.stdout.lock().clone(), stderr: self.stderr.borrow().clone() }
    }
}

// === impl Ended ===

impl Ended {
    /// Asserts that it ended with 1 and one line that says why, and gives that line.
    pub(crate) fn error(&self) -> &str {
        assert_eq!(self.code, Some(1), "{self:?}");
        assert!(!self.stderr.contains("panicked"), "{self:?}");
        let mut errors = self.stderr.lines().filter(|line| line.starts_with("error: "));
        let error = errors.next().unwrap_or_else(|| panic!("no error line: {self:?}"));
        assert_eq!((errors.next(), self.stderr.lines().last()), (None, Some(error)), "{self:?}");
        error
    }
}

// === impl Server ===

impl Server {
    /// `forebay run` in front of the upstream of this kubeconfig; waits until it listens.
    pub(crate) async fn start(upstream_kubeconfig: &str, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (upstream, kubeconfig) = (dir.path().join("upstream"), dir.path().join("kubeconfig"));
        std::fs::write(&upstream, upstream_kubeconfig).unwrap();
        let given = [
            "run".to_owned(),
            format!("--kubeconfig={}", upstream.display()),
            format!("--write-kubeconfig={}", kubeconfig.display()),
            "--secure-port=0".to_owned(),
            "--admin-address=127.0.0.1:0".to_owned(),
        ];
        let args: Vec<&str> = given.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        let process = Process::start(&args, &[]);
        let line = process.line("admin listening").await;
        let address: String =
            line.split("127.0.0.1:").nth(1).unwrap().chars().take_while(char::is_ascii_digit).collect();
        Self { process, admin_url: format!("http://127.0.0.1:{address}"), kubeconfig, _dir: dir }
    }

    pub(crate) fn access(&self) -> Access {
        Access::read(&self.kubeconfig)
    }

    pub(crate) fn client(&self, protocol: Protocol) -> Client {
        Client::of(&self.access(), protocol)
    }

    /// GET on the admin port.
    pub(crate) async fn admin(&self, path: &str) -> Reply {
        Client::plain(&self.admin_url).get(path).await
    }
}
