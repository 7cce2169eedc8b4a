//! Reads YAML like etcd's parser (`sigs.k8s.io/yaml`). The syntax is that of YAML 1.2, which includes JSON, and is
//! parsed by `saphyr-parser`. Scalars have the meaning of YAML 1.1: `yes` is true, and `0o17`, `017` and `1_5` are 15.
//! Keys are merged with `<<`. A scalar is converted to the text that etcd's parser would pass to a setting of type
//! string. Unlike in etcd, a duplicate key is an error.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};

/// Maximum number of values in a file, including merged ones, because aliases can multiply values.
const VALUES_MAX: usize = 100_000;

/// Maximum nesting depth of lists and mappings.
const DEPTH_MAX: usize = 64;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Node {
    Null,
    Text(String),
    List(Rc<Vec<Node>>),
    Map(Rc<Vec<Entry>>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    /// Line of the key, from 1.
    pub(super) line: usize,
    pub(super) value: Node,
}

/// The first document of a file.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Document {
    pub(super) root: Node,
    /// The line at which a second document starts.
    pub(super) more: Option<usize>,
}

/// Reason why a text is not valid.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct YamlError {
    /// From 1.
    pub(super) line: usize,
    pub(super) why: String,
}

impl From<ScanError> for YamlError {
    fn from(error: ScanError) -> Self {
        wrong(error.marker(), error.info())
    }
}

fn wrong(at: &Marker, why: impl Into<String>) -> YamlError {
    YamlError { line: at.line().max(1), why: why.into() }
}

/// Reads the first document of a text. A document without content is [`Node::Null`].
///
/// # Errors
/// Fails at the first line that is not YAML or exceeds a limit.
pub(super) fn read(text: &str) -> Result<Document, YamlError> {
    let text = spaces_after_keys(text.strip_prefix('\u{feff}').unwrap_or(text));
    let mut reader = Reader {
        parser: Parser::new_from_str(&text),
        anchors: BTreeMap::new(),
        values: 0,
        unterminated: (!text.ends_with('\n')).then(|| text.chars().count()),
    };
    let root = reader.document()?;
    let more = match reader.parser.peek() {
        None | Some(Ok((Event::StreamEnd, _))) => None,
        Some(Ok((_, span))) => Some(span.start.line()),
        // An error after the first document does not matter.
        Some(Err(error)) => Some(error.marker().line()),
    };
    Ok(Document { root, more })
}

