//! Builds the programs of the test control plane from their Go modules, on first use.
//!
//! A built program stays in `$XDG_CACHE_HOME/forebay/bin` (`~/.cache/forebay/bin`), outside the Rust target folder, under
//! a name that holds a hash of all it was built from; a changed `go.mod` or source is a new program. A file lock makes
//! concurrent test runs build it once. `KUBEBUILDER_ASSETS` (envtest's convention) names a folder of ready binaries, which
//! are taken first. Nothing is ever skipped: without a binary and without Go the caller gets one line that says what to
//! install.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::time::Instant;

/// Where a program comes from.
pub(crate) struct Program {
    /// Name of the binary, also in `KUBEBUILDER_ASSETS`.
    name: &'static str,
    /// Folder under `tests/cluster` with its `go.mod`.
    module: &'static str,
    /// What `go build` is asked for.
    package: &'static str,
    ldflags: &'static str,
    /// Roughly how long a cold build takes on two cores.
    cold: &'static str,
}

pub(crate) const ETCD: Program =
    Program { name: "etcd", module: "etcd", package: ".", ldflags: "-s -w", cold: "half a minute" };
pub(crate) const KUBE_APISERVER: Program =
    kubernetes("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", "5 minutes");
pub(crate) const KUBE_CONTROLLER_MANAGER: Program =
    kubernetes("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager", "3 minutes");
pub(crate) const KUBECTL: Program = kubernetes("kubectl", "k8s.io/kubernetes/cmd/kubectl", "a minute");
pub(crate) const CLIENTS: Program =
    Program { name: "forebay-clients", module: "clients", package: ".", ldflags: "-s -w", cold: "2 minutes" };
pub(crate) const KUBELET: Program =
    Program { name: "forebay-kubelet", module: "kubelet", package: ".", ldflags: "-s -w", cold: "a minute" };

/// Without the version flag clients misjudge the server: it would call itself v0.0.0-master.
const fn kubernetes(name: &'static str, package: &'static str, cold: &'static str) -> Program {
    let ldflags = "-s -w -X k8s.io/component-base/version.gitVersion=v1.37.2";
    Program { name, module: "kubernetes", package, ldflags, cold }
}

// === impl Program ===

impl Program {
    /// The path of the ready program. Blocks while it, or another one, is being built.
    ///
    /// # Errors
    /// One line that says what to install, or the end of the compiler's output.
    pub(crate) fn path(&self) -> Result<PathBuf, String> {
        if let Some(ready) = std::env::var_os("KUBEBUILDER_ASSETS").map(|dir| PathBuf::from(dir).join(self.name))
            && ready.is_file()
        {
            return Ok(ready);
        }
        let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster").join(self.module);
        let bin = cache_dir()?.join("bin");
        let target = bin.join(format!("{}-{:016x}", self.name, self.fingerprint(&module)?));
        if target.is_file() {
            return Ok(target);
        }
        let text = |what: &str, error: std::io::Error| format!("{what} {}: {error}", bin.display());
        fs::create_dir_all(&bin).map_err(|e| text("cannot create", e))?;
        let lock = File::create(bin.join("build.lock")).map_err(|e| text("cannot lock", e))?;
        if lock.try_lock().is_err() {
            tell(&format!("{}: waiting for another build to finish", self.name));
            lock.lock().map_err(|e| text("cannot lock", e))?;
        }
        if !target.is_file() {
            self.build(&module, &target)?;
        }
        Ok(target)
    }

    fn build(&self, module: &Path, target: &Path) -> Result<(), String> {
        let name = self.name;
        let started = Instant::now();
        let partial = target.with_extension(format!("partial-{}", std::process::id()));
        let log = target.with_extension("log");
        let output = File::create(&log).map_err(|e| format!("cannot write {}: {e}", log.display()))?;
        let mut child = Command::new("go")
            .current_dir(module)
            .env("CGO_ENABLED", "0")
            .env("GOWORK", "off")
            .args(["build", "-trimpath", "-buildvcs=false", "-ldflags", self.ldflags, "-o"])
            .arg(&partial)
            .arg(self.package)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .map_err(|_| {
                format!(
                    "no {name}: install Go 1.26 or newer (https://go.dev/dl) so that the tests can build it, or set \
                     KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver and kubectl 1.37 (setup-envtest use 1.37)"
                )
            })?;
        tell(&format!("{name}: building it with Go, once; this takes about {} on two cores", self.cold));
        let mut next_word = Duration::from_secs(30);
        let status = loop {
            if let Some(status) = child.try_wait().map_err(|e| format!("cannot wait for go build {name}: {e}"))? {
                break status;
            }
            std::thread::sleep(Duration::from_millis(200));
            if started.elapsed() >= next_word {
                tell(&format!("{name}: still building, {} s", next_word.as_secs()));
                next_word += Duration::from_secs(30);
            }
        };
        if !status.success() {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let tail: Vec<&str> = text.lines().rev().take(5).collect();
            return Err(format!("go build {name} failed: {}", tail.into_iter().rev().collect::<Vec<_>>().join(" | ")));
        }
        fs::rename(&partial, target).map_err(|e| format!("cannot move {name} into place: {e}"))?;
        let _ = fs::remove_file(&log);
        tell(&format!("{name}: built in {} s, {}", started.elapsed().as_secs(), target.display()));
        Ok(())
    }

    /// A hash of everything that decides what is built, the Go version aside.
    fn fingerprint(&self, module: &Path) -> Result<u64, String> {
        let text = |error: std::io::Error| format!("cannot read {}: {error}", module.display());
        let mut files: Vec<PathBuf> = fs::read_dir(module)
            .map_err(text)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|ext| ext == "go" || ext == "mod" || ext == "sum"))
            .collect();
        files.sort();
        let mut hash = fnv1a(0xcbf2_9ce4_8422_2325, self.package.as_bytes());
        hash = fnv1a(hash, self.ldflags.as_bytes());
        for file in files {
            hash = fnv1a(hash, &fs::read(file).map_err(text)?);
        }
        Ok(hash)
    }
}

fn cache_dir() -> Result<PathBuf, String> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache")))
        .ok_or("no folder for the built programs: set HOME or XDG_CACHE_HOME")?;
    Ok(base.join("forebay"))
}

fn fnv1a(seed: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(seed, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A line on the terminal, past the test harness, which captures only what the print macros write.
fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "[cluster] {line}");
}
