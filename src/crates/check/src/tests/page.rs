//! Tests of the page of a violation: its bytes, the selection from a long history, and the escaping of texts.

use crate::page::{OPERATIONS_DRAWN, Page, REASON_DRAWN};
use crate::{
    Budget, Counterexample, History, Level, ListTxn, Operation, Register, RegisterCall,
    RegisterReply, TxnStep, cycles, linear,
};

type Registers = History<RegisterCall, RegisterReply>;

fn write(value: i64) -> RegisterCall {
    RegisterCall::Write(Some(value.into()))
}

fn saw(value: i64) -> RegisterReply {
    RegisterReply::Read(Some(value.into()))
}

fn reason(history: &Registers) -> Counterexample {
    let verdict = linear::check(&Register::default(), history, Budget::default());
    verdict.violation().expect("it is broken").clone()
}

/// Returns a history with a stale read between writes, one of which has an unknown outcome.
fn stale() -> Registers {
    vec![
        Operation::ok(10, 14, write(1), RegisterReply::Written).by(1),
        Operation::unknown(12, write(3)).by(3),
        Operation::ok(15, 19, write(2), RegisterReply::Written).by(2),
        Operation::failed(16, write(4)).by(4),
        Operation::ok(20, 24, RegisterCall::Read, saw(1)).by(1),
        Operation::ok(21, 23, RegisterCall::Read, saw(2)).by(2),
    ]
}

