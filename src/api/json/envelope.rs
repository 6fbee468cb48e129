//! What a list body says around its items: read by the splitter, written when a list is answered.
//!
//! Built-in lists are `kind`, `apiVersion`, `metadata`, `items`. Lists of custom resources have their keys sorted
//! (`apiVersion`, `items`, `kind`, `metadata`), so the resource version comes after the items, and always carry a
//! `continue` (api-semantics 5.2).

use serde::{Deserialize, Deserializer, de::IgnoredAny};

use super::{list::ListError, text};

/// A list without its items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListEnvelope {
    /// `PodList`; for a custom resource what its definition calls it, which need not end in `List`. `Status` if the body
    /// was one: then the other fields say nothing.
    pub kind: String,
    /// `apiVersion` of the list.
    pub api_version: String,
    /// `metadata.resourceVersion`, as it stands; empty if upstream gave none.
    pub resource_version: String,
    /// `metadata.continue`, if there are more pages.
    pub continue_token: Option<String>,
    /// `metadata.remainingItemCount`.
    pub remaining_item_count: Option<u64>,
    /// Whether the keys are sorted, as for custom resources.
    pub custom: bool,
}

/// The body of a list whose items have been taken out.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    api_version: Option<String>,
    #[serde(default)]
    metadata: Option<RawMeta>,
    /// `Some` if the key is there, also with `null`.
    #[serde(default, deserialize_with = "present")]
    items: Option<Vec<IgnoredAny>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawMeta {
    #[serde(default)]
    resource_version: Option<String>,
    #[serde(default)]
    r#continue: Option<String>,
    #[serde(default)]
    remaining_item_count: Option<u64>,
}

// === impl ListEnvelope ===

impl ListEnvelope {
    /// Whether the body was a Status, which is no list at all.
    pub fn is_status(&self) -> bool {
        self.kind == "Status"
    }

    /// The body up to the first item.
    pub fn head(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128 + self.kind.len() + self.api_version.len() + self.token().len());
        if self.custom {
            out.extend(b"{\"apiVersion\":");
            text::push(&mut out, &self.api_version);
        } else {
            out.extend(b"{\"kind\":");
            text::push(&mut out, &self.kind);
            out.extend(b",\"apiVersion\":");
            text::push(&mut out, &self.api_version);
            self.push_metadata(&mut out);
        }
        out.extend(b",\"items\":[");
        out
    }

    /// The body after the last item.
    pub fn tail(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(if self.custom { 128 + self.kind.len() + self.token().len() } else { 3 });
        out.push(b']');
        if self.custom {
            out.extend(b",\"kind\":");
            text::push(&mut out, &self.kind);
            self.push_metadata(&mut out);
        }
        out.extend(b"}\n");
        out
    }

    /// The whole body of a list without items. Only PartialObjectMetadataList has `null` there.
    pub fn empty(&self) -> Vec<u8> {
        let mut out = self.head();
        if self.kind == "PartialObjectMetadataList" {
            out.pop();
            out.extend(b"null");
            out.extend_from_slice(&self.tail()[1..]);
        } else {
            out.extend(self.tail());
        }
        out
    }

    /// Reads what is left of a list body without its items.
    pub(super) fn read(body: &[u8], custom: bool) -> Result<Self, ListError> {
        let raw: Raw = serde_json::from_slice(body).map_err(|source| ListError::Envelope(source.to_string()))?;
        let kind = raw.kind.filter(|kind| !kind.is_empty()).ok_or(ListError::Missing { field: "kind" })?;
        let status = kind == "Status";
        match &raw.items {
            Some(items) if !items.is_empty() => {
                return Err(ListError::Envelope("items under an escaped key".to_owned()));
            }
            None if !status => return Err(ListError::NoItems { kind }),
            _ => {}
        }
        let api_version = raw.api_version.filter(|version| !version.is_empty());
        let metadata = raw.metadata.unwrap_or_default();
        Ok(Self {
            kind,
            api_version: api_version.ok_or(ListError::Missing { field: "apiVersion" })?,
            resource_version: metadata.resource_version.unwrap_or_default(),
            continue_token: metadata.r#continue.filter(|token| !token.is_empty()),
            remaining_item_count: metadata.remaining_item_count,
            custom: custom && !status,
        })
    }

    /// The member `metadata`, with a comma before it. Upstream's order is that of a Go struct, or sorted.
    fn push_metadata(&self, out: &mut Vec<u8>) {
        out.extend(b",\"metadata\":{");
        if self.custom {
            out.extend(b"\"continue\":");
            text::push(out, self.token());
            self.push_remaining(out);
            out.extend(b",\"resourceVersion\":");
            text::push(out, &self.resource_version);
        } else {
            out.extend(b"\"resourceVersion\":");
            text::push(out, &self.resource_version);
            if self.continue_token.is_some() {
                out.extend(b",\"continue\":");
                text::push(out, self.token());
            }
            self.push_remaining(out);
        }
        out.push(b'}');
    }

    fn push_remaining(&self, out: &mut Vec<u8>) {
        if let Some(count) = self.remaining_item_count {
            out.extend(b",\"remainingItemCount\":");
            out.extend(count.to_string().as_bytes());
        }
    }

    fn token(&self) -> &str {
        self.continue_token.as_deref().unwrap_or_default()
    }
}

fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<IgnoredAny>>, D::Error> {
    Option::deserialize(from).map(|items| Some(items.unwrap_or_default()))
}
