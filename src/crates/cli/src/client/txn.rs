//! `bowline txn`: compares, and then runs one of two lists of requests atomically. The grammar is etcdctl's.

use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;

use bytes::Bytes;
use clap::{Args, Parser, Subcommand};

use super::connect::{CallKind, Client, Link};
use super::del::DelOptions;
use super::failure::{EXIT_CODES, Failure};
use super::get::GetOptions;
use super::print::Output;
use super::put::{PutOptions, read};
use super::quote;
use bowline_proto::etcdserverpb as pb;
use pb::compare::{CompareResult, TargetUnion};
use pb::request_op::Request;

const GRAMMAR: &str = "\
Three blocks, each ended by an empty line:

  compares            value(\"key\") = \"text\"
                      mod(\"key\") > \"7\"
  success requests, if all compares are true
                      put key \"a value\"
                      get config/ --prefix
                      del old --prev-kv
  failure requests, otherwise

Compares: value (val), version (ver), create (c), mod (m) or lease, with =, !=, < or >. A key that does not
exist has version 0. Quoted strings: as in Go, \"\\n\", \"\\x00\"; or 'verbatim'. Requests have the options of
the commands get, put and del.

Example, to increase a counter unless another client has changed it:
  printf 'mod(\"n\") = \"12\"\\n\\nput n 8\\n\\nget n\\n\\n' | bowline txn";

/// Run one of two lists of requests atomically, depending on comparisons
///
/// Reads the transaction from standard input or a file. At a terminal, prompts for each part. Prints SUCCESS if all
/// comparisons are true and FAILURE otherwise, followed by the response to each request.
#[derive(Args, Debug)]
#[command(after_long_help = format!("{GRAMMAR}\n\n{EXIT_CODES}"))]
pub(crate) struct TxnOptions {
    /// File to read [default: standard input]
    file: Option<PathBuf>,

    /// Prompt even if standard input is not a terminal
    #[arg(short, long)]
    interactive: bool,
}

#[derive(Parser, Debug)]
#[command(name = "", disable_help_flag = true, no_binary_name = true)]
struct Line {
    #[command(subcommand)]
    request: LineRequest,
}

#[derive(Subcommand, Debug)]
enum LineRequest {
    Get(GetOptions),
    Put(PutOptions),
    Del(DelOptions),
}

pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: TxnOptions,
) -> Result<(), Failure> {
    let request = match &options.file {
        Some(file) => {
            let bytes = read(file)?;
            parse(&mut &bytes[..], |_| Ok(()))?
        }
        None => {
            let prompts = options.interactive || io::stdin().is_terminal();
            let prompt = |words: &str| if prompts { output.say(words) } else { Ok(()) };
            parse(&mut io::stdin().lock(), prompt)?
        }
    };
    let is_change = |op: &pb::RequestOp| !matches!(op.request, Some(Request::RequestRange(_)));
    let changes = request.success.iter().chain(&request.failure).any(is_change);
    let effect = if changes { CallKind::Change } else { CallKind::Repeatable };
    let call = async |link: Link| link.kv().txn(request.clone()).await;
    output.show(&client.ask(effect, call).await?)
}

fn parse(
    input: &mut impl BufRead,
    prompt: impl Fn(&str) -> Result<(), Failure>,
) -> Result<pb::TxnRequest, Failure> {
    prompt("compares:")?;
    let compare = block(input, compare)?;
    prompt("success requests (get, put, del):")?;
    let success = block(input, request)?;
    prompt("failure requests (get, put, del):")?;
    let failure = block(input, request)?;
    Ok(pb::TxnRequest { compare, success, failure })
}

/// Parses lines up to an empty line or the end of the input.
fn block<T>(
    input: &mut impl BufRead,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, Failure> {
    let mut items = Vec::new();
    loop {
        let mut line = String::new();
        let read = input.read_line(&mut line);
        let read =
            read.map_err(|error| Failure::Local("cannot read the transaction".to_owned(), error))?;
        let line = line.trim();
        if read == 0 || line.is_empty() {
            return Ok(items);
        }
        items.push(parse(line).map_err(Failure::Usage)?);
    }
}

fn compare(line: &str) -> Result<pb::Compare, String> {
    let wrong = |why: &str| format!("{line}: {why}; for example: mod(\"key\") > \"7\"");
    let (target, rest) = line.split_once('(').ok_or_else(|| wrong("expected a compare"))?;
    let (key, rest) = quote::quoted(rest.trim_start()).map_err(|why| wrong(&why))?;
    let rest = rest.trim_start().strip_prefix(')').ok_or_else(|| wrong("missing )"))?;
    let rest = rest.trim_start();
    let operators = [
        ("!=", CompareResult::NotEqual),
        ("=", CompareResult::Equal),
        ("<", CompareResult::Less),
        (">", CompareResult::Greater),
    ];
    let operator = operators.iter().find(|(text, _)| rest.starts_with(text));
    let (text, result) = operator.ok_or_else(|| wrong("expected =, !=, < or >"))?;
    let (value, rest) =
        quote::quoted(rest[text.len()..].trim_start()).map_err(|why| wrong(&why))?;
    if !rest.trim().is_empty() {
        return Err(wrong("unexpected text after the compare"));
    }
    let number = |radix| {
        let text = std::str::from_utf8(&value).map_err(|_| wrong("expected a number"))?;
        i64::from_str_radix(text, radix).map_err(|_| wrong("expected a number"))
    };
    let target = match target.trim() {
        "ver" | "version" => TargetUnion::Version(number(10)?),
        "c" | "create" => TargetUnion::CreateRevision(number(10)?),
        "m" | "mod" => TargetUnion::ModRevision(number(10)?),
        "lease" => TargetUnion::Lease(number(16)?),
        "val" | "value" => TargetUnion::Value(Bytes::copy_from_slice(&value)),
        _ => return Err(wrong("expected value, version, create, mod or lease")),
    };
    Ok(pb::Compare::new(key, *result, target))
}

fn request(line: &str) -> Result<pb::RequestOp, String> {
    use std::os::unix::ffi::OsStringExt;
    let words = quote::words(line).map_err(|why| format!("{line}: {why}"))?;
    let words = words.into_iter().map(std::ffi::OsString::from_vec);
    let parsed = Line::try_parse_from(words).map_err(|error| {
        let error = error.to_string();
        let why = error.lines().next().unwrap_or_default();
        format!("{line}: {}", why.trim_start_matches("error: "))
    })?;
    let to_text = |failure: Failure| failure.to_string();
    let taken = || format!("{line}: standard input may be in use for the transaction: name a file");
    Ok(match parsed.request {
        LineRequest::Get(options) if options.reads_input() => return Err(taken()),
        LineRequest::Del(options) if options.reads_input() => return Err(taken()),
        LineRequest::Put(options) if options.reads_input() => {
            return Err(format!("{line}: missing value, or file for it"));
        }
        LineRequest::Get(options) => options.request().map_err(to_text)?.into(),
        LineRequest::Del(options) => options.request().map_err(to_text)?.into(),
        LineRequest::Put(options) => options.request().map_err(to_text)?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<pb::TxnRequest, String> {
        parse(&mut text.as_bytes(), |_| Ok(())).map_err(|failure| failure.to_string())
    }

    #[test]
    fn transaction_text_has_three_blocks() {
        let txn = "mod(\"k\") > \"0\"\nval( \"a)\\x00\" )!=\"x y\"\n\nget k --prefix\nput x \"a b\"\n\ndel q\n";
        let txn = parsed(txn).unwrap();
        assert_eq!(txn.compare[1].key, &b"a)\0"[..]);
        assert_eq!(txn.compare[1].result, i32::from(CompareResult::NotEqual));
        assert_eq!(txn.compare[0].target_union, Some(TargetUnion::ModRevision(0)));
        let puts = Request::RequestPut(pb::PutRequest {
            key: "x".into(),
            value: "a b".into(),
            ..Default::default()
        });
        assert_eq!(txn.success[1].request.as_ref(), Some(&puts));
        assert_eq!((txn.success.len(), txn.failure.len()), (2, 1));
    }

    #[test]
    fn invalid_transaction_line_is_named() {
        for text in
            ["mod(\"k\") ~ \"1\"", "mod(k) = \"1\"", "mod(\"k\") = \"x\"", "size(\"k\") = \"1\""]
        {
            assert!(parsed(text).unwrap_err().starts_with(text), "{text}");
        }
        for text in ["put x", "pot x y", "get", "put x \"y\\q\"", "put x y --lease zz"] {
            assert!(parsed(&format!("\n{text}")).unwrap_err().contains(text), "{text}");
        }
    }
}