/// Asserts that all tags are closed in the right order.
fn assert_is_well_formed(html: &str) {
    const WITHOUT_END: [&str; 2] = ["!DOCTYPE", "meta"];
    let mut open: Vec<&str> = Vec::new();
    // The contents of these elements are not markup.
    let mut text = html.to_owned();
    for (begin, end) in [("<style>", "</style>"), ("<script>", "</script>")] {
        let from = text.find(begin).unwrap() + begin.len();
        let until = text.find(end).unwrap();
        text.replace_range(from..until, "");
    }
    for tag in text.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').unwrap_or_else(|| panic!("an open tag: {tag:?}"));
        let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap();
        if let Some(end) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(end), "{tag}");
        } else if !tag.ends_with('/') && !WITHOUT_END.contains(&name) {
            let from = text.as_ptr() as usize;
            open.push(&text[name.as_ptr() as usize - from..][..name.len()]);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

/// The golden page is `violation.html` in this directory.
#[test]
fn page_is_deterministic() {
    let html = Page::new("a register").lines(&[1, 2, 3, 5, 8, 13]).of(&stale(), &reason(&stale()));
    assert_is_well_formed(&html);
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/violation.html");
    if std::env::var_os("BOWLINE_WRITE_GOLDEN").is_some() {
        std::fs::write(golden, &html).unwrap();
    }
    let expected = include_str!("violation.html");
    let differs = html.lines().zip(expected.lines()).find(|(one, other)| one != other);
    assert!(html == expected, "{differs:#?}: if it should, run with BOWLINE_WRITE_GOLDEN=1");
}

#[test]
fn each_operation_is_drawn_with_its_details() {
    let html = Page::new("a register").of(&stale(), &reason(&stale()));
    let bar = |index: usize| {
        let from = html.find(&format!("<a href=\"#o{index}\" class=\"bar")).unwrap();
        &html[from..from + html[from..].find("</a>").unwrap()]
    };
    assert!(bar(0).contains("class=\"bar ok bad\""), "{}", bar(0));
    assert!(bar(1).contains("class=\"bar unknown open\"") && bar(1).contains("write 3 → ?"));
    assert!(bar(2).contains("class=\"bar ok bad\""), "{}", bar(2));
    assert!(bar(3).contains("class=\"bar failed\"") && bar(3).contains("write 4 failed"));
    assert!(bar(4).contains("class=\"bar ok bad stuck\"") && bar(4).contains("read → 1"));
    assert!(bar(5).contains("class=\"bar ok\""), "{}", bar(5));
    assert!(html.contains("One of these must be next, but none can be"));
    // All operations are visible without a click.
    for index in 0..6 {
        assert!(html.contains(&format!("<tr id=\"o{index}\"")), "{index}");
    }
    assert!(html.contains("All 6 operations are drawn."));
}

#[test]
fn page_escapes_the_content_of_a_history() {
    let evil = "</title><script>alert(1)</script>\"'&\u{202e}\u{0}";
    let value = |text: &str| RegisterCall::Write(Some(text.into()));
    let history = vec![
        Operation::ok(1, 2, value(evil), RegisterReply::Written).on(evil),
        Operation::ok(3, 4, RegisterCall::Read, RegisterReply::Read(Some("<b>".into()))).on(evil),
    ];
    let html = Page::new(evil).of(&history, &reason(&history));
    assert_is_well_formed(&html);
    assert!(!html.contains("alert(1)</script>") && !html.contains("<b>"), "{html}");
    assert!(!html.contains('\u{202e}') && !html.contains('\0'), "{html}");
    assert!(html.contains("&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;"));
}

#[test]
fn a_page_needs_no_network() {
    let html = Page::new("a register").of(&stale(), &reason(&stale()));
    for word in ["http:", "https:", "src=", "@import", "<link"] {
        assert!(!html.contains(word), "{word}");
    }
    assert!(!html.replace("url(#fade)", "").replace("url(#head)", "").contains("url("));
}

#[test]
fn long_history_is_drawn_as_a_window_with_a_note() {
    let mut history = Registers::new();
    for n in 0..5_000 {
        let at = 10 * n as u64;
        history.push(Operation::ok(at, at + 5, write(n), RegisterReply::Written).by(n as u64 % 5));
        history.push(Operation::ok(at + 6, at + 8, RegisterCall::Read, saw(n)).by(7).on("other"));
    }
    history.retain(|operation| operation.object.is_empty() || operation.invoked.0 % 3 == 1);
    // A read on one object only, long after the write that it should have seen.
    let at = 40_003;
    history.push(Operation::ok(at, at + 1, RegisterCall::Read, saw(7)).by(9));
    let mut why = reason(&history.iter().filter(|one| one.object.is_empty()).cloned().collect());
    assert!(why.operations.len() <= 3, "{why}");
    // The operations have other indices in the whole history.
    let places: Vec<usize> =
        (0..history.len()).filter(|place| history[*place].object.is_empty()).collect();
    for index in &mut why.operations {
        *index = places[*index];
    }
    (why.dead_end, why.links) = (None, Vec::new());
    let html = Page::new("long").of(&history, &why);
    assert_is_well_formed(&html);
    let bars = html.matches("class=\"bar ").count();
    assert!((OPERATIONS_DRAWN..=OPERATIONS_DRAWN + 4).contains(&bars), "{bars}");
    for index in &why.operations {
        assert!(html.contains(&format!("<a href=\"#o{index}\" class=\"bar ok bad\"")), "{index}");
    }
    let left_out = 5_001 - bars;
    assert!(html.contains(&format!("{left_out} more of this object are not drawn.")), "{left_out}");
    assert!(html.contains("operations of other objects are not drawn."));
    assert!(html.len() < 200_000, "{} bytes", html.len());
}

#[test]
fn long_reason_is_drawn_with_its_last_operations() {
    let history: Registers =
        (0..4_000).map(|n| Operation::ok(n, n + 1, write(7), RegisterReply::Written)).collect();
    let why = Counterexample { operations: (0..4_000).collect(), ..Counterexample::default() };
    let html = Page::new("long").of(&history, &why);
    assert_is_well_formed(&html);
    let bars = html.matches("class=\"bar ").count();
    assert_eq!(bars, REASON_DRAWN + OPERATIONS_DRAWN);
    assert!(html.contains("3740 more of this object are not drawn."));
    assert!(html.len() < 200_000, "{} bytes", html.len());
}

#[test]
fn cycle_is_drawn_with_arrows() {
    let txn =
        |read: &str, write: &str| ListTxn(vec![TxnStep::read(read), TxnStep::write(write, 1)]);
    let history = vec![
        Operation::ok(1, 9, txn("x", "y"), vec![vec![]]).by(1),
        Operation::ok(2, 8, txn("y", "x"), vec![vec![]]).by(2),
    ];
    let verdict = cycles::lists(&history, Level::default());
    let html = Page::new("skew").of(&history, verdict.violation().unwrap());
    assert_is_well_formed(&html);
    assert_eq!(html.matches("<path class=\"link\"").count(), 2);
    assert!(html.contains("<title>#0 before #1: it read x as [], which lacks 1"), "{html}");
    assert!(html.contains("read x, append y 1 → [[]]"), "{html}");
}
