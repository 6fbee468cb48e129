//! Parsers of single values. Errors say what was expected; the caller knows where the value came from.

use std::{net::IpAddr, num::NonZeroU64, time::Duration};

use super::{Loopback, OnHoldTimeout, TextOrJson};

/// What was expected instead, to be read after the value: `expected a port number, 0 to 65535`.
pub(super) type Expected = String;

const UNITS: [(&str, u128); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3600 * SECOND),
];
const SECOND: u128 = 1_000_000_000;

/// Go's duration syntax: `60s`, `1m30s`, `500ms`, `1.5h`, `0`.
pub(super) fn duration(text: &str) -> Result<Duration, Expected> {
    let expected = || "expected a duration with a unit, like 60s, 500ms or 1m30s".to_owned();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut nanos: u128 = 0;
    if rest.is_empty() {
        return Err(expected());
    }
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(expected)?;
        let (number, after) = rest.split_at(number_end);
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let scale = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale).ok_or_else(expected)?;
        nanos = scaled(number, scale).and_then(|part| nanos.checked_add(part)).ok_or_else(expected)?;
        rest = after;
    }
    u64::try_from(nanos).map(Duration::from_nanos).map_err(|_| expected())
}

/// Go's way to print a duration: `1m0s`, `1.5s`, `500ms`, `0s`.
pub(super) fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos != 0 && nanos < SECOND {
        let (unit, scale) = match nanos {
            1_000_000.. => ("ms", 1_000_000),
            1_000.. => ("µs", 1_000),
            _ => ("ns", 1),
        };
        return format!("{}{unit}", decimal(nanos, scale));
    }
    let seconds = format!("{}s", decimal(nanos % (60 * SECOND), SECOND));
    match (duration.as_secs() / 3600, duration.as_secs() / 60 % 60) {
        (0, 0) => seconds,
        (0, m) => format!("{m}m{seconds}"),
        (h, m) => format!("{h}h{m}m{seconds}"),
    }
}

/// A Kubernetes quantity of bytes: `8Mi`, `8M`, `8388608`.
pub(super) fn bytes(text: &str) -> Result<usize, Expected> {
    const SUFFIXES: [(&str, usize); 6] =
        [("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30), ("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)];
    let found = SUFFIXES.iter().find_map(|(suffix, scale)| Some((text.strip_suffix(suffix)?, *scale)));
    let (digits, scale) = found.unwrap_or((text, 1));
    let amount = unsigned(digits).and_then(|n| usize::try_from(n).ok()).and_then(|n| n.checked_mul(scale));
    match amount {
        Some(amount) if amount >= 1024 => Ok(amount),
        _ => Err("expected a number of bytes of at least 1Ki, like 8Mi or 8388608".to_owned()),
    }
}

/// A quantity of bytes, or `none`.
pub(super) fn memory_budget(text: &str) -> Result<Option<u64>, Expected> {
    match text {
        "none" => Ok(None),
        text => bytes(text)
            .map(|bytes| Some(bytes as u64))
            .map_err(|_| "expected a number of bytes of at least 1Ki, like 256Mi, or none".to_owned()),
    }
}

/// A whole number within bounds.
pub(super) fn within<T>(text: &str, low: u64, high: u64) -> Result<T, Expected>
where
    T: TryFrom<u64>,
{
    let expected = || format!("expected a whole number, {low} to {high}");
    let n = unsigned(text).filter(|n| (low..=high).contains(n)).ok_or_else(expected)?;
    T::try_from(n).map_err(|_| expected())
}

/// A whole number that is not zero.
pub(super) fn at_least_one<T>(text: &str, high: u64) -> Result<T, Expected>
where
    T: TryFrom<NonZeroU64>,
{
    let n: u64 = within(text, 1, high)?;
    NonZeroU64::new(n).and_then(|n| T::try_from(n).ok()).ok_or_else(|| format!("expected a whole number, 1 to {high}"))
}

/// A port, 0 included.
pub(super) fn port(text: &str) -> Result<u16, Expected> {
    within(text, 0, 65_535).map_err(|_| "expected a port number, 0 to 65535".to_owned())
}

