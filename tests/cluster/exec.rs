//! exec, attach, port-forward, cp and logs against a kubelet that answers, with kubectl over SPDY and over WebSocket: the
//! same through forebay as directly, to the byte.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

use crate::control_plane::ControlPlane;
use crate::fixtures::{eventually, in_namespace};
use crate::forebay::Forebay;
use crate::kubelet::Kubelet;
use crate::programs::kubectl_command;
use crate::users::{Role, User, Users, object};

const LIMIT: Duration = Duration::from_secs(120);
const MEGABYTE: usize = 1_000_000;
/// What kubectl speaks to the API server; `true` is WebSocket.
const PROTOCOLS: [&str; 2] = ["false", "true"];

/// A pod that runs, and two ways to it with the same rights.
struct Rig {
    plane: &'static ControlPlane,
    _node: Kubelet,
    namespace: String,
    user: User,
    direct: PathBuf,
    forebay: Forebay,
}

// === impl Rig ===

impl Rig {
    /// `flags` are forebay's.
    async fn start(role: Role, flags: &[&str]) -> Self {
        let plane = ControlPlane::shared();
        let node = Kubelet::start(plane).await;
        let namespace = plane.namespace("exec").await;
        let rig = plane.client(&Users::rig()).with_user_agent("rig");
        let containers = json!([{"name": "main", "image": "main:1"}, {"name": "ghost", "image": "absent"}]);
        let pod = json!({"spec": {"nodeName": node.node, "containers": containers}});
        let pods = in_namespace("/api/v1/pods", &namespace);
        rig.post(&pods, &object("v1", "Pod", "runner", pod)).await;
        let path = format!("{pods}/runner");
        let running = async || rig.get(&path).await.json()["status"]["phase"] == "Running";
        eventually(LIMIT, "the pod runs", running).await;
        let user = plane.user(role);
        let direct = plane.kubeconfig(&user);
        let forebay = Forebay::start_with(&direct, flags).await;
        Self { plane, _node: node, namespace, user, direct, forebay }
    }

    /// kubectl in the pod's namespace, through forebay, not started yet.
    async fn kubectl(&self, websocket: &str, args: &[&str]) -> Command {
        self.kubectl_to(self.forebay.kubeconfig(), websocket, args).await
    }

    async fn kubectl_to(&self, kubeconfig: &Path, websocket: &str, args: &[&str]) -> Command {
        let scope = format!("--namespace={}", self.namespace);
        let args: Vec<&str> = [scope.as_str()].into_iter().chain(args.iter().copied()).collect();
        let mut command = kubectl_command(kubeconfig, &args).await;
        command.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websocket).env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websocket);
        command
    }

    /// The same command directly and through forebay, with this on stdin: the same outcome, which is returned.
    async fn same(&self, websocket: &str, args: &[&str], input: &str) -> Output {
        let direct = finish(self.kubectl_to(&self.direct, websocket, args).await, input).await;
        let through = finish(self.kubectl(websocket, args).await, input).await;
        let text = |output: &Output| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            // kubectl logs this when a command ends before its stdin does, if it happens to be writing just then.
            let stderr: Vec<_> = text(&output.stderr)
                .lines()
                .filter(|l| !l.contains("Copying stdin failed"))
                .map(str::to_owned)
                .collect();
            (output.status.code(), text(&output.stdout), stderr)
        };
        assert_eq!(text(&through), text(&direct), "kubectl {args:?}, WebSocket {websocket}");
        through
    }

    /// How often forebay's identity asked for this subresource with this verb: GET is a WebSocket's, POST is SPDY's.
    fn upgrades(&self, subresource: &str, verb: &str) -> usize {
        let of = |e: &crate::audit::Entry| e.user() == self.user.name && e.namespace() == self.namespace;
        self.plane.audit().count(|e| of(e) && e.subresource() == subresource && e.verb == verb)
    }
}

async fn finish(mut command: Command, input: &str) -> Output {
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A command that ends before it has read everything is no mistake.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    output(child).await
}

