//! A live scrape of `/metrics`: promtool accepts it, and it has exactly the metrics that the README lists.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use forebay::testing::{ApiServer, Resource};
use kube::{Client, Config, config::Kubeconfig};

use crate::{markdown, program::Running};

/// One scrape of a forebay that has seen every kind of traffic: preload, hit, held, forward, write, watch, refusal, a resource
/// that the memory budget has no room for, and an event that makes no sense.
async fn scrape() -> String {
    let folder = tempfile::tempdir().unwrap();
    let upstream = ApiServer::builder().resources(Resource::usual()).start().await.unwrap();
    upstream.world().fill_deployments(2, 20).unwrap();
    upstream.world().fill_config_maps(2, 20).unwrap();
    upstream.world().fill_pods(2, 1_000).unwrap();
    let kubeconfig = upstream.write_kubeconfig(folder.path()).unwrap();
    let running = {
        let (kubeconfig, folder) = (kubeconfig.clone(), folder.path().to_owned());
        let start =
            move || Running::start(&kubeconfig, &folder, &["--preload=deployments.apps", "--memory-budget=1Mi"]);
        tokio::task::spawn_blocking(start).await.unwrap()
    };
    let kubeconfig = Kubeconfig::read_from(&running.kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
    let config_url = config.cluster_url.clone();
    let client = Client::try_from(config).unwrap();
    let send = |method: &'static str, path: &'static str, body: &'static str| {
        let request = http::Request::builder().method(method).uri(path).header("accept", "application/json");
        let request = request.header("content-type", "application/json").body(body.as_bytes().to_vec()).unwrap();
        client.request_text(request)
    };
    for path in ["/apis/apps/v1/deployments", "/api/v1/configmaps", "/api/v1/configmaps", "/api/v1/pods", "/version"] {
        send("GET", path, "").await.unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    let object = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default"}}"#;
    send("POST", "/api/v1/namespaces/default/configmaps", object).await.unwrap();
    send("GET", "/api/v1/namespaces/default/configmaps/a", "").await.unwrap();
    // A client that speaks no TLS.
    let server = config_url.authority().unwrap().to_string();
    tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(server).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        // Until forebay has closed it, which is when it has been counted.
        let _ = stream.read_to_end(&mut Vec::new());
    })
    .await
    .unwrap();
    let limit = Duration::from_secs(30);
    upstream.watches("deployments").wait_for(1, limit).await.unwrap();
    upstream.watches("deployments").inject("nonsense\n");
    let begun = tokio::time::Instant::now();
    loop {
        let admin = running.admin.clone();
        let scrape = tokio::task::spawn_blocking(move || get(&admin, "/metrics")).await.unwrap();
        if scrape.contains("forebay_store_odd_events_total{") {
            return scrape;
        }
        assert!(begun.elapsed() < limit, "the event was not counted: {scrape}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The body of a plain HTTP GET.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200") || head.starts_with("HTTP/1.1 200"), "{path}: {head}");
    body.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn promtool_accepts_a_scrape() {
    let promtool = promtool().unwrap_or_else(|why| panic!("{why}"));
    let metrics = scrape().await;
    let (code, said) = check(&promtool, &metrics);
    assert_eq!((code, said.as_str()), (Some(0), ""), "promtool check metrics complains of\n{metrics}");
    // And it would complain.
    let (code, said) = check(&promtool, "# TYPE a_total gauge\na_total 1\n");
    assert!(code != Some(0) && said.contains("a_total"), "{code:?}: {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_those_of_a_scrape() {
    let readme = markdown::table(&markdown::readme(), "Metrics");
    let scrape = scrape().await;
    let live: BTreeMap<&str, &str> = scrape
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .filter(|(name, _)| !name.starts_with("process_"))
        .collect();
    assert!(live.len() > 10, "{scrape}");
    for (name, kind) in &live {
        let row = readme.get(*name).unwrap_or_else(|| panic!("README.md lacks the metric {name} ({kind})"));
        assert_eq!(row[0], *kind, "README.md: type of {name}");
        let labels = labels(&scrape, name);
        let told = row[1].split(',').map(|label| label.trim().trim_matches('`')).filter(|label| !label.is_empty());
        assert_eq!(told.collect::<Vec<_>>(), labels, "README.md: labels of {name}");
    }
    for name in readme.keys() {
        assert!(live.contains_key(name.as_str()), "README.md has {name}, which a scrape does not");
    }
}

/// Names of the labels of a metric's first sample, those of buckets aside.
fn labels<'s>(scrape: &'s str, name: &str) -> Vec<&'s str> {
    let sample = scrape.lines().find(|line| !line.starts_with('#') && line.starts_with(name));
    let Some((_, labels)) = sample.and_then(|sample| sample.split_once('{')) else { return Vec::new() };
    let mut names = Vec::new();
    // No value of ours holds a quote.
    let mut rest = labels;
    while let Some((label, after)) = rest.split_once("=\"") {
        names.push(label.trim_start_matches(','));
        rest = after.split_once('"').map_or("", |(_, rest)| rest);
        if rest.starts_with('}') {
            break;
        }
    }
    names.retain(|label| *label != "le");
    names
}

/// From `PATH`, or from where `.ci/run` puts it.
fn promtool() -> Result<PathBuf, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|cache| cache.is_absolute());
    let cache = cache.or_else(|| env::home_dir().map(|home| home.join(".cache")));
    let folders = env::split_paths(&path).chain(cache.map(|cache| cache.join("forebay/tools")));
    folders.map(|folder| folder.join("promtool")).find(|program| program.is_file()).ok_or_else(|| {
        "promtool is missing: run .ci/run once, or install Debian's package prometheus (it starts a server) or any \
         other build of Prometheus"
            .to_owned()
    })
}

/// Exit code and messages of `promtool check metrics`.
fn check(promtool: &PathBuf, metrics: &str) -> (Option<i32>, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), metrics).unwrap();
    let output = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(fs::File::open(file.path()).unwrap())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    (output.status.code(), format!("{}{}", text(&output.stdout), text(&output.stderr)))
}
