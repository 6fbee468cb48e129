//! Names of resources as people write them in flags.

use std::{fmt, str::FromStr};

use serde::{Serialize, Serializer};

use crate::api::gvr::Gvr;

/// A resource, in one version or in any: `pods`, `deployments.apps`, `v1/pods`, `apps/v1/deployments`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResourceSelector {
    /// API group; empty for the core group.
    pub group: String,
    /// API version; `None` means every version.
    pub version: Option<String>,
    /// Plural name.
    pub resource: String,
}

/// The text is not one of the forms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a plural resource name like pods, deployments.apps, v1/pods or apps/v1/deployments{hint}")]
pub struct NotAResource {
    hint: String,
}

// === impl ResourceSelector ===

impl ResourceSelector {
    /// Does it name this resource?
    pub fn matches(&self, gvr: &Gvr) -> bool {
        self.resource == *gvr.resource
            && self.group == *gvr.group
            && self.version.as_deref().is_none_or(|version| version == &*gvr.version)
    }

    /// Is there a resource that both name?
    pub fn overlaps(&self, other: &Self) -> bool {
        self.resource == other.resource
            && self.group == other.group
            && (self.version.is_none() || other.version.is_none() || self.version == other.version)
    }
}

impl FromStr for ResourceSelector {
    type Err = NotAResource;

    fn from_str(text: &str) -> Result<Self, NotAResource> {
        let wrong = |hint: String| NotAResource { hint };
        let parts: Vec<&str> = text.split('/').collect();
        let (group, version, resource) = match parts[..] {
            [name] => {
                let (resource, group) = name.split_once('.').unwrap_or((name, ""));
                if let Some((version, group)) = group.split_once('.')
                    && is_version(version)
                {
                    return Err(wrong(format!("; did you mean {group}/{version}/{resource}?")));
                }
                (group, None, resource)
            }
            [version, resource] => ("", Some(version), resource),
            [group, version, resource] => (group, Some(version), resource),
            _ => return Err(wrong(String::new())),
        };
        if version.is_some_and(|version| !is_version(version)) {
            return Err(wrong("; the version comes before the name, like v1".to_owned()));
        }
        let named = is_label(resource) && (group.is_empty() || group.split('.').all(is_label));
        // `/v1/pods` and `pods.` name no group where they promise one.
        if !named || (parts.len() == 3 && group.is_empty()) || (parts.len() == 1 && text.ends_with('.')) {
            return Err(wrong(String::new()));
        }
        Ok(Self { group: group.to_owned(), version: version.map(str::to_owned), resource: resource.to_owned() })
    }
}

impl fmt::Display for ResourceSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&*self.group, &self.version) {
            ("", None) => f.write_str(&self.resource),
            (group, None) => write!(f, "{}.{group}", self.resource),
            ("", Some(version)) => write!(f, "{version}/{}", self.resource),
            (group, Some(version)) => write!(f, "{group}/{version}/{}", self.resource),
        }
    }
}

impl Serialize for ResourceSelector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A DNS label: what a resource name and each part of a group are made of.
fn is_label(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('-')
        && !text.ends_with('-')
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// `v1`, `v1beta1`, `v2alpha3`.
fn is_version(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('v') else { return false };
    let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    let starts_with_digit = text.as_bytes().get(1).is_some_and(u8::is_ascii_digit);
    let stage = rest.strip_prefix("alpha").or_else(|| rest.strip_prefix("beta"));
    starts_with_digit
        && (rest.is_empty() || stage.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(text: &str) -> ResourceSelector {
        text.parse().expect(text)
    }

    #[test]
    fn each_form_parses_prints_back_and_matches() {
        let pods = Gvr::new("", "v1", "pods");
        let deployments = Gvr::new("apps", "v1", "deployments");
        let beta = Gvr::new("apps", "v1beta1", "deployments");
        let works = Gvr::new("work.karmada.io", "v1alpha1", "works");
        for (text, yes, no) in [
            ("pods", &pods, &deployments),
            ("v1/pods", &pods, &works),
            ("deployments.apps", &beta, &pods),
            ("apps/v1/deployments", &deployments, &beta),
            ("works.work.karmada.io", &works, &pods),
            ("work.karmada.io/v1alpha1/works", &works, &deployments),
        ] {
            let selector = selector(text);
            assert_eq!(selector.to_string(), text);
            assert!(selector.matches(yes), "{text} {yes}");
            assert!(!selector.matches(no), "{text} {no}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for bad in [
            "",
            " pods",
            "Pods",
            "pods.",
            ".apps",
            "/v1/pods",
            "pods/v1",
            "a/b/c/d",
            "apps//deployments",
            "*",
            "po ds",
            "v/pods",
            "v1beta/pods",
            "pods/",
            "apps/1/deployments",
        ] {
            assert!(bad.parse::<ResourceSelector>().is_err(), "{bad:?}");
        }
        let error = "deployments.v1.apps".parse::<ResourceSelector>().expect_err("ambiguous");
        assert!(error.to_string().contains("did you mean apps/v1/deployments?"), "{error}");
    }

    #[test]
    fn overlap_ignores_an_unsaid_version() {
        assert!(selector("deployments.apps").overlaps(&selector("apps/v1/deployments")));
        assert!(!selector("apps/v1/deployments").overlaps(&selector("apps/v1beta1/deployments")));
        assert!(!selector("events").overlaps(&selector("events.events.k8s.io")));
    }
}
