//! Why a request was forwarded: a closed set, since it is a metric label.

/// Why upstream answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// POST, PUT, PATCH, DELETE.
    Write,
    /// A watch.
    Watch,
    /// A subresource.
    Subresource,
    /// Discovery, OpenAPI, health: no resource path.
    NonResource,
    /// HEAD, CONNECT, `/proxy/` paths and other verbs.
    Verb,
    /// The path is spelled in a way only upstream should judge.
    Path,
    /// An upgrade (exec, attach, port-forward).
    Upgrade,
    /// The caller brought another credential than forebay's.
    Credential,
    /// `Impersonate-*` headers.
    Impersonation,
    /// `Cache-Control: no-cache`.
    NoCache,
    /// Accept asks for something other than plain JSON.
    Encoding,
    /// A query parameter that forebay does not answer for.
    Parameter,
    /// `resourceVersion` other than unset and 0, or with a match.
    ResourceVersion,
    /// `continue`, or more objects than `limit` allows.
    Paging,
    /// A field selector beyond `metadata.name` and `metadata.namespace`.
    FieldSelector,
    /// A selector whose error text is upstream's to write.
    Selector,
    /// Discovery knows no such resource (yet), or its scope differs.
    Unknown,
    /// It can't be listed and watched, or another server answers for it.
    Uncacheable,
    /// Configured never to be cached.
    Never,
    /// A Secret, which only the client's own LIST starts to cache.
    Secret,
    /// Upstream refuses forebay's own list or watch.
    Refused,
    /// The store can't hold this resource.
    Unservable,
    /// The store's life is not proven: its connection has been silent for longer than `--max-staleness`.
    Stale,
    /// The memory budget has no room for this resource.
    OverBudget,
    /// A write's effect is unknown until the store has caught up.
    WriteInDoubt,
    /// The store is not known to have come as far as a list that a client has been shown.
    Behind,
    /// The store did not reach the fence in time.
    Fence,
    /// A conflict over this key is open.
    Conflict,
    /// "Not found" or "none" that the store alone doesn't prove.
    Negative,
    /// The hold timed out and `--on-hold-timeout=forward`.
    HoldTimeout,
}

// === impl Reason ===

impl Reason {
    /// The label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Watch => "watch",
            Self::Subresource => "subresource",
            Self::NonResource => "non_resource",
            Self::Verb => "verb",
            Self::Path => "path",
            Self::Upgrade => "upgrade",
            Self::Credential => "credential",
            Self::Impersonation => "impersonation",
            Self::NoCache => "no_cache",
            Self::Encoding => "encoding",
            Self::Parameter => "parameter",
            Self::ResourceVersion => "resource_version",
            Self::Paging => "paging",
            Self::FieldSelector => "field_selector",
            Self::Selector => "selector",
            Self::Unknown => "unknown_resource",
            Self::Uncacheable => "uncacheable",
            Self::Never => "never",
            Self::Secret => "secret",
            Self::Refused => "refused_upstream",
            Self::Unservable => "unservable",
            Self::Stale => "stale",
            Self::OverBudget => "over_budget",
            Self::WriteInDoubt => "write_in_doubt",
            Self::Behind => "behind",
            Self::Fence => "fence_timeout",
            Self::Conflict => "conflict",
            Self::Negative => "negative_unproven",
            Self::HoldTimeout => "hold_timeout",
        }
    }
}
