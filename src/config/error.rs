//! What can be wrong with a configuration: reported all at once, each with its place.

use std::{fmt, path::PathBuf};

use super::{
    raw::Origin,
    settings::{Setting, variable},
};

/// Every problem of a configuration; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(pub(super) Vec<Problem>);

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A value that its setting can't take.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// A key of the file that is no setting.
    #[error("key {key:?} in {} is unknown{}", path.display(), did_you_mean.as_ref().map(|key| format!(": did you mean {key:?}?")).unwrap_or_default())]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The key as written.
        key: String,
        /// A setting with a similar name.
        did_you_mean: Option<String>,
    },
    /// The file as a whole.
    #[error("{named_by} {}: {reason}", path.display())]
    File {
        /// `--config` or `FOREBAY_CONFIG`.
        named_by: String,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// A value that its setting can't take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {expected}", self.place())]
pub struct Invalid {
    /// Flag name of the setting.
    pub setting: &'static str,
    /// Where the value came from.
    pub origin: Origin,
    /// The value as written.
    pub value: String,
    /// `expected ...`.
    pub expected: String,
}

// === impl Errors ===

impl Errors {
    /// The problems: the file first, then the settings.
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }
}

impl fmt::Display for Errors {
    /// One problem on one line; several below a headline.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [problem] = &self.0[..] {
            return problem.fmt(f);
        }
        write!(f, "{} problems in the configuration:", self.0.len())?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for Errors {}

// === impl Invalid ===

impl Invalid {
    /// `--secure-port "x"`, `FOREBAY_SECURE_PORT="x"`, `securePort: "x" in FILE`.
    fn place(&self) -> String {
        let value = &self.value;
        match &self.origin {
            Origin::Default => format!("default of --{} {value:?}", self.setting),
            Origin::Flag => format!("--{} {value:?}", self.setting),
            Origin::Environment => format!("{}={value:?}", variable(self.setting)),
            Origin::File(path) => {
                let key = Setting::named(self.setting).map_or_else(|| self.setting.to_owned(), Setting::key);
                format!("{key}: {value:?} in {}", path.display())
            }
        }
    }
}
