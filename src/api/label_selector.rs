//! Label selectors: upstream's grammar, its matching and its error texts.
//!
//! Terms joined by commas, all of which must hold: `k`, `!k`, `k=v`, `k==v`, `k!=v`, `k in (a,b)`, `k notin (a,b)`,
//! `k>5`, `k<5`. Parsed in one pass without a token list; the parser accepts and refuses exactly what apimachinery's
//! does, oddities included (`(a,,b)` holds an empty value, `(a,,)` is an error).
//!
//! A refusal becomes the message of upstream's 400. Where that message depends on things that differ between versions or
//! on Go's Unicode tables, the error is [`ParseError::Unsure`] and only upstream can answer.

use std::borrow::Cow;

use super::go_text::quoted;

/// A parsed label selector. The default is the empty one, which matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

/// The text is not a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The whole message of upstream's `BadRequest`, byte for byte.
    ///
    /// Seen from a live server: `found …` in all its forms between terms; inside a term (with the prefix `unable to parse
    /// requirement: `) the missing operator, identifier, `(` and `)`, a key or value of forbidden characters, an empty
    /// key prefix, an operand that is no integer. From reading the source only: `expected: ',', ')' or identifier` and
    /// `expected: ',', or identifier`. All of them also agree with apimachinery 0.37.2 over random texts.
    #[error("{0}")]
    Known(String),
    /// Refused as well, but with a message we can't vouch for: too long, several errors at once, a bad key prefix, more
    /// than one slash, a NUL, or a text to be quoted that is not printable ASCII.
    #[error("label selector is not valid")]
    Unsure,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: Box<str>,
    condition: Condition,
}

/// What the label must be like. One value is by far the most common case and needs no list.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    Exists,
    Absent,
    Is(Box<str>),
    IsNot(Box<str>),
    In(Vec<Box<str>>),
    NotIn(Vec<Box<str>>),
    Above(i64),
    Below(i64),
}

/// Longest label value, and longest name part of a key, in bytes.
const MAX_PART: usize = 63;

/// Longest prefix of a key, in bytes.
const MAX_PREFIX: usize = 253;

// === impl LabelSelector ===

impl LabelSelector {
    /// Parses the value of a `labelSelector` parameter.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        // Upstream's lexer takes a NUL for the end of the text, or of the word.
        if text.contains('\0') {
            return Err(ParseError::Unsure);
        }
        Parser { lexer: Lexer { rest: text } }.selector()
    }

    /// There is nothing to match: no label is looked at.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether an object with these labels is selected. `lookup` gives the value of a label.
    pub fn matches<'a>(&self, lookup: impl Fn(&str) -> Option<Cow<'a, str>>) -> bool {
        self.requirements.iter().all(|requirement| requirement.condition.holds(lookup(&requirement.key).as_deref()))
    }

    /// `(key, value)` if the selector is nothing but one `key=value`, so that an index can answer it.
    pub fn single_equality(&self) -> Option<(&str, &str)> {
        match self.requirements.as_slice() {
            [Requirement { key, condition: Condition::Is(value) }] => Some((key, value)),
            _ => None,
        }
    }

    /// The keys of the labels it looks at, in the order written, repeated if written so.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.requirements.iter().map(|requirement| &*requirement.key)
    }
}

// === impl Condition ===

impl Condition {
    fn holds(&self, label: Option<&str>) -> bool {
        let number = || label.and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::Exists => label.is_some(),
            Self::Absent => label.is_none(),
            Self::Is(value) => label == Some(value),
            Self::In(values) => label.is_some_and(|label| values.iter().any(|value| **value == *label)),
            // An object without the label is selected.
            Self::IsNot(value) => label != Some(value),
            Self::NotIn(values) => label.is_none_or(|label| values.iter().all(|value| **value != *label)),
            Self::Above(bound) => number().is_some_and(|n| n > *bound),
            Self::Below(bound) => number().is_some_and(|n| n < *bound),
        }
    }

    fn any_of(mut values: Vec<&str>, include: bool) -> Self {
        values.sort_unstable();
        values.dedup();
        match (values.as_slice(), include) {
            ([value], true) => Self::Is((*value).into()),
            ([value], false) => Self::IsNot((*value).into()),
            (_, true) => Self::In(values.into_iter().map(Into::into).collect()),
            (_, false) => Self::NotIn(values.into_iter().map(Into::into).collect()),
        }
    }
}