/// A loopback address.
pub(super) fn loopback(text: &str) -> Result<Loopback, Expected> {
    text.parse::<IpAddr>().ok().and_then(Loopback::new).ok_or_else(|| {
        "expected a loopback address, 127.0.0.1 or ::1: forebay serves this machine or pod only".to_owned()
    })
}

/// `reject` or `forward`.
pub(super) fn on_hold_timeout(text: &str) -> Result<OnHoldTimeout, Expected> {
    match text {
        "reject" => Ok(OnHoldTimeout::Reject),
        "forward" => Ok(OnHoldTimeout::Forward),
        _ => Err("expected reject or forward".to_owned()),
    }
}

/// `text` or `json`.
pub(super) fn logging_format(text: &str) -> Result<TextOrJson, Expected> {
    match text {
        "text" => Ok(TextOrJson::Text),
        "json" => Ok(TextOrJson::Json),
        _ => Err("expected text or json".to_owned()),
    }
}

/// Plain decimals only: `u64::from_str` takes a leading plus sign.
fn unsigned(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

/// `1.5` with a scale of 1,000 is 1,500; digits below one are cut.
fn scaled(number: &str, scale: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { u128::from(unsigned(whole)?) };
    let mut total = whole.checked_mul(scale)?;
    let mut place = scale;
    for digit in fraction.bytes() {
        if !digit.is_ascii_digit() {
            return None;
        }
        place /= 10;
        total = total.checked_add(u128::from(digit - b'0') * place)?;
    }
    Some(total)
}

/// `n / scale` with as many decimals as needed.
fn decimal(n: u128, scale: u128) -> String {
    let (whole, mut rest) = (n / scale, n % scale);
    let mut text = whole.to_string();
    if rest > 0 {
        text.push('.');
        let mut place = scale / 10;
        while rest > 0 {
            text.push_str(&(rest / place).to_string());
            rest %= place;
            place /= 10;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_go_writes_them() {
        for (text, millis) in [
            ("0", 0),
            ("0s", 0),
            ("60s", 60_000),
            ("1m30s", 90_000),
            ("1m0s", 60_000),
            ("1.5h", 5_400_000),
            (".5s", 500),
            ("500ms", 500),
            ("2h1ms", 7_200_001),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "60", "-1s", "+1s", "s", "1", "1x", "1 s", ".s", "1..5s", "99999999999999h", "1d", "1sm"] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn durations_print_like_go_and_parse_back() {
        for (millis, text) in
            [(0, "0s"), (60_000, "1m0s"), (90_500, "1m30.5s"), (3_600_000, "1h0m0s"), (1, "1ms"), (1500, "1.5s")]
        {
            let d = Duration::from_millis(millis);
            assert_eq!(format_duration(d), text);
            assert_eq!(duration(text), Ok(d));
        }
        assert_eq!(format_duration(Duration::from_nanos(1_500)), "1.5µs");
    }

    #[test]
    fn quantities() {
        for (text, want) in [("8Mi", 8 << 20), ("8M", 8_000_000), ("1024", 1024), ("1Gi", 1 << 30)] {
            assert_eq!(bytes(text), Ok(want), "{text}");
        }
        for bad in ["", "Mi", "8MB", "-8Mi", "1023", "1.5Mi", "99999999999999999999Gi", "+8Mi"] {
            assert!(bytes(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn budgets() {
        assert_eq!(memory_budget("none"), Ok(None));
        assert_eq!(memory_budget("256Mi"), Ok(Some(256 << 20)));
        for bad in ["", "0", "no", "50%"] {
            assert!(memory_budget(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn numbers_and_ports() {
        assert_eq!(port("0"), Ok(0));
        assert_eq!(port("65535"), Ok(65_535));
        for bad in ["", "65536", "-1", "+80", "http", " 80"] {
            assert!(port(bad).is_err(), "{bad:?}");
        }
        assert_eq!(within::<u8>("10", 0, 10), Ok(10));
        assert_eq!(within::<u8>("11", 0, 10), Err("expected a whole number, 0 to 10".to_owned()));
    }

    #[test]
    fn only_loopback_addresses() {
        for good in ["127.0.0.1", "127.1.2.3", "::1"] {
            assert!(loopback(good).is_ok(), "{good}");
        }
        for bad in ["0.0.0.0", "10.0.0.1", "::", "localhost", ""] {
            assert!(loopback(bad).is_err(), "{bad:?}");
        }
    }
}
