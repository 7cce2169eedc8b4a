//! Checks the words: the vocabulary of `docs/contributing/vocabulary.md`, and the rules of `writing.md` that a program can check.

use std::fs;
use std::path::{Path, PathBuf};

use super::{all_sources, pages, root, settle};

/// Words in all pages together, without code blocks.
const PAGE_WORDS_MAX: usize = 45_000;

/// Words and phrases that comments and pages avoid, with the reason.
const AVOIDED: &[(&str, &str)] = &[
    ("whoever", "name the actor"),
    ("somebody", "name the actor"),
    ("anybody", "name the actor"),
    ("for ever", "say forever, or without a limit"),
    ("thereof", "archaic"),
    ("lets go of", "say releases"),
];

/// Words that must not begin a sentence of a comment, because the sentence hides its subject.
const OPENERS: &[&str] = &["What", "Who", "Whoever", "Whose", "Whatever", "Somebody", "Nobody"];

/// One row of the first table of the vocabulary.
struct OldWord {
    word: String,
    instead: String,
    allowed: Vec<String>,
}

fn old_words() -> Vec<OldWord> {
    let page = fs::read_to_string(root().join(VOCABULARY)).unwrap();
    let table = page.split("| old | new | allowed in |").nth(1).expect("the page has the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [word, instead, allowed] = cells[..] else { panic!("three cells: {line}") };
        let allowed = allowed.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        OldWord { word: word.trim_matches('`').to_owned(), instead: instead.to_owned(), allowed }
    };
    rows.map(row).collect()
}

const VOCABULARY: &str = "docs/contributing/vocabulary.md";

/// Whether a line contains the word: a type's name as a whole identifier, any other word also as a part of a name.
fn has_word(line: &str, word: &str) -> bool {
    let is_type = word.starts_with(char::is_uppercase);
    line.split(|c: char| !(c.is_alphanumeric() || is_type && c == '_')).any(|token| token == word)
}

#[test]
fn old_words_do_not_come_back() {
    let words = old_words();
    assert!(words.len() > 40, "{} words", words.len());
    let mut texts: Vec<(PathBuf, String)> = all_sources();
    texts.extend(pages());
    let mut problems = Vec::new();
    for (path, text) in &texts {
        let is_page = path.extension().is_some_and(|extension| extension == "md");
        let skipped = |old: &&OldWord| !old.allowed.iter().any(|at| path.starts_with(at));
        let here: Vec<&OldWord> = words.iter().filter(skipped).collect();
        if path == Path::new(VOCABULARY) || path == Path::new("tests/tidy/prose.rs") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let is_comment = line.trim_start().starts_with("//");
            for old in &here {
                let is_type = old.word.starts_with(char::is_uppercase);
                if is_type && (is_page || is_comment) && !line.contains(&format!("`{}", old.word)) {
                    continue;
                }
                if line.contains(&old.word) && has_word(line, &old.word) {
                    let at = format!("{}:{}", path.display(), number + 1);
                    problems.push(format!("{at}: {}: use {}", old.word, old.instead));
                }
            }
        }
    }
    settle(problems);
}

/// Returns the comments of a file and the prose of a page, line by line.
fn prose(path: &Path, text: &str) -> Vec<(usize, String)> {
    let is_page = path.extension().is_some_and(|extension| extension == "md");
    let mut in_code = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let words = match is_page {
            true => line,
            false => match line.strip_prefix("//") {
                Some(comment) => comment.trim_start_matches(['/', '!']).trim_start(),
                None => {
                    in_code = false;
                    continue;
                }
            },
        };
        if words.starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            lines.push((number + 1, words.to_owned()));
        }
    }
    lines
}

/// Whether a line contains the words, not followed by a letter.
fn has_phrase(line: &str, words: &str) -> bool {
    line.match_indices(words)
        .any(|(at, _)| !line[at + words.len()..].starts_with(char::is_alphabetic))
}

#[test]
fn comments_and_pages_avoid_words_that_hide_the_actor() {
    let mut texts = all_sources();
    texts.extend(pages());
    let mut problems = Vec::new();
    for (path, text) in &texts {
        if path == Path::new("tests/tidy/prose.rs") || path.starts_with("docs/contributing") {
            continue;
        }
        for (number, line) in prose(path, text) {
            for (words, why) in AVOIDED {
                if has_phrase(&line.to_lowercase(), words) {
                    problems.push(format!("{}:{number}: {words}: {why}", path.display()));
                }
            }
        }
    }
    settle(problems);
}

#[test]
fn sentences_of_comments_begin_with_their_subject() {
    let mut problems = Vec::new();
    for (path, text) in all_sources() {
        if path == Path::new("tests/tidy/prose.rs") {
            continue;
        }
        for (number, line) in prose(&path, &text) {
            let opens = |opener: &&&str| {
                let begins = |sentence: &str| {
                    sentence.strip_prefix(**opener).is_some_and(|rest| rest.starts_with(' '))
                };
                let mut sentences = line.split(". ");
                sentences.any(|sentence| begins(sentence) && !line.contains('?'))
            };
            if let Some(opener) = OPENERS.iter().find(opens) {
                problems.push(format!("{}:{number}: begins with {opener}", path.display()));
            }
        }
    }
    settle(problems);
}

/// The texts of `#[error("...")]`.
#[test]
fn error_texts_say_what_failed() {
    let mut problems = Vec::new();
    for (path, text) in all_sources() {
        for (at, _) in text.match_indices("#[error(") {
            let rest = &text[at..];
            let Some((_, from)) = rest.split_once('"') else { continue };
            let to = from.match_indices('"').find(|(to, _)| !from[..*to].ends_with('\\'));
            let words = &from[..to.map_or(from.len(), |(to, _)| to)];
            let begins = words.split([' ', ':', ',']).next().unwrap_or_default();
            let why = match () {
                () if ["it", "that", "nobody", "somebody"].contains(&begins) => {
                    "begins with a pronoun"
                }
                () if words.ends_with('.') && !words.ends_with("..") => "ends with a period",
                () if has_identifier(words) => "contains an identifier of the source",
                () => continue,
            };
            let line = text[..at].lines().count() + 1;
            problems.push(format!("{}:{line}: {why}: {words}", path.display()));
        }
    }
    settle(problems);
}

/// Returns whether a text contains a word with an underscore. Placeholders for values do not count, and neither do names
/// of the public API, as in `Config::name` or `.name()`.
fn has_identifier(text: &str) -> bool {
    let mut outside = text.split('{').map(|part| part.rsplit('}').next().unwrap_or_default());
    outside.any(|part| {
        part.split(' ').any(|word| word.contains('_') && !word.contains(['(', ':', '`']))
    })
}

#[test]
fn pages_stay_short() {
    let mut words = 0;
    for (path, page) in pages() {
        let is_word = |word: &&str| word.contains(char::is_alphanumeric);
        words += prose(&path, &page)
            .iter()
            .map(|(_, line)| line.split_whitespace().filter(is_word).count())
            .sum::<usize>();
    }
    assert!(words <= PAGE_WORDS_MAX, "{words} words in all pages, at most {PAGE_WORDS_MAX}");
}
