//! The command line as a process: what it prints and the code it ends with.

use std::{
    io::{Read, Write},
    net::TcpListener,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Far above anything that passes.
const PATIENCE: Duration = Duration::from_secs(60);

struct Output {
    code: i32,
    stdout: String,
    stderr: String,
}

/// Runs the program with nothing but these variables in its environment.
fn forebay(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(args).env_clear().envs(env.iter().copied());
    let mut process =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
    let read = |mut from: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut text = String::new();
            from.read_to_string(&mut text).map(|_| text)
        })
    };
    let stdout = read(Box::new(process.stdout.take().expect("stdout")));
    let stderr = read(Box::new(process.stderr.take().expect("stderr")));
    let started = Instant::now();
    let status = loop {
        if let Some(status) = process.try_wait().expect("wait") {
            break status;
        }
        if started.elapsed() > PATIENCE {
            process.kill().expect("kill");
            panic!("forebay {args:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text =
        |thread: std::thread::JoinHandle<std::io::Result<String>>| thread.join().expect("thread").expect("utf-8");
    Output { code: status.code().expect("no signal"), stdout: text(stdout), stderr: text(stderr) }
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("temp file");
    file.write_all(text.as_bytes()).expect("write");
    file
}

fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().expect("utf-8")
}

#[test]
fn wrong_invocations_end_with_2_and_one_line() {
    for (args, want) in [
        (
            &["run", "--bind-adress=::1"][..],
            "error: unexpected argument '--bind-adress' found; a similar argument exists",
        ),
        (&["walk"], "error: unrecognized subcommand 'walk'"),
        (&["run", "--secure-port=http"], "error: --secure-port \"http\": expected a port number, 0 to 65535\n"),
        (
            &["exec", "--admin-address=localhost:1", "--", "true"],
            "error: --admin-address \"localhost:1\": expected an address",
        ),
        (
            &["wait", "--url=https://127.0.0.1:1/readyz"],
            "error: --url https://127.0.0.1:1/readyz: expected an http URL",
        ),
        (&["run", "--config=/nonexistent.yaml"], "error: --config /nonexistent.yaml: can't be read: No such file"),
    ] {
        let output = forebay(args, &[]);
        assert!(output.stderr.starts_with(want), "{args:?}: {}", output.stderr);
        assert_eq!((output.code, output.stderr.lines().count(), output.stdout.as_str()), (2, 1, ""), "{args:?}");
    }
}

#[test]
fn without_a_command_the_help_is_an_error_and_asked_for_it_is_not() {
    let output = forebay(&[], &[]);
    assert_eq!((output.code, output.stdout.as_str()), (2, ""));
    assert!(output.stderr.contains("forebay exec -- ./my-controller"), "{}", output.stderr);
    for args in [&["--help"][..], &["run", "--help"], &["exec", "--help"], &["wait", "--help"]] {
        let output = forebay(args, &[]);
        assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{args:?}");
        assert!(output.stdout.contains("Examples:"), "{}", output.stdout);
    }
}

#[test]
fn bad_values_from_everywhere_are_reported_together() {
    let file = file("maxHolds: -1\nsecurePort: 6480\nholdTimout: 5s\n");
    let output =
        forebay(&["run", "--config", path(&file), "--preload=pods.", "-v11"], &[("FOREBAY_ON_HOLD_TIMEOUT", "wait")]);
    assert_eq!(output.code, 2);
    let lines: Vec<&str> = output.stderr.lines().collect();
    assert_eq!(lines[0], "error: 5 problems in the configuration:");
    for want in [
        format!("  maxHolds: \"-1\" in {}: expected a whole number", path(&file)),
        format!("  key \"holdTimout\" in {} is unknown: did you mean \"holdTimeout\"?", path(&file)),
        "  --preload \"pods.\": expected a plural resource name".to_owned(),
        "  --v \"11\": expected a whole number, 0 to 10".to_owned(),
        "  FOREBAY_ON_HOLD_TIMEOUT=\"wait\": expected reject or forward".to_owned(),
    ] {
        assert!(lines[1..].iter().any(|line| line.starts_with(&want)), "{want}\nis not in\n{}", output.stderr);
    }
    assert_eq!(lines.len(), 6, "{}", output.stderr);
}

#[test]
fn a_dry_run_prints_a_configuration_that_can_be_used_as_a_file() {
    // Kubelet sets variables like these for a Service that is called forebay.
    let env = [
        ("FOREBAY_PORT", "tcp://10.0.0.1:6480"),
        ("FOREBAY_SERVICE_HOST", "10.0.0.1"),
        ("FOREBAY_HOLD_TIMEOUT", "90s"),
        ("XDG_RUNTIME_DIR", "/run/user/1"),
    ];
    let first = forebay(&["run", "--dry-run", "--preload=pods,apps/v1/deployments", "--secure-port=0"], &env);
    assert_eq!((first.code, first.stderr.as_str()), (0, ""));
    for want in ["securePort: 0\n", "holdTimeout: 1m30s\n", "apps/v1/deployments\n", "/run/user/1/forebay/kubeconfig\n"]
    {
        assert!(first.stdout.contains(want), "{want}\nis not in\n{}", first.stdout);
    }
    let file = file(&first.stdout);
    let second = forebay(&["run", "--dry-run", "--config", path(&file)], &[]);
    assert_eq!((second.code, second.stdout), (0, first.stdout), "{}", second.stderr);
}

#[test]
fn the_version_is_printed_for_people_and_programs() {
    let version = env!("CARGO_PKG_VERSION");
    for args in [&["version"][..], &["--version"]] {
        assert_eq!(forebay(args, &[]).stdout, format!("forebay {version}\n"));
    }
    let json: serde_json::Value = serde_json::from_str(&forebay(&["version", "-o", "json"], &[]).stdout).expect("json");
    assert_eq!(json["version"], version);
}

#[test]
fn exec_does_not_nest() {
    let output = forebay(&["exec", "--", "true"], &[("FOREBAY_ACTIVE", "1")]);
    assert_eq!(output.code, 2);
    assert!(
        output.stderr.starts_with("error: already inside forebay exec (FOREBAY_ACTIVE is set)"),
        "{}",
        output.stderr
    );
}

#[test]
fn wait_says_what_is_missing_and_gives_up_in_time() {
    // Bound and closed again: nobody answers there.
    let address = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("address").to_string();
    let output = forebay(&["wait", "--timeout=300ms"], &[("FOREBAY_ADMIN_ADDRESS", &address)]);
    assert_eq!(output.code, 1);
    let want = format!("no forebay answers at {address}: Connection refused");
    assert!(output.stderr.starts_with(&format!("waiting: {want}")), "{}", output.stderr);
    assert!(output.stderr.contains(&format!("error: not ready after 300ms: {want}")), "{}", output.stderr);
}

#[test]
fn wait_shows_progress_and_ends_when_ready() {
    let socket = TcpListener::bind("127.0.0.1:0").expect("bind");
    let url = format!("http://{}/readyz", socket.local_addr().expect("address"));
    let server = std::thread::spawn(move || {
        let failed = "[+]ping ok\n[-]cache-sync/v1/pods failed: reason withheld (3/4 objects)\nreadyz check failed\n";
        for (status, body) in
            [("500 Internal Server Error", failed), ("500 Internal Server Error", failed), ("200 OK", "ok")]
        {
            let (mut stream, _) = socket.accept().expect("accept");
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).expect("request");
                request.push(byte[0]);
            }
            assert!(request.starts_with(b"GET /readyz HTTP/1.1\r\n"));
            write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).expect("answer");
        }
    });
    let output = forebay(&["wait", "--url", &url], &[]);
    assert_eq!(output.code, 0, "{}", output.stderr);
    // The same state twice is said once.
    assert!(output.stderr.starts_with("waiting: cache-sync/v1/pods (3/4 objects)\nready after "), "{}", output.stderr);
    server.join().expect("server");
}
