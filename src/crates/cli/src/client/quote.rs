//! Quotes text in Go's syntax, which etcdctl uses in its output and in its input grammar. Also splits a line into
//! words.

/// Quotes bytes like Go's `%q`: no information is lost, and every character is visible.
pub(crate) fn go(bytes: &[u8]) -> String {
    let mut quoted = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' => quoted.push_str("\\\""),
                '\\' => quoted.push_str("\\\\"),
                '\x07' => quoted.push_str("\\a"),
                '\x08' => quoted.push_str("\\b"),
                '\x0c' => quoted.push_str("\\f"),
                '\n' => quoted.push_str("\\n"),
                '\r' => quoted.push_str("\\r"),
                '\t' => quoted.push_str("\\t"),
                '\x0b' => quoted.push_str("\\v"),
                c if is_printable(c) => quoted.push(c),
                c if u32::from(c) < 0x80 => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
                c if u32::from(c) < 0x1_0000 => {
                    quoted.push_str(&format!("\\u{:04x}", u32::from(c)));
                }
                c => quoted.push_str(&format!("\\U{:08x}", u32::from(c))),
            }
        }
        for byte in chunk.invalid() {
            quoted.push_str(&format!("\\x{byte:02x}"));
        }
    }
    quoted.push('"');
    quoted
}

/// Returns whether a terminal would show all the bytes literally and interpret none of them as control characters.
pub(crate) fn can_be_shown(bytes: &[u8]) -> bool {
    let shows = |c: char| is_printable(c) || ['\n', '\t'].contains(&c);
    std::str::from_utf8(bytes).is_ok_and(|text| text.chars().all(shows))
}

/// Returns whether a terminal shows the character.
fn is_printable(c: char) -> bool {
    // The character is tested after a letter, because a combining character at the start would be escaped.
    c == ' ' || c == '\'' || (!c.is_whitespace() && format!("a{c}").escape_debug().count() == 2)
}

/// Formats bytes in hexadecimal like etcdctl's `--hex`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect()
}

/// Quotes text as JSON like Go, which also escapes the special characters of HTML.
pub(crate) fn json(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..' ' => {
                quoted.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Splits a line into words. A word is either bare, or in single quotes or backquotes, which have no escapes, or in
/// double quotes with Go's escapes.
pub(crate) fn words(line: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let (word, tail) = if rest.starts_with(['"', '`', '\'']) {
            quoted(rest)?
        } else {
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            (rest.as_bytes()[..end].to_vec(), &rest[end..])
        };
        words.push(word);
        rest = tail.trim_start();
    }
    Ok(words)
}

/// Parses a quoted string at the beginning of `text`. Returns the string and the rest of the text.
pub(crate) fn quoted(text: &str) -> Result<(Vec<u8>, &str), String> {
    let open = || format!("{text}: unclosed quote");
    let mut chars = text.char_indices();
    let quote = match chars.next() {
        Some((_, quote @ ('"' | '`' | '\''))) => quote,
        _ => return Err(format!("{text}: expected a quoted string")),
    };
    let mut bytes = Vec::new();
    while let Some((at, c)) = chars.next() {
        match c {
            c if c == quote => return Ok((bytes, &text[at + c.len_utf8()..])),
            '\\' if quote == '"' => {
                let (_, escaped) = chars.next().ok_or_else(open)?;
                let digits = match escaped {
                    'x' => 2,
                    'u' => 4,
                    'U' => 8,
                    '0'..='7' => 3,
                    _ => 0,
                };
                if digits == 0 {
                    bytes.push(simple(escaped).ok_or_else(|| unknown(text, escaped))?);
                    continue;
                }
                let mut number = String::new();
                if escaped.is_ascii_digit() {
                    number.push(escaped);
                }
                while number.len() < digits {
                    number.push(chars.next().ok_or_else(open)?.1);
                }
                let radix = if escaped.is_ascii_digit() { 8 } else { 16 };
                let number =
                    u32::from_str_radix(&number, radix).map_err(|_| unknown(text, escaped))?;
                if digits <= 3 {
                    bytes.push(u8::try_from(number).map_err(|_| unknown(text, escaped))?);
                } else {
                    let c = char::from_u32(number).ok_or_else(|| unknown(text, escaped))?;
                    bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                }
            }
            c => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Err(open())
}

fn simple(escaped: char) -> Option<u8> {
    Some(match escaped {
        'a' => 7,
        'b' => 8,
        'f' => 12,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 11,
        '\\' | '"' | '\'' => escaped as u8,
        _ => return None,
    })
}

fn unknown(text: &str, escaped: char) -> String {
    format!("{text}: unknown escape \\{escaped}; write \\\\ for a backslash")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_quoting_round_trips() {
        let table: [(&[u8], &str); 5] = [
            (b"a\xff\n\"\t\xc3\xbc\x7f", r#""a\xff\n\"\tü\x7f""#),
            (b"", r#""""#),
            ("é\u{301}\u{200b}\u{a0}".as_bytes(), "\"é\u{301}\\u200b\\u00a0\""),
            (b"\0\x1b'", r#""\x00\x1b'""#),
            ("\u{e0001}".as_bytes(), r#""\U000e0001""#),
        ];
        for (bytes, text) in table {
            assert_eq!(go(bytes), text);
            assert_eq!(quoted(text), Ok((bytes.to_vec(), "")));
        }
    }

    #[test]
    fn a_line_is_split_into_words() {
        let line = r#" put "a b\n" 'c "d"' e\f `g\h` "\101\u00fc" "#;
        let expected: [&[u8]; 6] = [b"put", b"a b\n", br#"c "d""#, br"e\f", br"g\h", b"A\xc3\xbc"];
        assert_eq!(words(line).unwrap(), expected.map(<[u8]>::to_vec));
        for line in [r#"put "a"#, r#""\q""#, "'a", r#""\x4"#] {
            assert!(words(line).is_err(), "{line}");
        }
    }

    #[test]
    fn json_is_escaped_as_in_go() {
        assert_eq!(json("<a>&\"\n\u{1}é"), r#""\u003ca\u003e\u0026\"\n\u0001é""#);
    }
}
