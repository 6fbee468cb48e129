//! What requests to upstream are for: a closed set, so that metrics can be by it.

use std::fmt;

/// What a request to upstream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A client's request, passed on.
    Forward,
    /// A page of a list, for servers without streaming lists, or the spelling of a list.
    List,
    /// Everything there is, as a watch.
    StreamingList,
    /// What changes.
    Watch,
    /// How many objects there are.
    Count,
    /// How far upstream is.
    Probe,
    /// What upstream serves.
    Discovery,
}

// === impl Purpose ===

impl Purpose {
    /// The label.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::List => "list",
            Self::StreamingList => "streaming_list",
            Self::Watch => "watch",
            Self::Count => "count",
            Self::Probe => "probe",
            Self::Discovery => "discovery",
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forward => "forward",
            Self::List => "list",
            Self::StreamingList => "streaming list",
            Self::Watch => "watch",
            Self::Count => "count",
            Self::Probe => "probe for the current resource version",
            Self::Discovery => "discovery",
        })
    }
}