async fn output(child: Child) -> Output {
    tokio::time::timeout(LIMIT, child.wait_with_output()).await.expect("kubectl ends").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_end_the_same() {
    let rig = Rig::start(Role::Editor, &[]).await;
    let sh = |script: &'static str| ["exec", "-i", "runner", "-c", "main", "--", "sh", "-c", script];
    for websocket in PROTOCOLS {
        let run = async |args: &[&str], input: &str| rig.same(websocket, args, input).await;
        // The end of stdin reaches the command, whose output still comes back afterwards.
        let output = run(&sh("cat; echo the end; echo aside >&2; exit 7"), "in\n").await;
        assert_eq!((output.status.code(), &*output.stdout), (Some(7), &b"in\nthe end\n"[..]), "{output:?}");
        assert!(output.stderr.starts_with(b"aside\n"), "{output:?}");
        // It need not read it.
        assert_eq!(run(&sh("exec <&-; exit 3"), "unread\n").await.status.code(), Some(3));
        let output = run(&["exec", "runner", "-c", "main", "--", "echo", "no stdin"], "").await;
        assert_eq!(output.stdout, b"no stdin\n");
        let output = run(&["attach", "-i", "runner", "-c", "main"], "echo\n").await;
        assert!(String::from_utf8_lossy(&output.stdout).ends_with("/runner/main\necho\n"), "{output:?}");
        // Errors before the switch of protocols: by the API server, by the kubelet, and by the command itself.
        for (args, message) in [
            (vec!["exec", "runner", "-c", "nobody", "--", "true"], "nobody"),
            (vec!["exec", "gone", "--", "true"], "\"gone\" not found"),
            (vec!["exec", "runner", "-c", "ghost", "--", "true"], "container not found (\"ghost\")"),
            (vec!["attach", "runner", "-c", "ghost"], "container not found (\"ghost\")"),
            (vec!["exec", "runner", "-c", "main", "--", "no-such-program"], "no-such-program"),
            (vec!["logs", "runner", "-c", "ghost"], "( pods/log runner)"),
        ] {
            let output = run(&args, "").await;
            assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
            assert!(String::from_utf8_lossy(&output.stderr).contains(message), "{args:?}: {output:?}");
        }
    }
    // Each protocol was spoken, directly and through forebay, and no WebSocket fell back to SPDY.
    let (get, create) = (rig.upgrades("exec", "get"), rig.upgrades("exec", "create"));
    assert!(get >= 10 && create >= 10, "{get} WebSockets, {create} SPDY connections");
    let refused = Rig::start(Role::Getter, &[]).await;
    for (websocket, verb) in PROTOCOLS.into_iter().zip(["create", "get"]) {
        let output = refused.same(websocket, &["exec", "runner", "-c", "main", "--", "true"], "").await;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && text.contains("cannot create resource \"pods/exec\""), "{text}");
        assert!(refused.upgrades("exec", verb) >= 2, "asked with {verb}");
    }
}

/// A terminal on both sides; its size goes as a stream of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_has_its_size() {
    let rig = Rig::start(Role::Editor, &[]).await;
    for websocket in PROTOCOLS {
        let inner = rig.kubectl(websocket, &["exec", "-it", "runner", "-c", "main", "--", "sh", "-c"]).await;
        let inner = inner.as_std();
        let words: Vec<_> =
            std::iter::once(inner.get_program()).chain(inner.get_args()).map(|w| w.to_str().unwrap()).collect();
        let typed = format!("stty rows 33 cols 91; {} 'echo $LINES by $COLUMNS'", words.join(" "));
        let mut terminal = Command::new("script");
        terminal.args(["-qec", &typed, "/dev/null"]).kill_on_drop(true).stdin(Stdio::piped()).stdout(Stdio::piped());
        terminal.envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))));
        let mut child = terminal.spawn().unwrap();
        let _stdin = child.stdin.take();
        let output = output(child).await;
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("33 by 91"), "WebSocket {websocket}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_megabytes_each_way() {
    let rig = Rig::start(Role::Editor, &[]).await;
    let dir = rig.plane.dir();
    let source = dir.join("source");
    std::fs::write(&source, noise(100 * MEGABYTE)).unwrap();
    for websocket in PROTOCOLS {
        let echo = dir.join(format!("echo-{websocket}"));
        let mut command = rig.kubectl(websocket, &["exec", "-i", "runner", "-c", "main", "--", "cat"]).await;
        command.stdin(std::fs::File::open(&source).unwrap()).stdout(std::fs::File::create(&echo).unwrap());
        let output = output(command.spawn().unwrap()).await;
        assert!(output.status.success(), "{output:?}");
        assert_equal_files(&source, &echo);

        // cp is tar at both ends.
        let small = dir.join("small");
        std::fs::write(&small, noise(50 * MEGABYTE)).unwrap();
        let (there, back) = (dir.join(format!("there-{websocket}")), dir.join(format!("back-{websocket}")));
        let remote = format!("runner:{}", there.display());
        for args in [[small.to_str().unwrap(), remote.as_str()], [&remote, back.to_str().unwrap()]] {
            let output = finish(rig.kubectl(websocket, &["cp", "-c", "main", args[0], args[1]]).await, "").await;
            assert!(output.status.success(), "cp {args:?}: {output:?}");
        }
        assert_equal_files(&small, &there);
        assert_equal_files(&small, &back);
    }
}