/// Replaces a tab between a key and its value by a space: etcd's parser accepts both, `saphyr-parser` only a space.
fn spaces_after_keys(text: &str) -> Cow<'_, str> {
    if !text.contains(":\t") {
        return text.into();
    }
    let lines = text.split_inclusive('\n').map(|line| {
        let is_key =
            |key: &str| key.chars().all(|char| char.is_ascii_alphanumeric() || "- ".contains(char));
        match line.split_once(":\t") {
            Some((key, value)) if is_key(key) => format!("{key}: {value}").into(),
            _ => Cow::from(line),
        }
    });
    lines.collect::<String>().into()
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    anchors: BTreeMap<usize, Node>,
    /// Number of values read.
    values: usize,
    /// Number of characters of a text that does not end with a line feed.
    unterminated: Option<usize>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), YamlError> {
        match self.parser.next_event() {
            Some(event) => Ok(event?),
            None => Err(YamlError { line: 1, why: "unexpected end of the file".to_owned() }),
        }
    }

    fn document(&mut self) -> Result<Node, YamlError> {
        let mut root = Node::Null;
        loop {
            match self.next()? {
                (Event::StreamStart | Event::DocumentStart(_) | Event::Nothing, _) => {}
                (Event::StreamEnd | Event::DocumentEnd, _) => return Ok(root),
                (event, span) => root = self.node(event, span, 0)?,
            }
        }
    }

    /// Reads the value that starts with an event.
    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, YamlError> {
        self.count(&span.start)?;
        if depth > DEPTH_MAX {
            let why = format!("more than {DEPTH_MAX} levels of lists and mappings");
            return Err(wrong(&span.start, why));
        }
        let (anchor, node) = match event {
            Event::Alias(anchor) => {
                let node = self.anchors.get(&anchor).cloned();
                return node.ok_or_else(|| wrong(&span.start, "an alias inside its own anchor"));
            }
            Event::Scalar(mut text, style, anchor, tag) => {
                // The parser adds a line feed to a block that ends with the file; etcd's parser does not.
                let is_block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
                if is_block && self.unterminated == Some(span.end.index()) && text.ends_with('\n') {
                    text.to_mut().pop();
                }
                (anchor, scalar(text, style, tag.as_deref(), &span.start)?)
            }
            Event::SequenceStart(anchor, _) => (anchor, self.list(depth)?),
            Event::MappingStart(anchor, _) => (anchor, self.mapping(depth)?),
            _ => return Err(wrong(&span.start, "missing value")),
        };
        // Values without an anchor have 0.
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Node, YamlError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Node::List(items.into())),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Node, YamlError> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut lines: BTreeMap<String, usize> = BTreeMap::new();
        let mut merged = Vec::new();
        loop {
            let (event, span) = self.next()?;
            let at = span.start;
            if matches!(event, Event::MappingEnd) {
                break;
            }
            let merges =
                matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let key = match self.node(event, span, depth + 1)? {
                Node::Text(key) => key,
                Node::Null => return Err(wrong(&at, "missing key")),
                _ => {
                    return Err(wrong(&at, "a key must be a plain value, not a list or a mapping"));
                }
            };
            let (event, span) = self.next()?;
            let value = self.node(event, span, depth + 1)?;
            if merges {
                merged.push((value, at));
                continue;
            }
            if let Some(first) = lines.insert(key.clone(), at.line()) {
                let why = format!("{key:?} is given twice, first in line {first}; remove one");
                return Err(wrong(&at, why));
            }
            entries.push(Entry { key, line: at.line(), value });
        }
        self.merge(merged, &mut entries)?;
        Ok(Node::Map(entries.into()))
    }

    /// Adds the entries of mappings merged with `<<`. Existing keys keep their values.
    fn merge(
        &mut self,
        merged: Vec<(Node, Marker)>,
        entries: &mut Vec<Entry>,
    ) -> Result<(), YamlError> {
        if merged.is_empty() {
            return Ok(());
        }
        let mut known: BTreeSet<String> = entries.iter().map(|entry| entry.key.clone()).collect();
        for (node, at) in merged {
            let maps = match node {
                Node::List(items) => items.to_vec(),
                node => vec![node],
            };
            for map in maps {
                let Node::Map(map) = map else {
                    return Err(wrong(
                        &at,
                        "<< must be followed by a mapping, or a list of mappings",
                    ));
                };
                for entry in map.iter() {
                    self.count(&at)?;
                    if known.insert(entry.key.clone()) {
                        entries.push(entry.clone());
                    }
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, at: &Marker) -> Result<(), YamlError> {
        self.values += 1;
        match self.values > VALUES_MAX {
            true => Err(wrong(at, format!("more than {VALUES_MAX} values"))),
            false => Ok(()),
        }
    }
}

fn scalar(
    text: Cow<'_, str>,
    style: ScalarStyle,
    tag: Option<&Tag>,
    at: &Marker,
) -> Result<Node, YamlError> {
    let is_typed = match tag {
        None => style == ScalarStyle::Plain,
        Some(tag) if tag.is_yaml_core_schema() => match tag.suffix.as_str() {
            "binary" => return Err(wrong(at, "the tag !!binary is not supported")),
            "bool" | "int" | "float" | "null" => true,
            _ => false,
        },
        Some(_) => false,
    };
    if !is_typed {
        return Ok(Node::Text(text.into_owned()));
    }
    Ok(match &*text {
        "" | "~" | "null" | "Null" | "NULL" => Node::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Node::Text("true".to_owned())
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Node::Text("false".to_owned())
        }
        plain => Node::Text(number(plain).unwrap_or_else(|| plain.to_owned())),
    })
}

/// Formats a YAML 1.1 number as Go does, or returns `None` for other texts.
fn number(text: &str) -> Option<String> {
    if !text.starts_with(|char: char| char.is_ascii_digit() || "+-.".contains(char)) {
        return None;
    }
    let plain = text.replace('_', "");
    integer(&plain).or_else(|| float(&plain).map(go_float))
}

/// Parses an integer with the prefixes of Go and C: `0x`, `0b`, `0o`, and `0` for octal.
fn integer(text: &str) -> Option<String> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, &*lower),
    };
    if !digits.starts_with(|char: char| char.is_ascii_alphanumeric()) {
        return None;
    }
    let number = i128::from_str_radix(digits, radix).ok()?;
    let number = if is_negative { -number } else { number };
    let fits = (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&number);
    fits.then(|| number.to_string())
}

