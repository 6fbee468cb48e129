//! Durations as Go's `time.ParseDuration` reads them: `30s`, `1m30s`, `1.5h`, `-100ms`, `0`.
//!
//! Used for the `timeout` parameter. Deliberately no more liberal and no stricter than Go: a value it refuses is a 400
//! upstream.

/// Nanoseconds per unit. Go knows both the micro sign and the Greek letter.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Most nanoseconds a duration can have before its sign: 2^63, which only a negative one may reach.
const LIMIT: u64 = 1 << 63;

/// Parses a Go duration to nanoseconds. `None` where Go reports an error: no unit, unknown unit, no digits, overflow.
pub fn parse(text: &str) -> Option<i64> {
    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if unsigned == "0" {
        return Some(0);
    }
    if unsigned.is_empty() {
        return None;
    }
    let mut total: u64 = 0;
    let mut rest = unsigned;
    while !rest.is_empty() {
        let (nanos, tail) = component(rest)?;
        total = total.checked_add(nanos).filter(|&t| t <= LIMIT)?;
        rest = tail;
    }
    if negative { 0i64.checked_sub_unsigned(total) } else { i64::try_from(total).ok() }
}

/// Reads one number and its unit: the nanoseconds, and what follows.
fn component(text: &str) -> Option<(u64, &str)> {
    let (whole, rest) = digits(text);
    let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), digits);
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let unit_end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(unit_end);
    let &(_, per_unit) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let nanos = whole.checked_mul(per_unit).filter(|&n| n <= LIMIT)?;
    let nanos = nanos.checked_add(fraction_of(fraction, per_unit)).filter(|&n| n <= LIMIT)?;
    Some((nanos, rest))
}

/// `per_unit` times 0.`digits`, rounded down. Digits that no longer fit are dropped; Go does the same.
fn fraction_of(digits: &str, per_unit: u64) -> u64 {
    let (mut value, mut scale) = (0u64, 1f64);
    for digit in digits.bytes() {
        let next = value.checked_mul(10).and_then(|v| v.checked_add(u64::from(digit - b'0')));
        let Some(next) = next.filter(|&v| v <= LIMIT) else { break };
        value = next;
        scale *= 10.0;
    }
    // Go multiplies floating point numbers here, too.
    (value as f64 * (per_unit as f64 / scale)) as u64
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_gos() {
        const SECOND: i64 = 1_000_000_000;
        for (text, want) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("0s", Some(0)),
            ("30s", Some(30 * SECOND)),
            ("+5s", Some(5 * SECOND)),
            ("-5s", Some(-5 * SECOND)),
            ("1m30s", Some(90 * SECOND)),
            ("100ms", Some(SECOND / 10)),
            ("1h15m30.918s", Some(4_530_918_000_000)),
            ("1.5h", Some(5400 * SECOND)),
            (".5s", Some(SECOND / 2)),
            ("1.s", Some(SECOND)),
            ("11us", Some(11_000)),
            ("12µs", Some(12_000)),
            ("12μs", Some(12_000)),
            ("52763797000ns", Some(52_763_797_000)),
            ("39h9m14.425s", Some(140_954_425_000_000)),
            ("0.100000000000000000000h", Some(360 * SECOND)),
            ("0.830103483285477580700h", Some(2_988_372_539_827)),
            ("9223372036854775807ns", Some(i64::MAX)),
            ("-9223372036854775808ns", Some(i64::MIN)),
            ("9223372036854775808ns", None),
            ("9223372036854775.808us", None),
            ("-2562047h47m16.854775808s", Some(i64::MIN)),
            ("3000000h", None),
            ("99999999999999999999s", None),
            ("", None),
            ("x", None),
            ("3", None),
            ("-", None),
            ("s", None),
            (".", None),
            ("-.", None),
            (".s", None),
            ("+.s", None),
            ("1d", None),
            ("1 s", None),
            ("1S", None),
            ("1m30", None),
            ("--1s", None),
            ("1e3s", None),
            ("1\u{85}", None),
        ] {
            assert_eq!(parse(text), want, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn sums_of_units_read_back(h in 0..1000i64, m in 0..60i64, s in 0..60i64, ms in 0..1000i64, negative: bool) {
            let text = format!("{}{h}h{m}m{s}s{ms}ms", if negative { "-" } else { "" });
            let nanos = (((h * 60 + m) * 60 + s) * 1000 + ms) * 1_000_000;
            prop_assert_eq!(parse(&text), Some(if negative { -nanos } else { nanos }));
        }

        #[test]
        fn nothing_panics(text in "[-+.0-9nuµmsh]{0,24}|\\PC*") {
            parse(&text);
        }
    }
}
