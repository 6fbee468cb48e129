//! Child processes and scratch folders that never outlive the test process, however it ends.
//!
//! Neither destructors of statics nor any destructor after a SIGKILL run, so the ends are tied to a pipe: each child is
//! started by a small shell that waits for end-of-file on its stdin, whose other end only this process holds. The kernel
//! closes it when this process is gone, and the shell kills the child or removes the folder.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use tokio::time::Instant;

/// Runs `"$@"` with the pipe as lifeline; its exit code is the program's. `$1` is where the program's pid goes.
const LIFELINE: &str = r#"
exec 3<&0
pidfile=$1; shift
"$@" 3<&- </dev/null &
pid=$!
echo $pid >"$pidfile.new" && mv "$pidfile.new" "$pidfile"
(cat >/dev/null; kill -9 $pid) <&3 3<&- >/dev/null 2>&1 &
watcher=$!
wait $pid
code=$?
kill $watcher
exit $code
"#;

/// Removes `$1` once the pipe is closed; again, because what is being killed at the same moment may still write.
const JANITOR: &str = r#"cat >/dev/null; for i in 1 2 3 4 5 6 7 8 9; do rm -rf "$1" 2>/dev/null && [ ! -e "$1" ] && exit; sleep 0.2; done"#;

/// A running program. Dropping it kills the program with SIGKILL and waits for its end.
#[derive(Debug)]
pub(crate) struct Process {
    shell: Child,
    pid_file: PathBuf,
    log: PathBuf,
}

/// A folder that disappears with this value or with the test process.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    janitor: Child,
}

// === impl Process ===

impl Process {
    /// Starts `program`; stdout and stderr go to `<dir>/<name>.log`.
    pub(crate) fn start(
        name: &str,
        dir: &Path,
        program: &Path,
        args: &[String],
        env: &[(&str, &str)],
    ) -> io::Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let output = File::create(&log)?;
        let pid_file = dir.join(format!("{name}.pid"));
        let _ = fs::remove_file(&pid_file);
        let shell = Command::new("sh")
            .args(["-c", LIFELINE, "sh"])
            .arg(&pid_file)
            .arg(program)
            .args(args)
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        Ok(Self { shell, pid_file, log })
    }

    /// The program's own pid, once it has been started.
    pub(crate) fn pid(&self) -> Option<u32> {
        fs::read_to_string(&self.pid_file).ok()?.trim().parse().ok()
    }

    /// Its exit status, once it has ended.
    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.shell.try_wait().ok().flatten()
    }

    /// Everything it has written to its log so far.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The last lines of its log, for a failure message.
    pub(crate) fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let tail: Vec<&str> = log.lines().rev().take(lines).collect();
        tail.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// SIGKILL; returns when it is gone.
    pub(crate) fn kill(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }

    /// Asks it to end (SIGTERM) and waits for it; `None` when it is still there at the deadline.
    pub(crate) fn terminate(&mut self, within: Duration) -> Option<ExitStatus> {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.pid()?).ok()?);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).ok()?;
        let deadline = Instant::now() + within;
        while Instant::now() < deadline {
            if let Some(status) = self.exited() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

// === impl Scratch ===

impl Scratch {
    pub(crate) fn new() -> io::Result<Self> {
        let path = tempfile::Builder::new().prefix("forebay-cluster-").tempdir()?.keep();
        let janitor = Command::new("sh")
            .args(["-c", JANITOR, "sh"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { path, janitor })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.janitor.stdin.take());
        let _ = self.janitor.wait();
    }
}

/// Whether a process with this pid is running (a zombie is not).
pub(crate) fn alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with('Z')))
}