/// A word or a symbol. Words are keys, values, and the operators `in` and `notin` where an operator is expected.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Symbol(&'static str),
    End,
}

#[derive(Clone, Copy)]
struct Lexer<'a> {
    rest: &'a str,
}

struct Parser<'a> {
    lexer: Lexer<'a>,
}

// === impl Token ===

impl<'a> Token<'a> {
    fn literal(self) -> &'a str {
        match self {
            Self::Word(text) => text,
            Self::Symbol(text) => text,
            Self::End => "",
        }
    }
}

// === impl Lexer ===

impl<'a> Lexer<'a> {
    fn next(&mut self) -> Token<'a> {
        const SYMBOLS: [&str; 9] = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"];
        const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];
        self.rest = self.rest.trim_start_matches(BLANKS);
        if self.rest.is_empty() {
            return Token::End;
        }
        for symbol in SYMBOLS {
            if let Some(rest) = self.rest.strip_prefix(symbol) {
                self.rest = rest;
                return Token::Symbol(symbol);
            }
        }
        let ends_word = |c| BLANKS.contains(&c) || matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<');
        let (word, rest) = self.rest.split_at(self.rest.find(ends_word).unwrap_or(self.rest.len()));
        self.rest = rest;
        Token::Word(word)
    }
}

// === impl Parser ===

impl<'a> Parser<'a> {
    fn next(&mut self) -> Token<'a> {
        self.lexer.next()
    }

    fn peek(&self) -> Token<'a> {
        let mut ahead = self.lexer;
        ahead.next()
    }

    fn selector(mut self) -> Result<LabelSelector, ParseError> {
        let mut requirements = Vec::new();
        match self.peek() {
            Token::End => return Ok(LabelSelector::default()),
            Token::Word(_) | Token::Symbol("!") => {}
            other => return Err(found(other, ", expected: !, identifier, or 'end of string'")),
        }
        loop {
            let requirement = self.requirement().map_err(|error| match error {
                ParseError::Known(text) => ParseError::Known(format!("unable to parse requirement: {text}")),
                ParseError::Unsure => ParseError::Unsure,
            })?;
            requirements.push(requirement);
            match self.next() {
                Token::End => return Ok(LabelSelector { requirements }),
                Token::Symbol(",") => match self.peek() {
                    Token::Word(_) | Token::Symbol("!") => {}
                    other => return Err(found(other, ", expected: identifier after ','")),
                },
                other => return Err(found(other, ", expected: ',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, ParseError> {
        let mut token = self.next();
        let negated = token == Token::Symbol("!");
        if negated {
            token = self.next();
        }
        let Token::Word(key) = token else { return Err(found(token, ", expected: identifier")) };
        check_key(key)?;
        let alone = matches!(self.peek(), Token::End | Token::Symbol(","));
        let condition = match (negated, alone) {
            (true, _) => Condition::Absent,
            (false, true) => Condition::Exists,
            (false, false) => self.condition(key)?,
        };
        Ok(Requirement { key: key.into(), condition })
    }

    fn condition(&mut self, key: &str) -> Result<Condition, ParseError> {
        let operator = self.next();
        Ok(match operator {
            Token::Word("in") => Condition::any_of(self.values(key)?, true),
            Token::Word("notin") => Condition::any_of(self.values(key)?, false),
            Token::Symbol("=" | "==") => Condition::Is(self.value(key)?.into()),
            Token::Symbol("!=") => Condition::IsNot(self.value(key)?.into()),
            Token::Symbol(">") => Condition::Above(self.bound(key)?),
            Token::Symbol("<") => Condition::Below(self.bound(key)?),
            other => return Err(found(other, ", expected: in, notin, =, ==, !=, gt, lt")),
        })
    }

    /// The value after `=` and the like, which may be missing and is empty then; not yet checked.
    fn raw_value(&mut self) -> Result<&'a str, ParseError> {
        match self.peek() {
            Token::End | Token::Symbol(",") => Ok(""),
            Token::Word(value) => {
                self.next();
                Ok(value)
            }
            other => Err(found(other, ", expected: identifier")),
        }
    }

    fn value(&mut self, key: &str) -> Result<&'a str, ParseError> {
        let value = self.raw_value()?;
        check_values(key, &[value])?;
        Ok(value)
    }

    fn bound(&mut self, key: &str) -> Result<i64, ParseError> {
        let value = self.raw_value()?;
        let legal = check_values(key, &[value]);
        match value.parse() {
            Ok(bound) => legal.map(|()| bound),
            // Two errors: upstream prints both.
            Err(_) if legal.is_err() => Err(ParseError::Unsure),
            Err(_) => {
                let text = "for 'Gt', 'Lt' operators, the value must be an integer";
                Err(invalid("values[0]", value, text))
            }
        }
    }

    /// The values in parentheses, without repetitions, sorted.
    fn values(&mut self, key: &str) -> Result<Vec<&'a str>, ParseError> {
        match self.next() {
            Token::Symbol("(") => {}
            other => return Err(found(other, " expected: '('")),
        }
        let mut values = Vec::new();
        match self.peek() {
            Token::Symbol(")") => {
                self.next();
                values.push("");
            }
            Token::Word(_) | Token::Symbol(",") => self.value_list(&mut values)?,
            other => return Err(found(other, ", expected: ',', ')' or identifier")),
        }
        values.sort_unstable();
        values.dedup();
        check_values(key, &values)?;
        Ok(values)
    }

    /// Up to and including the closing parenthesis. An empty place before, after or between commas is an empty value,
    /// but a second comma must be followed by a word.
    fn value_list(&mut self, values: &mut Vec<&'a str>) -> Result<(), ParseError> {
        loop {
            match self.next() {
                Token::Word(value) => {
                    values.push(value);
                    match self.peek() {
                        Token::Symbol(",") => {}
                        Token::Symbol(")") => break,
                        other => return Err(found(other, ", expected: ',' or ')'")),
                    }
                }
                Token::Symbol(",") => {
                    if values.is_empty() {
                        values.push("");
                    }
                    match self.peek() {
                        Token::Symbol(")") => {
                            values.push("");
                            break;
                        }
                        Token::Symbol(",") => {
                            self.next();
                            values.push("");
                        }
                        _ => {}
                    }
                }
                other => return Err(found(other, ", expected: ',', or identifier")),
            }
        }
        self.next();
        Ok(())
    }
}

