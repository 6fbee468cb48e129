//! Layers, names and reports of the whole loader.

use std::{io::Write, time::Duration};

use clap::{Args, FromArgMatches};

use super::{settings::SETTINGS, *};

fn flags(args: &[&str]) -> Flags {
    let command = Flags::augment_args(clap::Command::new("test"));
    let matches = command.try_get_matches_from(std::iter::once(&"test").chain(args)).expect("flags");
    Flags::from_arg_matches(&matches).expect("flags")
}

fn env(pairs: &[(&str, &str)]) -> Environment {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("temp file");
    file.write_all(text.as_bytes()).expect("write");
    file
}

#[test]
fn defaults_alone_are_a_configuration() {
    let config = load(&Flags::default(), &env(&[("XDG_RUNTIME_DIR", "/run/user/1")]), &[]).expect("defaults");
    assert_eq!(config.secure_address().to_string(), "127.0.0.1:6480");
    assert_eq!(config.hold_timeout, Duration::from_secs(60));
    assert_eq!(config.max_frame_bytes, 8 << 20);
    assert_eq!(config.write_kubeconfig.to_str(), Some("/run/user/1/forebay/kubeconfig"));
    let never: Vec<_> = config.never.iter().map(ToString::to_string).collect();
    assert_eq!(never, ["leases.coordination.k8s.io", "events", "events.events.k8s.io"]);
}

#[test]
fn the_temporary_folder_carries_the_user() {
    let config = load(&Flags::default(), &env(&[("TMPDIR", "/scratch")]), &[]).expect("defaults");
    let path = config.write_kubeconfig.to_str().expect("utf-8");
    assert!(path.starts_with("/scratch/forebay-") && path.ends_with("/kubeconfig"), "{path}");
}

#[test]
fn flags_win_over_environment_over_file_over_presets_over_defaults() {
    let file = file("securePort: 3\nholdTimeout: 3s\nfenceTimeout: 3s\n");
    let path = file.path().to_str().expect("utf-8");
    let presets = [("secure-port", "0"), ("admin-address", "127.0.0.1:0")];
    let args = ["--config", path, "--secure-port", "1"];
    let env = env(&[("FOREBAY_SECURE_PORT", "2"), ("FOREBAY_HOLD_TIMEOUT", "2s"), ("FOREBAY_V", "")]);
    let config = load(&flags(&args), &env, &presets).expect("layers");
    assert_eq!(config.secure_port, 1);
    assert_eq!(config.hold_timeout, Duration::from_secs(2));
    assert_eq!(config.fence_timeout, Duration::from_secs(3));
    assert_eq!(config.admin_address.port(), 0);
    assert_eq!(config.v, 0);
}

#[test]
fn the_environment_may_name_the_file() {
    let file = file("v: 4");
    let path = file.path().to_str().expect("utf-8");
    let config = load(&Flags::default(), &env(&[("FOREBAY_CONFIG", path)]), &[]).expect("file");
    assert_eq!(config.v, 4);
}

#[test]
fn lists_are_comma_separated_repeatable_and_replace_lower_layers() {
    let args = ["--preload", "pods, deployments.apps", "--preload=v1/configmaps,pods", "--never", ""];
    let config = load(&flags(&args), &env(&[("FOREBAY_PRELOAD", "secrets")]), &[]).expect("lists");
    let preload: Vec<_> = config.preload.iter().map(ToString::to_string).collect();
    assert_eq!(preload, ["pods", "deployments.apps", "v1/configmaps"]);
    assert!(config.never.is_empty());
}

#[test]
fn all_problems_are_reported_together_with_their_places() {
    let file = file("securePrt: 1\nmaxFrameBytes: [1]\ncolour: blue\nlistPageSize: {a: 1}\nbindAddress: 0.0.0.0\n");
    let path = file.path().to_str().expect("utf-8");
    let args = ["--config", path, "--secure-port", "99999", "--preload", "Pods,events"];
    let env = env(&[("FOREBAY_HOLD_TIMEOUT", "60"), ("FOREBAY_ADMIN_ADDRESS", ":6481")]);
    let report = load(&flags(&args), &env, &[]).expect_err("problems").to_string();
    for want in [
        "10 problems in the configuration:".to_owned(),
        format!("key \"securePrt\" in {path} is unknown: did you mean \"securePort\"?"),
        format!("key \"colour\" in {path} is unknown"),
        format!("maxFrameBytes: \"1\" in {path}: expected a number of bytes"),
        format!("listPageSize: \"{{\\\"a\\\":1}}\" in {path}: expected a single value"),
        format!("bindAddress: \"0.0.0.0\" in {path}: expected a loopback address"),
        "--secure-port \"99999\": expected a port number, 0 to 65535".to_owned(),
        "--preload \"Pods\": expected a plural resource name".to_owned(),
        "--preload \"events\": expected resources that --never (events) allows".to_owned(),
        "FOREBAY_HOLD_TIMEOUT=\"60\": expected a duration with a unit".to_owned(),
        "FOREBAY_ADMIN_ADDRESS=\":6481\": expected an address and a port".to_owned(),
    ] {
        assert!(report.contains(&want), "{want}\nis not in\n{report}");
    }
}

#[test]
fn an_unusable_file_is_one_line_and_hides_nothing_else() {
    let broken = file("a: [");
    let list = file("- a\n");
    for (path, reason) in [
        ("/nonexistent/forebay.yaml", "can't be read: No such file or directory"),
        (broken.path().to_str().expect("utf-8"), "is not valid YAML: "),
        (list.path().to_str().expect("utf-8"), "expected a YAML mapping of settings"),
    ] {
        let errors = load(&flags(&["--config", path, "--v", "11"]), &env(&[]), &[]).expect_err("unusable");
        let [first, second] = errors.problems() else { panic!("{errors}") };
        assert!(first.to_string().starts_with(&format!("--config {path}: {reason}")), "{first}");
        assert!(second.to_string().starts_with("--v \"11\""), "{second}");
        assert_eq!(first.to_string().lines().count(), 1, "{first}");
    }
}

#[test]
fn the_written_kubeconfig_is_not_upstreams() {
    let args = ["--kubeconfig", "/a", "--write-kubeconfig", "/a"];
    let error = load(&flags(&args), &env(&[]), &[]).expect_err("same file").to_string();
    assert!(error.starts_with("--write-kubeconfig \"/a\": expected another file than --kubeconfig"), "{error}");
}

/// The effective configuration is itself a configuration file: same keys, same values.
#[test]
fn the_effective_configuration_loads_again() {
    let args = ["--kubeconfig=/k", "--context=c", "--preload=pods", "--hold-timeout=90s", "--on-hold-timeout=forward"];
    let config = load(&flags(&args), &env(&[]), &[]).expect("config");
    let text = serde_json::to_string(&config).expect("json");
    let keys: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).expect("object");
    assert_eq!(keys.len(), SETTINGS.len());
    let file = file(&text);
    let path = file.path().to_str().expect("utf-8");
    assert_eq!(load(&flags(&["--config", path]), &env(&[]), &[]), Ok(config));
}
