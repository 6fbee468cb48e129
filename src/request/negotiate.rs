//! The representation of an answer: from `Accept`, `User-Agent` and the `pretty` parameter.
//!
//! Only one question is answered with a yes: would upstream send compact plain JSON? Every other outcome is
//! [`Format::Other`] with a short reason, and means "forward". Upstream negotiates an error separately from the answer
//! (without transformations, and with protobuf for every kind), so both are reported.
//!
//! The order of an `Accept` list is upstream's to the last oddity: its sort compares quality first, but puts a concrete
//! type before a wildcard even against the quality, and that comparison depends on the order in which pairs are
//! compared. So the sort itself is repeated here (Go sorts up to 12 elements by insertion; longer lists are not
//! understood). `q=0` does not exclude.

use http::{HeaderMap, header};

/// A representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Compact JSON of the object or list itself.
    Json,
    /// Anything else; a word for logs and metrics out of a small fixed set.
    Other(&'static str),
}

/// What upstream would answer in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Representation of a successful answer.
    pub format: Format,
    /// Representation of an error. The same as `format` where that is JSON, but for one case: a custom resource asked
    /// for in `protobuf, json` is sent as JSON and its errors as protobuf.
    pub error_format: Format,
}

/// Longest list that Go sorts by plain insertion.
const MAX_CLAUSES: usize = 12;

const PROTOBUF: Format = Format::Other("protobuf");
const PRETTY: Format = Format::Other("pretty");
const WILDCARD: Format = Format::Other("wildcard");
const PARAMETER: Format = Format::Other("accept-parameter");
const NOT_UNDERSTOOD: Format = Format::Other("accept");

/// One element of an `Accept` list.
#[derive(Clone, Copy, Debug, Default)]
struct Clause<'a> {
    kind: &'a str,
    subtype: &'a str,
    quality: f32,
    /// What follows the first `;`.
    params: &'a str,
}

/// What the parameters of a clause ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Params {
    /// Nothing that changes the answer.
    Plain,
    /// `pretty=1`.
    Pretty,
    /// `as`, `g`, `v`, `stream` and the like: another object, or perhaps a clause upstream skips.
    Transform,
}

/// Negotiates. `pretty` is the first non-empty value of the query parameter. `protobuf_served` tells whether the
/// resource can be had in protobuf: true for built-in kinds, false for custom resources, where upstream skips a plain
/// protobuf clause and takes the next.
pub fn negotiate(headers: &HeaderMap, pretty: Option<&str>, protobuf_served: bool) -> Negotiated {
    // Upstream reads the first line only.
    let accept = match headers.get(header::ACCEPT).map(|value| value.to_str()) {
        None => "",
        Some(Ok(line)) => line.trim_matches([' ', '\t']),
        Some(Err(_)) => return NOT_UNDERSTOOD.throughout(),
    };
    let (negotiated, accept_pretty) = match accept {
        "" | "application/json" | "*/*" | "application/json, */*" => (Format::Json.throughout(), false),
        list => from_list(list, protobuf_served),
    };
    if negotiated.format == Format::Json && (accept_pretty || is_pretty(headers, pretty)) {
        return PRETTY.throughout();
    }
    negotiated
}

// === impl Format ===

impl Format {
    fn throughout(self) -> Negotiated {
        Negotiated { format: self, error_format: self }
    }
}

// === impl Clause ===

impl<'a> Clause<'a> {
    /// Reads one comma-separated element. `Ok(None)` for what upstream skips, `Err` for what we do not understand.
    fn parse(element: &'a str) -> Result<Option<Self>, Format> {
        let element = element.trim_matches(' ');
        let (range, params) = element.split_once(';').unwrap_or((element, ""));
        let range = range.trim_matches(' ');
        if range.bytes().any(|b| matches!(b, b' ' | b'\t')) {
            return Err(NOT_UNDERSTOOD);
        }
        let (kind, subtype) = match range.split_once('/') {
            Some((kind, subtype)) if !subtype.is_empty() => (kind, subtype),
            _ if range.trim_end_matches('/') == "*" => return Err(WILDCARD),
            _ => return Ok(None),
        };
        let mut clause = Self { kind, subtype, quality: 1.0, params };
        let mut odd = subtype.contains('/');
        for (key, value) in clause.pairs() {
            // Upstream reads `a=b=`, ignores `a=b=c`, and takes `a==` for an empty value.
            odd |= value.contains('=');
            if key == "q" {
                clause.quality = quality(value)?;
            }
        }
        if odd {
            return Err(NOT_UNDERSTOOD);
        }
        Ok(Some(clause))
    }

