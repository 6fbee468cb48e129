//! Resource versions: opaque to clients, unsigned decimal integers in fact (KEP-5504), ordered only within one resource.

use std::{fmt, str::FromStr};

/// A parsed resource version. `0` is never a real version: it means "any" in requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceVersion(pub u64);

/// The text is not an unsigned decimal number that fits 64 bits, so versions of this resource can't be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("resource version {0:?} is not a decimal number")]
pub struct NotANumber(pub String);

// === impl ResourceVersion ===

impl FromStr for ResourceVersion {
    type Err = NotANumber;

    fn from_str(s: &str) -> Result<Self, NotANumber> {
        // `u64::from_str` takes a leading plus sign; upstream's parser does not.
        if s.is_empty() || !s.bytes().all(|b| b.is_ascii_digit()) {
            return Err(NotANumber(s.to_owned()));
        }
        s.parse().map(Self).map_err(|_| NotANumber(s.to_owned()))
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_decimals_are_versions() {
        assert_eq!("0012".parse(), Ok(ResourceVersion(12)));
        assert_eq!("18446744073709551615".parse(), Ok(ResourceVersion(u64::MAX)));
        for bad in ["", "+1", "-1", " 1", "1a", "18446744073709551616"] {
            assert!(bad.parse::<ResourceVersion>().is_err(), "{bad:?}");
        }
    }
}