/// Bytes that no compression or repetition makes easier.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Not `assert_eq`, which would print them.
fn assert_equal_files(expected: &Path, found: &Path) {
    let (a, b) = (std::fs::read(expected).unwrap(), std::fs::read(found).unwrap());
    assert_eq!(a.len(), b.len(), "{}", found.display());
    assert!(a == b, "{}: same length, other bytes", found.display());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_connections_over_one_port_forward() {
    const CONNECTIONS: u64 = 24;
    let rig = Rig::start(Role::Editor, &[]).await;
    let port = upper_case_server().await;
    for (websocket, verb) in PROTOCOLS.into_iter().zip(["create", "get"]) {
        let (_kubectl, local) = port_forward(&rig, websocket, port).await;
        let mut connections = tokio::task::JoinSet::new();
        for n in 0..CONNECTIONS {
            connections.spawn(async move {
                let text: String = (0..40_000).map(|line| format!("connection {n} line {line}\n")).collect();
                let mut stream = TcpStream::connect(("127.0.0.1", local)).await.unwrap();
                let (mut from, mut to) = stream.split();
                let mut echo = Vec::new();
                let write = async {
                    to.write_all(text.as_bytes()).await.unwrap();
                    // The server answers the end with its own last words.
                    to.shutdown().await.unwrap();
                };
                let both = async { tokio::join!(write, from.read_to_end(&mut echo)).1.unwrap() };
                tokio::time::timeout(LIMIT, both).await.unwrap_or_else(|_| panic!("connection {n} is stuck"));
                assert!(
                    echo == format!("{}BYE\n", text.to_uppercase()).into_bytes(),
                    "connection {n}: {} bytes",
                    echo.len()
                );
            });
        }
        while let Some(done) = connections.join_next().await {
            done.unwrap();
        }
        assert!(rig.upgrades("portforward", verb) >= 1, "{verb}");
    }
}

/// Sends everything back in capitals, and a word after the client's half-close.
async fn upper_case_server() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = vec![0; 16 * 1024];
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    buffer[..read].make_ascii_uppercase();
                    if stream.write_all(&buffer[..read]).await.is_err() {
                        return;
                    }
                }
                let _ = stream.write_all(b"BYE\n").await;
            });
        }
    });
    port
}

/// `kubectl port-forward`, and the local port it listens on.
async fn port_forward(rig: &Rig, websocket: &str, port: u16) -> (Child, u16) {
    let mut child = rig.kubectl(websocket, &["port-forward", "runner", &format!(":{port}")]).await.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(LIMIT, lines.next_line()).await.expect("a line").unwrap().expect("a line");
    let local = line.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    // It tells each connection; nobody may close its stdout.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, local.unwrap_or_else(|| panic!("no local port in {line}")))
}