    /// The parameters that have a value; upstream ignores the others.
    fn pairs(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        self.params.split(';').filter_map(|param| {
            let (key, value) = param.split_once('=')?;
            (!value.is_empty()).then(|| (key.trim_matches(' '), value))
        })
    }

    fn ask(&self) -> Params {
        let mut ask = Params::Plain;
        for (key, value) in self.pairs() {
            match key {
                "as" | "g" | "v" | "stream" | "sv" | "export" | "profile" => return Params::Transform,
                // The last one counts.
                "pretty" if value.trim_matches(' ') == "1" => ask = Params::Pretty,
                "pretty" => ask = Params::Plain,
                _ => {}
            }
        }
        ask
    }

    /// Upstream's order of preference, which is not a total order.
    fn before(&self, other: &Self) -> bool {
        self.quality > other.quality
            || (self.kind != "*" && other.kind == "*")
            || (self.subtype != "*" && other.subtype == "*")
    }
}

/// The winner of an `Accept` list, and whether its clause asks for indentation.
fn from_list(list: &str, protobuf_served: bool) -> (Negotiated, bool) {
    let mut clauses = [Clause::default(); MAX_CLAUSES];
    let mut count = 0;
    for element in list.split(',') {
        let clause = match Clause::parse(element) {
            Ok(Some(clause)) => clause,
            Ok(None) => continue,
            Err(format) => return (format.throughout(), false),
        };
        let Some(slot) = clauses.get_mut(count) else { return (NOT_UNDERSTOOD.throughout(), false) };
        *slot = clause;
        count += 1;
    }
    let clauses = &mut clauses[..count];
    for i in 1..count {
        let mut j = i;
        while j > 0 && clauses[j].before(&clauses[j - 1]) {
            clauses.swap(j, j - 1);
            j -= 1;
        }
    }
    let mut protobuf_skipped = false;
    for clause in &*clauses {
        let format = match (clause.kind, clause.subtype) {
            ("application", "json") | ("*", "*") => Format::Json,
            // The router in front of built-in kinds does not know this one, and answers 406 if it stands alone.
            ("application", "*") if protobuf_served => WILDCARD,
            ("application", "*") => Format::Json,
            ("application", "vnd.kubernetes.protobuf") => PROTOBUF,
            ("application", "yaml") => Format::Other("yaml"),
            // Behind a feature gate; whether this server has it is not known here.
            ("application", "cbor") => Format::Other("cbor"),
            _ => continue,
        };
        let ask = clause.ask();
        if ask == Params::Transform {
            return (PARAMETER.throughout(), false);
        }
        if format == PROTOBUF && !protobuf_served {
            protobuf_skipped = true;
            continue;
        }
        let error_format = if protobuf_skipped { PROTOBUF } else { format };
        return (Negotiated { format, error_format }, ask == Params::Pretty);
    }
    (Format::Other("not-acceptable").throughout(), false)
}

/// A plain decimal quality. Go would read more (exponents, hexadecimal, infinities) and take 0 for the rest.
fn quality(text: &str) -> Result<f32, Format> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.parse().ok().filter(|_| plain).ok_or(NOT_UNDERSTOOD)
}

/// The query parameter decides if it is there (Go's `ParseBool`; what that refuses is false), else the user agent: people
/// get indented JSON.
fn is_pretty(headers: &HeaderMap, pretty: Option<&str>) -> bool {
    if let Some(value) = pretty.filter(|value| !value.is_empty()) {
        return matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True");
    }
    let agent = headers.get(header::USER_AGENT).map_or(b"".as_slice(), |value| value.as_bytes());
    let agent = agent.trim_ascii_start();
    agent.starts_with(b"curl") || agent.starts_with(b"Wget") || agent.starts_with(b"Mozilla/5.0")
}

#[cfg(test)]
mod tests;