fn found(token: Token<'_>, expected: &str) -> ParseError {
    ParseError::Known(format!("found '{}'{expected}", token.literal()))
}

fn invalid(field: &str, value: &str, why: &str) -> ParseError {
    match quoted(value) {
        Some(value) => ParseError::Known(format!("{field}: Invalid value: {value}: {why}")),
        None => ParseError::Unsure,
    }
}

/// A key is a name, or a DNS subdomain, a slash and a name.
fn check_key(key: &str) -> Result<(), ParseError> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let prefix_ok = prefix.is_none_or(is_subdomain);
    // Upstream was given no path to the field, and says so.
    let refuse = |why| Err(invalid("<nil>", key, why));
    match (prefix, prefix_ok, is_label_text(name)) {
        (_, true, true) if !name.is_empty() && name.len() <= MAX_PART => Ok(()),
        (Some(""), _, true) if !name.is_empty() && name.len() <= MAX_PART => refuse("prefix part must be non-empty"),
        (_, true, false) if name.len() <= MAX_PART && !name.contains('/') => refuse(
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
             alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
             '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
        ),
        _ => Err(ParseError::Unsure),
    }
}

/// `values` are sorted, as upstream numbers them.
fn check_values(key: &str, values: &[&str]) -> Result<(), ParseError> {
    let is_bad = |value: &str| value.len() > MAX_PART || !is_label_text(value);
    let mut bad = values.iter().enumerate().filter(|(_, value)| is_bad(value));
    match (bad.next(), bad.next()) {
        (None, _) => Ok(()),
        (Some((index, value)), None) if value.len() <= MAX_PART => Err(invalid(
            &format!("values[{index}][{key}]"),
            value,
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
             validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
        )),
        _ => Err(ParseError::Unsure),
    }
}

/// Empty, or letters, digits, `-`, `_` and `.` with a letter or digit at both ends.
fn is_label_text(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends_well = |end: Option<&u8>| end.is_none_or(u8::is_ascii_alphanumeric);
    ends_well(bytes.first())
        && ends_well(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Dot-separated labels of lower-case letters, digits and inner hyphens.
fn is_subdomain(text: &str) -> bool {
    text.len() <= MAX_PREFIX
        && text.split('.').all(|label| {
            let bytes = label.as_bytes();
            let legal = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
            bytes.first().is_some_and(legal)
                && bytes.last().is_some_and(legal)
                && bytes.iter().all(|b| legal(b) || *b == b'-')
        })
}

#[cfg(test)]
mod tests;
