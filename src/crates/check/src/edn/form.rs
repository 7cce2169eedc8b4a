//! A reader for EDN, the data notation of Clojure, as far as histories need it.
//!
//! Tags are ignored and the tagged form is used as it is: `#inst "..."` is a string, `#jepsen.history.Op{...}` a map.
//! Forms that `#_` discards are skipped. Symbols, characters and numbers other than 64-bit integers are kept as text.

use std::fmt;

/// Maximum nesting depth of forms.
const DEPTH_MAX: usize = 64;

/// A piece of data.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Form {
    Nil,
    Number(i64),
    Text(String),
    /// A keyword, without its colon.
    Keyword(String),
    /// A symbol, a character, `true`, `false`, or a number that is not a 64-bit integer.
    Other(String),
    /// A vector or a list.
    List(Vec<Form>),
    Set(Vec<Form>),
    Map(Vec<(Form, Form)>),
}

impl Form {
    /// Returns the elements of a list, a vector or a set.
    pub(super) fn elements(&self) -> Option<&[Form]> {
        match self {
            Form::List(elements) | Form::Set(elements) => Some(elements),
            _ => None,
        }
    }

    /// Returns the elements of a vector or list with two elements.
    pub(super) fn pair(&self) -> Option<(&Form, &Form)> {
        match self {
            Form::List(elements) => match &elements[..] {
                [one, other] => Some((one, other)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the value of a keyword key in a map.
    pub(super) fn get(&self, name: &str) -> Option<&Form> {
        let Form::Map(pairs) = self else { return None };
        pairs.iter().find(|(key, _)| *key == Form::Keyword(name.to_owned())).map(|(_, value)| value)
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = |f: &mut fmt::Formatter<'_>, all: &[Form]| {
            all.iter().enumerate().try_for_each(|(place, form)| {
                write!(f, "{}{form}", if place > 0 { " " } else { "" })
            })
        };
        match self {
            Form::Nil => f.write_str("nil"),
            Form::Number(number) => write!(f, "{number}"),
            Form::Text(text) => write!(f, "{text:?}"),
            Form::Keyword(name) => write!(f, ":{name}"),
            Form::Other(word) => f.write_str(word),
            Form::List(elements) => {
                f.write_str("[")?;
                all(f, elements)?;
                f.write_str("]")
            }
            Form::Set(elements) => {
                f.write_str("#{")?;
                all(f, elements)?;
                f.write_str("}")
            }
            Form::Map(pairs) => {
                f.write_str("{")?;
                for (place, (key, value)) in pairs.iter().enumerate() {
                    write!(f, "{}{key} {value}", if place > 0 { ", " } else { "" })?;
                }
                f.write_str("}")
            }
        }
    }
}

/// A reader that returns one form after the other.
pub(super) struct EdnReader<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> EdnReader<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { rest: text, line: 1 }
    }

    /// Returns the current line number, from 1.
    pub(super) fn line(&self) -> usize {
        self.line
    }

    /// Skips whitespace, comments and discarded forms. Returns false at the end of the input.
    pub(super) fn skip(&mut self) -> Result<bool, String> {
        self.skip_within(0)
    }

    /// Returns the next form, or its elements if it is a vector or a list, each with its line.
    ///
    /// # Errors
    ///
    /// Returns a message about the form at [`EdnReader::line`].
    pub(super) fn forms(&mut self) -> Result<Vec<(usize, Form)>, String> {
        let line = self.line;
        match self.rest.chars().next() {
            Some('(') => self.list(1, ')', 0),
            Some('[') => self.list(1, ']', 0),
            _ => Ok(match self.form_within(0)? {
                Form::List(forms) => forms.into_iter().map(|form| (line, form)).collect(),
                form => vec![(line, form)],
            }),
        }
    }

    fn skip_within(&mut self, depth: usize) -> Result<bool, String> {
        loop {
            match self.rest.chars().next() {
                None => return Ok(false),
                Some(c) if c.is_whitespace() || c == ',' => self.pass(c),
                Some(';') => {
                    let end = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.rest = &self.rest[end..];
                }
                Some('#') if self.rest.starts_with("#_") => {
                    self.rest = &self.rest[2..];
                    self.form_within(depth + 1)?;
                }
                Some(_) => return Ok(true),
            }
        }
    }

    fn pass(&mut self, c: char) {
        self.line += usize::from(c == '\n');
        self.rest = &self.rest[c.len_utf8()..];
    }

    fn form_within(&mut self, depth: usize) -> Result<Form, String> {
        if depth > DEPTH_MAX {
            return Err(format!("forms are nested more than {DEPTH_MAX} deep"));
        }
        if !self.skip_within(depth)? {
            return Err("unexpected end of input".to_owned());
        }
        let c = self.rest.chars().next().expect("not at its end");
        match c {
            '(' => self.all(1, ')', depth).map(Form::List),
            '[' => self.all(1, ']', depth).map(Form::List),
            '{' => {
                let all = self.all(1, '}', depth)?;
                if !all.len().is_multiple_of(2) {
                    return Err("a map has a key without a value".to_owned());
                }
                let mut all = all.into_iter();
                let pairs = std::iter::from_fn(|| Some((all.next()?, all.next()?)));
                Ok(Form::Map(pairs.collect()))
            }
            '#' if self.rest.starts_with("#{") => self.all(2, '}', depth).map(Form::Set),
            '#' => {
                self.pass(c);
                let tag = self.word();
                if tag.is_empty() {
                    return Err("# without a tag".to_owned());
                }
                self.form_within(depth + 1)
            }
            ')' | ']' | '}' => Err(format!("unmatched {c}")),
            '"' => self.text(),
            '\\' => {
                self.pass(c);
                let first = self.rest.chars().next().ok_or("missing character after \\")?;
                self.pass(first);
                let rest = self.word();
                Ok(Form::Other(format!("\\{first}{rest}")))
            }
            _ => {
                let word = self.word();
                if word.is_empty() {
                    return Err(format!("unexpected {c:?}"));
                }
                Ok(match word.strip_prefix(':') {
                    Some(name) => Form::Keyword(name.to_owned()),
                    None if word == "nil" => Form::Nil,
                    None => {
                        // `7N` is 7, written as an integer of arbitrary size.
                        let number = word.strip_suffix('N').unwrap_or(word).parse();
                        number.map_or_else(|_| Form::Other(word.to_owned()), Form::Number)
                    }
                })
            }
        }
    }

    fn all(&mut self, open: usize, end: char, depth: usize) -> Result<Vec<Form>, String> {
        Ok(self.list(open, end, depth)?.into_iter().map(|(_, form)| form).collect())
    }

    /// Skips the opening delimiter of `open` bytes, and reads all forms up to the closing delimiter `end`. Returns each
    /// form with its line.
    fn list(&mut self, open: usize, end: char, depth: usize) -> Result<Vec<(usize, Form)>, String> {
        let began = self.line;
        self.rest = &self.rest[open..];
        let mut all = Vec::new();
        loop {
            if !self.skip_within(depth)? {
                return Err(format!("missing {end} for the form that begins at line {began}"));
            }
            if self.rest.starts_with(end) {
                self.pass(end);
                return Ok(all);
            }
            all.push((self.line, self.form_within(depth + 1)?));
        }
    }

    fn text(&mut self) -> Result<Form, String> {
        let began = self.line;
        self.pass('"');
        let mut text = String::new();
        loop {
            let c = self.rest.chars().next();
            let c = c.ok_or_else(|| format!("unterminated string that begins at line {began}"))?;
            self.pass(c);
            match c {
                '"' => return Ok(Form::Text(text)),
                '\\' => {
                    let c = self.rest.chars().next().ok_or("string ends in a \\")?;
                    self.pass(c);
                    text.push(match c {
                        'n' => '\n',
                        't' => '\t',
                        'r' => '\r',
                        'u' => {
                            let code =
                                self.rest.get(..4).ok_or("\\u needs four hexadecimal digits")?;
                            let number = u32::from_str_radix(code, 16);
                            self.rest = &self.rest[4..];
                            let number = number.map_err(|_| format!("invalid escape \\u{code}"))?;
                            char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER)
                        }
                        other => other,
                    });
                }
                c => text.push(c),
            }
        }
    }

    /// Reads up to the end of the word.
    fn word(&mut self) -> &'a str {
        let ends = |c: char| c.is_whitespace() || ",;\"()[]{}\\".contains(c);
        let end = self.rest.find(ends).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }
}
