//! Builds the programs of these tests on first use: from Go modules, and two clients in other languages.
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

pub(crate) const CONTROLLERS: Program =
    Program { name: "forebay-controllers", module: "controllers", package: ".", ldflags: "-s -w", cold: "2 minutes" };

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
        let module = source(self.module);
        let hash = fingerprint(&module, &[self.package, self.ldflags])?;
        once(self.name, hash, |partial| {
            let mut go = Command::new("go");
            go.current_dir(&module)
                .env("CGO_ENABLED", "0")
                .env("GOWORK", "off")
                .args(["build", "-trimpath", "-buildvcs=false", "-ldflags", self.ldflags, "-o"])
                .arg(partial)
                .arg(self.package);
            tell(&format!("{}: building it with Go, once; this takes about {} on two cores", self.name, self.cold));
            run(self.name, go, partial).map_err(|why| match why {
                Failure::NotStarted => format!(
                    "no {}: install Go 1.26 or newer (https://go.dev/dl) so that the tests can build it, or set \
                     KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver and kubectl 1.37 (setup-envtest use 1.37)",
                    self.name
                ),
                Failure::Ended(why) => why,
            })
        })
    }
}

/// The kube-rs program, built by the Cargo that runs these tests.
pub(crate) fn kube_rs() -> Result<PathBuf, String> {
    const NAME: &str = "forebay-kube-rs";
    let package = source("kube-rs");
    let hash = fingerprint(&package, &[])?;
    once(NAME, hash, |partial| {
        let target = cache_dir()?.join("kube-rs");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&package).env("CARGO_TARGET_DIR", &target).args(["build", "--locked", "--quiet"]);
        tell(&format!("{NAME}: building it with Cargo, once; this takes about 2 minutes on two cores"));
        run(NAME, cargo, partial).map_err(|why| match why {
            Failure::NotStarted => format!("no {NAME}: there is no cargo in the PATH"),
            Failure::Ended(why) => why,
        })?;
        let built = target.join("debug").join(NAME);
        fs::copy(&built, partial).map_err(|e| format!("cannot copy {}: {e}", built.display())).map(drop)
    })
}

/// A Python with the packages of `python/requirements.txt`, in a virtual environment of its own.
pub(crate) fn python() -> Result<PathBuf, String> {
    const NAME: &str = "python";
    let hash = fingerprint(&source("python"), &[])?;
    let environment = once(NAME, hash, |partial| {
        let steps: [(&Path, &[&str]); 2] = [
            (Path::new("python3"), &["-m", "venv"]),
            (
                &partial.join("bin/python"),
                &[
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                    "--no-deps",
                    "-r",
                    "requirements.txt",
                ],
            ),
        ];
        tell(&format!("{NAME}: installing the Kubernetes client, once"));
        for (n, (program, args)) in steps.into_iter().enumerate() {
            let mut command = Command::new(program);
            command.current_dir(source("python")).args(args).args((n == 0).then_some(partial));
            run(NAME, command, partial).map_err(|why| match why {
                Failure::NotStarted => "no python3: install it with its venv module (python3-venv)".to_owned(),
                Failure::Ended(why) => why,
            })?;
        }
        Ok(())
    })?;
    Ok(environment.join("bin/python"))
}

/// A folder under `tests/cluster`.
pub(crate) fn source(module: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster").join(module)
}

/// `bin/NAME-HASH` in the cache, made under the lock if it is not there: `make` gets the path to make it at.
fn once(name: &str, hash: u64, make: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
    let bin = cache_dir()?.join("bin");
    let target = bin.join(format!("{name}-{hash:016x}"));
    if target.exists() {
        return Ok(target);
    }
    let text = |what: &str, error: std::io::Error| format!("{what} {}: {error}", bin.display());
    fs::create_dir_all(&bin).map_err(|e| text("cannot create", e))?;
    let lock = File::create(bin.join("build.lock")).map_err(|e| text("cannot lock", e))?;
    if lock.try_lock().is_err() {
        tell(&format!("{name}: waiting for another build to finish"));
        lock.lock().map_err(|e| text("cannot lock", e))?;
    }
    if !target.exists() {
        let started = Instant::now();
        let partial = target.with_extension(format!("partial-{}", std::process::id()));
        make(&partial)?;
        fs::rename(&partial, &target).map_err(|e| format!("cannot move {name} into place: {e}"))?;
        tell(&format!("{name}: built in {} s, {}", started.elapsed().as_secs(), target.display()));
    }
    Ok(target)
}

enum Failure {
    NotStarted,
    Ended(String),
}

/// Runs a step of a build, with a word now and then. Its output goes to a file beside `partial`, and is told if it fails.
fn run(name: &str, mut command: Command, partial: &Path) -> Result<(), Failure> {
    let started = Instant::now();
    let log = partial.with_extension("log");
    let ended = |what: &str, error: std::io::Error| Failure::Ended(format!("{name}: {what}: {error}"));
    let output = File::create(&log).map_err(|e| ended("cannot write a log", e))?;
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output).spawn().map_err(|_| Failure::NotStarted)?;
    let mut next_word = Duration::from_secs(30);
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|e| ended("cannot wait for the build", e))? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(200));
        if started.elapsed() >= next_word {
            tell(&format!("{name}: still building, {} s", next_word.as_secs()));
            next_word += Duration::from_secs(30);
        }
    };
    let text = fs::read_to_string(&log).unwrap_or_default();
    let _ = fs::remove_file(&log);
    if status.success() {
        return Ok(());
    }
    let tail: Vec<&str> = text.lines().rev().take(5).collect();
    Err(Failure::Ended(format!("building {name} failed: {}", tail.into_iter().rev().collect::<Vec<_>>().join(" | "))))
}

/// A hash of the files that decide what is built, and of what else does; the version of the toolchain aside.
fn fingerprint(module: &Path, more: &[&str]) -> Result<u64, String> {
    let text = |error: std::io::Error| format!("cannot read {}: {error}", module.display());
    let mut files = Vec::new();
    for folder in [module.to_owned(), module.join("src")] {
        // Only Rust packages have a `src`.
        let Ok(entries) = fs::read_dir(folder) else { continue };
        files.extend(entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| {
            path.extension()
                .is_some_and(|ext| ["go", "mod", "sum", "rs", "toml", "lock", "txt"].iter().any(|e| ext == *e))
        }));
    }
    files.sort();
    let mut hash = more.iter().fold(0xcbf2_9ce4_8422_2325, |hash, text| fnv1a(hash, text.as_bytes()));
    for file in files {
        hash = fnv1a(hash, &fs::read(file).map_err(text)?);
    }
    Ok(hash)
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
