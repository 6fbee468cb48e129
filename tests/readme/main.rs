//! Holds the README to its word: its flags against `--help`, its metrics against a live scrape, its shell blocks by
//! running them. Blocks that need a real API server are run by `tests/cluster`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod markdown;
mod program;
mod scrape;

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

/// Where blocks are run. Anything else in a comment is a mistake.
const RUNNERS: [&str; 2] = ["tests/readme", "tests/cluster"];

#[test]
fn every_shell_block_is_run_or_says_why_not() {
    let blocks = markdown::shell_blocks(&markdown::readme());
    for runner in RUNNERS {
        assert!(blocks.iter().any(|block| block.run_by.as_deref() == Some(runner)), "no block is run by {runner}");
    }
    for block in blocks {
        let known = block.run_by.as_deref().is_some_and(|runner| RUNNERS.contains(&runner));
        let excused = block.not_run.as_deref().is_some_and(|why| !why.is_empty());
        assert!(
            known != excused,
            "README.md:{}: put <!-- run by {} --> or <!-- not run: reason --> on the line above the block",
            block.line,
            RUNNERS.join(" or ")
        );
    }
}

/// The two commands a newcomer types, with `cargo` standing for what cargo has built already: a release build takes
/// minutes, and `cargo test` is what runs this.
const CARGO: &str = r#"#!/bin/sh
case "$*" in
    "run --release -- demo") exec "$FOREBAY" demo --objects=200 ;;
    "test") echo "cargo test" ;;
    *) echo "cargo $*: not a command of the README" >&2; exit 1 ;;
esac
"#;

#[test]
fn the_first_commands_work() {
    let folder = tempfile::tempdir().unwrap();
    let cargo = folder.path().join("cargo");
    fs::write(&cargo, CARGO).unwrap();
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let blocks = markdown::shell_blocks(&markdown::readme());
    for block in blocks.iter().filter(|block| block.run_by.as_deref() == Some(RUNNERS[0])) {
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", &block.script]).current_dir(folder.path());
        command.env("PATH", &path).env("FOREBAY", program::FOREBAY);
        let output = program::finish(command);
        assert_eq!(output.code, Some(0), "README.md:{}: {}\n{}", block.line, output.stdout, output.stderr);
        for want in ["through forebay", "cargo test"] {
            assert!(output.stdout.contains(want), "{want:?} is not in\n{}\n{}", output.stdout, output.stderr);
        }
    }
}

#[test]
fn flags_are_those_of_the_help() {
    let readme = markdown::table(&markdown::readme(), "Flags");
    let mut command = Command::new(program::FOREBAY);
    command.args(["run", "--help"]);
    let help = flags(&program::finish(command).stdout);
    assert!(help.len() > 15, "{help:?}");
    for (flag, default) in &help {
        let row = readme.get(flag).unwrap_or_else(|| panic!("README.md lacks {flag} of forebay run --help"));
        let told = row[0].trim_matches('`');
        // Where the help computes a default in words, so does the README.
        if let Some(default) = default {
            assert_eq!(told, default, "README.md: default of {flag}");
        }
    }
    for flag in readme.keys() {
        assert!(help.contains_key(flag), "README.md has {flag}, which forebay run --help does not know");
    }
}

/// Flags of a help text with their defaults.
fn flags(help: &str) -> BTreeMap<String, Option<String>> {
    let mut flags: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut text = String::new();
    let mut last = None;
    let mut put = |flag: Option<String>, text: &str| {
        let default = text.split_once("[default: ").and_then(|(_, rest)| rest.split_once(']'));
        // A long one is broken over lines; no value has a blank in it.
        let default = default.map(|(value, _)| value.split_whitespace().collect::<String>());
        flags.extend(flag.map(|flag| (flag, default)));
    };
    for line in help.lines().map(str::trim) {
        let begins =
            line.starts_with('-').then(|| line.split_whitespace().find(|word| word.starts_with("--"))).flatten();
        if let Some(flag) = begins {
            put(last.take(), &text);
            text.clear();
            last = Some(flag.to_owned()).filter(|flag| flag != "--help");
        }
        text = format!("{text} {line}");
    }
    put(last, &text);
    flags
}

#[test]
fn flags_are_read_from_a_help_text() {
    let help = "Options:\n  -h, --help  Print\n\nA:\n  -v, --v <0-10>  Much [default:\n      0]\n      --dry-run  Only\n  --list <A>\n     Text. [default: a,\n     b]\n";
    let want = [("--v", Some("0")), ("--dry-run", None), ("--list", Some("a,b"))];
    let want = want.map(|(flag, default)| (flag.to_owned(), default.map(str::to_owned)));
    assert_eq!(flags(help), want.into());
}

#[test]
fn commands_are_those_of_the_help() {
    let mut command = Command::new(program::FOREBAY);
    command.arg("--help");
    let help = program::finish(command).stdout;
    let commands = help.split_once("Commands:\n").unwrap().1.split_once("\n\n").unwrap().0;
    // Descriptions go on at a deeper indent.
    let names = commands.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<&str> =
        names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect();
    assert!(names.contains(&"exec"), "{names:?}");
    let readme = markdown::readme();
    for name in names {
        assert!(readme.contains(&format!("forebay {name}")), "README.md does not mention forebay {name}");
    }
}

#[test]
fn links_lead_to_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = fs::read_to_string(root.join(document)).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            let path = link.split('#').next().unwrap_or_default();
            let outside = path.is_empty() || path.contains("://");
            assert!(outside || root.join(path).exists(), "{document}: {link} leads nowhere");
        }
        // Files named in passing must exist as well.
        for name in text.split('`').skip(1).step_by(2) {
            let is_path = ["src/", "tests/", "benches/", ".ci/"].iter().any(|folder| name.starts_with(folder));
            let plain = !name.contains([' ', '*', '{', '<']);
            assert!(!is_path || !plain || root.join(name).exists(), "{document}: {name} does not exist");
        }
    }
}
