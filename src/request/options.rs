//! The query string of a read: `GetOptions`, `ListOptions`, and the parameters of the server's own filters.
//!
//! Parameters are read as upstream decodes them: the first value of a repeated one counts, booleans are false only as
//! `0` or `false`, an empty value is mostly the same as none. Whatever is not completely understood stays visible, as
//! [`ReadOptions::unknown`], [`ReadOptions::irregular`] or an invalid variant, and [`ReadOptions::is_understood`] sums
//! it up: if it says no, forward.
//!
//! It does not know which options matter for which verb (a GET of one object ignores most of them), nor which
//! combinations are refused; that is for `route` to decide.

use std::time::Duration;

use super::{duration, query};
use crate::api::resource_version::ResourceVersion;

/// The parameters of a read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// `resourceVersion`.
    pub resource_version: RvParam,
    /// `resourceVersionMatch`; empty is unset.
    pub resource_version_match: Option<VersionMatch>,
    /// `limit`. Upstream takes zero and negative numbers for "no limit", so those are `None` as well.
    pub limit: Option<u64>,
    /// `continue`, not decoded; empty is unset.
    pub continue_token: Option<String>,
    /// `labelSelector`, not parsed; empty is unset.
    pub label_selector: Option<String>,
    /// `fieldSelector`, not parsed; empty is unset.
    pub field_selector: Option<String>,
    /// `watch`.
    pub watch: bool,
    /// `allowWatchBookmarks`.
    pub allow_watch_bookmarks: bool,
    /// `sendInitialEvents`; being given at all has a meaning.
    pub send_initial_events: Option<bool>,
    /// `timeout`: the client's bound for the whole request. Empty, zero and negative ones are ignored upstream.
    pub timeout: Option<Duration>,
    /// `timeoutSeconds`: how long a watch is to last. Has no effect on a LIST.
    pub timeout_seconds: Option<i64>,
    /// `pretty`, for `negotiate`; empty is unset.
    pub pretty: Option<String>,
    /// The first parameter not listed here.
    pub unknown: Option<String>,
    /// A parameter is repeated, spelled with escapes in its name, not UTF-8, not decodable, or not of its type
    /// (`limit=x`). The fields hold a best guess; forward.
    pub irregular: bool,
}

/// What `resourceVersion` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RvParam {
    /// Not given, or empty: the newest state.
    #[default]
    Unset,
    /// `0`: any state.
    Any,
    /// A number above 0. Whether it means "at least" or "exactly" depends on the match and the limit.
    AtLeast(ResourceVersion),
    /// Not a decimal number of 64 bits, or a zero in another spelling.
    Invalid(String),
}

/// What `resourceVersionMatch` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionMatch {
    /// `Exact`.
    Exact,
    /// `NotOlderThan`.
    NotOlderThan,
    /// Anything else; upstream refuses it with 422.
    Other(String),
}

/// The parameters we know, as bits of a set.
const KNOWN: [&str; 12] = [
    "resourceVersion",
    "resourceVersionMatch",
    "limit",
    "continue",
    "labelSelector",
    "fieldSelector",
    "watch",
    "allowWatchBookmarks",
    "sendInitialEvents",
    "timeout",
    "timeoutSeconds",
    "pretty",
];

// === impl ReadOptions ===

impl ReadOptions {
    /// Reads a raw query string, without its `?`.
    pub fn parse(query: Option<&str>) -> Self {
        let mut options = Self::default();
        let mut seen: u16 = 0;
        for pair in query.map(query::pairs).into_iter().flatten() {
            let Ok(query::Pair { key, value, plain }) = pair else {
                options.irregular = true;
                continue;
            };
            options.irregular |= !plain;
            let Some(index) = KNOWN.iter().position(|name| *name == key) else {
                options.unknown.get_or_insert_with(|| key.into_owned());
                continue;
            };
            let repeated = seen & (1 << index) != 0;
            seen |= 1 << index;
            let understood = !repeated && options.set(&key, value.into_owned());
            options.irregular |= !understood;
        }
        options
    }

    /// Every parameter was recognised and makes sense by itself. If not, only upstream can answer.
    pub fn is_understood(&self) -> bool {
        !self.irregular
            && self.unknown.is_none()
            && !matches!(self.resource_version, RvParam::Invalid(_))
            && !matches!(self.resource_version_match, Some(VersionMatch::Other(_)))
    }

    /// Sets a known parameter. False if the value is not of its type.
    fn set(&mut self, key: &str, value: String) -> bool {
        let truth = query::is_true(&value);
        match key {
            "watch" => self.watch = truth,
            "allowWatchBookmarks" => self.allow_watch_bookmarks = truth,
            "sendInitialEvents" => self.send_initial_events = Some(truth),
            "limit" => match value.parse::<i64>() {
                Ok(limit) => self.limit = u64::try_from(limit).ok().filter(|&l| l > 0),
                Err(_) => return false,
            },
            "timeoutSeconds" => match value.parse() {
                Ok(seconds) => self.timeout_seconds = Some(seconds),
                Err(_) => return false,
            },
            _ if value.is_empty() => {}
            "resourceVersion" => self.resource_version = RvParam::parse(value),
            "resourceVersionMatch" => self.resource_version_match = Some(VersionMatch::parse(value)),
            "continue" => self.continue_token = Some(value),
            "labelSelector" => self.label_selector = Some(value),
            "fieldSelector" => self.field_selector = Some(value),
            "pretty" => self.pretty = Some(value),
            "timeout" => match duration::parse(&value) {
                Some(nanos) => self.timeout = u64::try_from(nanos).ok().filter(|&n| n > 0).map(Duration::from_nanos),
                None => return false,
            },
            _ => return false,
        }
        true
    }
}

// === impl RvParam ===

impl RvParam {
    fn parse(value: String) -> Self {
        match value.parse() {
            // Upstream compares with the text "0" in some places and with the number in others.
            Ok(ResourceVersion(0)) if value == "0" => Self::Any,
            Ok(version) if version != ResourceVersion(0) => Self::AtLeast(version),
            _ => Self::Invalid(value),
        }
    }
}

// === impl VersionMatch ===

impl VersionMatch {
    fn parse(value: String) -> Self {
        match value.as_str() {
            "Exact" => Self::Exact,
            "NotOlderThan" => Self::NotOlderThan,
            _ => Self::Other(value),
        }
    }
}

#[cfg(test)]
mod tests;
