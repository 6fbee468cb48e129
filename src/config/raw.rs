//! Settings as text, each with the place it came from. Nothing is checked here but names.
//!
//! Layers: defaults < file < environment < flags. The highest layer that has a setting wins as a whole: lists are not
//! merged across layers.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    error::{Invalid, Problem},
    settings::{SETTINGS, Setting, variable},
};

/// Environment variables, by name.
pub type Environment = BTreeMap<String, String>;

/// The flags a command was started with; `clap` fills it from the one table of settings.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--config`.
    pub config: Option<String>,
    /// Values by flag name; several where a flag was repeated.
    pub values: BTreeMap<&'static str, Vec<String>>,
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A key of the configuration file.
    File(PathBuf),
    /// An environment variable.
    Environment,
    /// A flag.
    Flag,
}

/// A setting's text and origin.
#[derive(Clone, Debug)]
pub(super) struct Raw {
    pub(super) origin: Origin,
    pub(super) values: Vec<String>,
}

/// Every setting that has a value, by flag name.
pub(super) type Layers = BTreeMap<&'static str, Raw>;

// === impl Flags ===

impl clap::Args for Flags {
    fn augment_args(command: clap::Command) -> clap::Command {
        let config = clap::Arg::new("config")
            .long("config")
            .value_name("FILE")
            .help("YAML file with any of these settings, by flag name in camelCase (securePort: 6480).")
            .help_heading("Configuration");
        SETTINGS.iter().fold(command.arg(config), |command, setting| command.arg(argument(setting)))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Flags {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let text = |name: &str| matches.get_many::<String>(name).map(|values| values.cloned().collect::<Vec<_>>());
        let config = text("config").and_then(|mut values| values.pop());
        let values = SETTINGS.iter().filter_map(|setting| Some((setting.name, text(setting.name)?))).collect();
        Ok(Self { config, values })
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn argument(setting: &'static Setting) -> clap::Arg {
    let help = match setting.default {
        Some(default) => format!("{} [default: {default}]", setting.help),
        None => setting.help.to_owned(),
    };
    let argument = clap::Arg::new(setting.name)
        .long(setting.name)
        .value_name(setting.value)
        .help(help)
        .help_heading(setting.section);
    let argument = if setting.name == "v" { argument.short('v') } else { argument };
    if setting.many { argument.action(clap::ArgAction::Append) } else { argument }
}

/// Stacks the layers. `presets` replace built-in defaults. Problems with names and with the file are added to
/// `problems`.
pub(super) fn stack(
    flags: &Flags,
    env: &Environment,
    presets: &[(&'static str, &str)],
    problems: &mut Vec<Problem>,
) -> Layers {
    let mut layers = Layers::new();
    for setting in SETTINGS {
        let preset = presets.iter().find(|(name, _)| *name == setting.name).map(|(_, value)| *value);
        if let Some(default) = preset.or(setting.default) {
            layers.insert(setting.name, Raw { origin: Origin::Default, values: vec![default.to_owned()] });
        }
    }
    let config = flags.config.clone().map(|path| ("--config".to_owned(), path));
    let config = config.or_else(|| {
        let name = variable("config");
        env.get(&name).filter(|path| !path.is_empty()).map(|path| (name, path.clone()))
    });
    if let Some((named_by, path)) = config {
        layers.extend(file(&named_by, Path::new(&path), problems));
    }
    for setting in SETTINGS {
        // An empty variable means unset, as manifests often pass it through.
        if let Some(value) = env.get(&setting.variable()).filter(|value| !value.is_empty()) {
            layers.insert(setting.name, Raw { origin: Origin::Environment, values: vec![value.clone()] });
        }
    }
    for (name, values) in &flags.values {
        layers.insert(name, Raw { origin: Origin::Flag, values: values.clone() });
    }
    layers
}

fn file(named_by: &str, path: &Path, problems: &mut Vec<Problem>) -> Layers {
    let unusable = |reason: String| Problem::File { named_by: named_by.to_owned(), path: path.to_owned(), reason };
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            problems.push(unusable(format!("can't be read: {error}")));
            return Layers::new();
        }
    };
    match parse_file(&text, path, problems) {
        Ok(layers) => layers,
        Err(reason) => {
            problems.push(unusable(reason));
            Layers::new()
        }
    }
}

/// What the file sets. Bad keys go to `problems`; the error is a reason why the file as a whole is unusable.
fn parse_file(text: &str, path: &Path, problems: &mut Vec<Problem>) -> Result<Layers, String> {
    let value: Value = if text.trim().is_empty() {
        Value::Null
    } else {
        // The first line has the place and the reason; a drawing of the source follows.
        serde_saphyr::from_str(text).map_err(|error| {
            let error = error.to_string();
            format!("is not valid YAML: {}", error.lines().next().unwrap_or_default())
        })?
    };
    let keys = match value {
        Value::Null => serde_json::Map::new(),
        Value::Object(keys) => keys,
        _ => return Err("expected a YAML mapping of settings, like securePort: 6480".to_owned()),
    };
    let mut layers = Layers::new();
    // Null is as if the key were not there.
    for (key, value) in keys.into_iter().filter(|(_, value)| !value.is_null()) {
        let Some(setting) = SETTINGS.iter().find(|setting| setting.key() == key) else {
            problems.push(Problem::UnknownKey { path: path.to_owned(), did_you_mean: nearest(&key), key });
            continue;
        };
        let origin = Origin::File(path.to_owned());
        match texts(&value) {
            Some(values) if setting.many || values.len() == 1 => {
                layers.insert(setting.name, Raw { origin, values });
            }
            _ => problems.push(Problem::Invalid(Invalid {
                setting: setting.name,
                origin,
                value: value.to_string(),
                expected: if setting.many { "expected text or a list of texts" } else { "expected a single value" }
                    .to_owned(),
            })),
        }
    }
    Ok(layers)
}

/// Scalars as their text; a list as many. Mappings and nested lists are nothing.
fn texts(value: &Value) -> Option<Vec<String>> {
    let scalar = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    };
    match value {
        Value::Array(items) => items.iter().map(scalar).collect(),
        other => scalar(other).map(|text| vec![text]),
    }
}

/// The key a misspelt one most likely stands for.
fn nearest(key: &str) -> Option<String> {
    let plain = |text: &str| text.chars().filter(|c| *c != '-' && *c != '_').collect::<String>().to_ascii_lowercase();
    let wanted = plain(key);
    let best =
        SETTINGS.iter().map(|setting| (distance(&wanted, &plain(setting.name)), setting)).min_by_key(|(d, _)| *d);
    best.filter(|(distance, _)| *distance <= 2 && wanted.len() > 3).map(|(_, setting)| setting.key())
}

/// Levenshtein's distance, one row at a time.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_key_finds_its_neighbour() {
        for (key, want) in [
            ("securePrt", Some("securePort")),
            ("secure-port", Some("securePort")),
            ("secure_port", Some("securePort")),
            ("HoldTimeout", Some("holdTimeout")),
            ("colour", None),
            ("x", None),
        ] {
            assert_eq!(nearest(key).as_deref(), want, "{key}");
        }
    }

    #[test]
    fn scalars_of_every_kind_are_text() {
        let mut problems = Vec::new();
        let parsed = parse_file(
            "securePort: 7000\nholdTimeout: 5s\npreload: [pods, deployments.apps]\nnever: events\ncontext: null\n",
            Path::new("f"),
            &mut problems,
        );
        let layers = parsed.expect("yaml");
        assert_eq!(problems, []);
        let values = |name| layers.get(name).map(|raw| raw.values.join("|"));
        assert_eq!(values("secure-port").as_deref(), Some("7000"));
        assert_eq!(values("hold-timeout").as_deref(), Some("5s"));
        assert_eq!(values("preload").as_deref(), Some("pods|deployments.apps"));
        assert_eq!(values("never").as_deref(), Some("events"));
        assert_eq!(values("context"), None);
        for empty in ["", "\n", "# nothing\n", "{}"] {
            assert!(parse_file(empty, Path::new("f"), &mut problems).expect("yaml").is_empty(), "{empty:?}");
        }
    }
}