/// Streams may be quiet for longer than any answer may take to begin, and pass a line at once when it comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quiet_streams_stay_open() {
    let rig = Rig::start(Role::Editor, &["--request-timeout=1s"]).await;
    let port = upper_case_server().await;
    let log = async |line: &str| {
        let script = format!("echo {line} >>$LOG");
        let args = ["exec", "runner", "-c", "main", "--", "sh", "-c", &script];
        let output = finish(rig.kubectl_to(&rig.direct, "true", &args).await, "").await;
        assert!(output.status.success(), "{output:?}");
    };
    let mut logs = rig.kubectl("true", &["logs", "-f", "runner", "-c", "main"]).await.spawn().unwrap();
    let mut logs = (BufReader::new(logs.stdout.take().unwrap()).lines(), logs);
    log("first").await;
    assert_eq!(line(&mut logs.0).await, "first");
    let mut shells = Vec::new();
    let mut forwards = Vec::new();
    for websocket in PROTOCOLS {
        let args = ["exec", "-i", "runner", "-c", "main", "--", "cat"];
        let mut shell = rig.kubectl(websocket, &args).await.spawn().unwrap();
        let (stdin, stdout) = (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
        shells.push((stdin, BufReader::new(stdout).lines(), shell));
        let (kubectl, local) = port_forward(&rig, websocket, port).await;
        forwards.push((BufReader::new(TcpStream::connect(("127.0.0.1", local)).await.unwrap()), kubectl));
    }
    for round in ["before", "after"] {
        for (stdin, lines, _) in &mut shells {
            stdin.write_all(format!("{round}\n").as_bytes()).await.unwrap();
            assert_eq!(line(lines).await, round);
        }
        for (stream, _) in &mut forwards {
            stream.write_all(format!("{round}\n").as_bytes()).await.unwrap();
            assert_eq!(line(&mut stream.lines()).await, round.to_uppercase());
        }
        if round == "before" {
            // The quiet itself: three times what forebay waits for the head of an answer.
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
    }
    log("last").await;
    assert_eq!(line(&mut logs.0).await, "last");
}

async fn line<R: tokio::io::AsyncBufRead + Unpin>(lines: &mut tokio::io::Lines<R>) -> String {
    tokio::time::timeout(LIMIT, lines.next_line()).await.expect("a line in time").unwrap().expect("a line")
}

/// What nobody reads stays where it is made: forebay holds a few buffers, not the stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_holds_the_writer_back() {
    const MEGABYTES: usize = 300;
    let mut rig = Rig::start(Role::Editor, &[]).await;
    let pid = rig.forebay.process().pid().unwrap();
    for websocket in PROTOCOLS {
        let progress = rig.plane.dir().join("progress");
        let script = format!(
            "for i in $(seq {MEGABYTES}); do head -c {MEGABYTE} /dev/zero; echo $i >{0}.new; mv {0}.new {0}; done",
            progress.display()
        );
        let before = resident_bytes(pid);
        let args = ["exec", "runner", "-c", "main", "--", "sh", "-c", &script];
        let mut child = rig.kubectl(websocket, &args).await.spawn().unwrap();
        let written = || std::fs::read_to_string(&progress).map_or(0, |text| text.trim().parse::<usize>().unwrap());
        eventually(LIMIT, "the first megabyte", async || written() > 0).await;
        // Until nothing has moved for a second.
        let mut last = (written(), tokio::time::Instant::now());
        while last.1.elapsed() < Duration::from_secs(1) {
            tokio::time::sleep(Duration::from_millis(50)).await;
            if written() != last.0 {
                last = (written(), tokio::time::Instant::now());
            }
        }
        let grown = resident_bytes(pid).saturating_sub(before);
        assert!(last.0 < MEGABYTES, "WebSocket {websocket}: all of it was taken although nobody reads");
        assert!(grown < 24 * MEGABYTE, "WebSocket {websocket}: {grown} bytes more after {} MB", last.0);

        let mut stdout = child.stdout.take().unwrap();
        let mut buffer = vec![0; 256 * 1024];
        let mut read = 0;
        let drain = async {
            while let size @ 1.. = stdout.read(&mut buffer).await.unwrap() {
                read += size;
            }
        };
        tokio::time::timeout(LIMIT, drain).await.expect("it goes on as soon as it is read");
        assert_eq!(read, MEGABYTES * MEGABYTE, "WebSocket {websocket}");
        assert!(output(child).await.status.success());
        std::fs::remove_file(&progress).unwrap();
    }
}

fn resident_bytes(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}