/// Parses a decimal number with a point, an exponent, or both, and none of the other forms that Rust accepts.
fn float(text: &str) -> Option<f64> {
    let is_decimal = text.chars().all(|char| char.is_ascii_digit() || "+-.eE".contains(char));
    text.parse().ok().filter(|number: &f64| is_decimal && number.is_finite())
}

/// Formats a number in the shortest form of Go's verb `g`, as etcd's parser does for a setting of type string.
fn go_float(number: f64) -> String {
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse().unwrap_or(0) {
        -4..=5 => number.to_string(),
        exponent if exponent < 0 => format!("{digits}e-{:02}", -exponent),
        exponent => format!("{digits}e+{exponent:02}"),
    }
}

/// Converts an integral number in [`go_float`]'s form to digits, as etcd's parser does for a setting of type integer:
/// `4.294967296e+09` becomes 4294967296.
pub(super) fn whole(text: &str) -> Option<String> {
    let number = float(text)?;
    let is_whole = number.fract() == 0.0 && number.abs() < 1e21;
    is_whole.then(|| format!("{number:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the value of the key `k`.
    fn value(text: &str) -> Node {
        let Node::Map(entries) = read(text).unwrap().root else { panic!("{text:?} is no mapping") };
        entries.iter().find(|entry| entry.key == "k").unwrap().value.clone()
    }

    #[test]
    fn yaml_scalars_become_the_same_text_as_in_etcd() {
        let cases = [
            // Text in any style.
            ("m", "m"),
            ("'m''1'", "m'1"),
            (r#""m\u0031\t\x41""#, "m1\tA"),
            ("'yes'", "yes"),
            ("\"~\"", "~"),
            ("|\n  a\n  b\n", "a\nb\n"),
            ("|\n  a\n  b", "a\nb"),
            (">\n  a\n  b", "a b"),
            ("|+\n  a\n  b", "a\nb"),
            ("|\n  a\nl: m\n", "a\n"),
            ("|-\n  a\n  b", "a\nb"),
            (">\n  a\n  b\n", "a b\n"),
            (">-\n  a\n  b\n", "a b"),
            ("a\n  b", "a b"),
            ("\"a\n  b\"", "a b"),
            ("!!str 17", "17"),
            ("! 17", "17"),
            ("!mine 17", "17"),
            ("a#b # comment", "a#b"),
            ("http://h:1,https://i:2", "http://h:1,https://i:2"),
            ("2006-01-02", "2006-01-02"),
            ("12:30", "12:30"),
            // Booleans.
            ("yes", "true"),
            ("On", "true"),
            ("y", "true"),
            ("TRUE", "true"),
            ("No", "false"),
            ("off", "false"),
            ("n", "false"),
            ("tRUE", "tRUE"),
            ("!!bool \"yes\"", "true"),
            // Integers.
            ("17", "17"),
            ("+17", "17"),
            ("-17", "-17"),
            ("017", "15"),
            ("0o17", "15"),
            ("0x1F", "31"),
            ("0b101", "5"),
            ("1_000", "1000"),
            ("18446744073709551615", "18446744073709551615"),
            ("0x", "0x"),
            ("1-2", "1-2"),
            ("--1", "--1"),
            ("1.2.3", "1.2.3"),
            // Other numbers, in Go's shortest form.
            ("08", "8"),
            ("1.50", "1.5"),
            (".5", "0.5"),
            ("1e3", "1000"),
            ("1e6", "1e+06"),
            ("4.294967296e+09", "4.294967296e+09"),
            ("0.00001", "1e-05"),
            ("-2.5e-3", "-0.0025"),
            ("18446744073709551616", "1.8446744073709552e+19"),
        ];
        for (text, expected) in cases {
            assert_eq!(value(&format!("k: {text}")), Node::Text(expected.to_owned()), "{text}");
        }
        for (words, expected) in [
            ("y Y yes Yes YES true True TRUE on On ON", "true"),
            ("n N no No NO false False FALSE off Off OFF", "false"),
        ] {
            for word in words.split(' ') {
                assert_eq!(value(&format!("k: {word}")), Node::Text(expected.to_owned()), "{word}");
                assert_eq!(value(&format!("k: '{word}'")), Node::Text(word.to_owned()), "{word}");
            }
        }
        for text in ["", "~", "null", "Null", "NULL", "!!null ''"] {
            assert_eq!(value(&format!("k: {text}")), Node::Null, "{text}");
        }
    }

    #[test]
    fn an_integer_may_have_an_exponent() {
        for (text, expected) in [
            ("4.294967296e+09", Some("4294967296")),
            ("1e+06", Some("1000000")),
            ("-1e3", Some("-1000")),
            ("1.5", None),
            ("1e21", None),
            ("x", None),
            ("inf", None),
            ("nan", None),
            ("", None),
        ] {
            assert_eq!(whole(text).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn merged_yaml_keys_yield_to_own_keys() {
        let Node::Map(entries) =
            read("a: &a {p: 1, q: 2}\nb: &b {q: 3, r: 4}\nk:\n  <<: [*a, *b]\n  p: 0")
                .unwrap()
                .root
        else {
            panic!("no mapping")
        };
        let Node::Map(merged) = &entries[2].value else { panic!("no mapping") };
        let merged: Vec<_> =
            merged.iter().map(|entry| (&*entry.key, entry.value.clone())).collect();
        let text = |text: &str| Node::Text(text.to_owned());
        assert_eq!(merged, [("p", text("0")), ("q", text("2")), ("r", text("4"))]);
    }

    #[test]
    fn invalid_yaml_is_rejected_with_its_line() {
        let deep = "[".repeat(DEPTH_MAX + 2) + &"]".repeat(DEPTH_MAX + 2);
        let levels =
            |level: usize| format!("k{level}: &k{level} {{<<: *k{}, m{level}: x}}\n", level - 1);
        let bomb = "k0: &k0 {m: x}\n".to_owned() + &(1..500).map(levels).collect::<String>();
        let many = format!("k: [{}]", "x,".repeat(VALUES_MAX));
        for (text, line, words) in [
            ("k: 1\nl: 2\nk: 3", 3, "\"k\" is given twice, first in line 1; remove one"),
            ("yes: 1\ntrue: 2", 2, "\"true\" is given twice"),
            ("{\"k\": 1,\n \"k\": 1}", 2, "\"k\" is given twice"),
            ("k: [a", 2, "flow sequence"),
            ("k: a\n b: c", 2, "not allowed in this context"),
            ("k: *x", 1, "unknown anchor"),
            ("k: &x [*x]", 1, "an alias inside its own anchor"),
            ("k: 'x", 1, "quoted scalar"),
            ("k: @x", 1, "unexpected character"),
            ("? [a]\n: b", 1, "a key must be a plain value"),
            ("~: b", 1, "missing key"),
            ("k: !!binary eA==", 1, "!!binary is not supported"),
            ("k: {<<: x}", 1, "<< must be followed by a mapping"),
            (&deep, 1, "more than 64 levels"),
            (&bomb, 442, "more than 100000 values"),
            (&many, 1, "more than 100000 values"),
        ] {
            let head: String = text.chars().take(30).collect();
            let error = read(text).expect_err(&head);
            assert!(error.why.contains(words), "{head:?}: {error:?} lacks {words:?}");
            assert_eq!(error.line, line, "{head:?}: {error:?}");
        }
    }
}
