//! Tests of password prompts: the password is read from a terminal, the prompt appears once, and an empty typed
//! password is rejected.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

use crate::ask::{Going, ask, command, command_at, run};
use bowline_testkit::process::Server;

/// Opens a pseudoterminal. Returns the keyboard side and the program's side.
fn terminal() -> (File, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    let keys = openpt(flags).unwrap();
    grantpt(&keys).unwrap();
    unlockpt(&keys).unwrap();
    let end = ioctl_tiocgptpeer(&keys, flags).unwrap();
    (File::from(keys), end)
}

/// Starts a command at a terminal, and waits until it prompts.
fn asked(mut command: Command, end: &OwnedFd, words: &str) -> Going {
    command.stdin(end.try_clone().unwrap()).stderr(Stdio::piped());
    let mut going = Going::start(command);
    let mut err = going.child.stderr.take().unwrap();
    let mut printed = String::new();
    while !printed.contains(words) {
        let mut byte = [0];
        assert_eq!(err.read(&mut byte).unwrap(), 1, "the output has ended: {printed}");
        printed.push(char::from(byte[0]));
    }
    // Discards the rest of standard error.
    std::thread::spawn(move || std::io::copy(&mut err, &mut std::io::sink()));
    going
}

fn shows(end: &OwnedFd) -> bool {
    tcgetattr(end).unwrap().local_modes.contains(LocalModes::ECHO)
}

#[test]
fn password_prompt_comes_once_and_before_the_timeout_starts() {
    let server = Server::alone(&[]);
    for line in [&["user", "add", "root:rp"][..], &["auth", "enable"]] {
        ask(&server, line).done();
    }
    let (mut keys, end) = terminal();
    let mut slow = command_at(&format!("127.0.0.1:1,{}", server.address));
    slow.args(["--user", "root", "put", "k", "v", "--command-timeout", "2s"]);
    let mut slow = asked(slow, &end, "Password of root: ");
    // Typing takes longer than the command timeout.
    std::thread::sleep(Duration::from_secs(3));
    keys.write_all(b"rp\n").unwrap();
    assert_eq!((slow.line(), slow.child.wait().unwrap().code()), ("OK\n".to_owned(), Some(0)));

    let mut health = command_at(&format!("{0},{0}", server.address));
    health.args(["--user", "root", "endpoint", "health"]);
    let mut health = asked(health, &end, "Password of root: ");
    keys.write_all(b"rp\n").unwrap();
    let lines = health.lines(2);
    assert_eq!(lines.matches("is healthy").count(), 2, "{lines}");
    assert!(shows(&end));
}

#[test]
fn interrupted_password_prompt_restores_the_terminal() {
    let server = Server::alone(&[]);
    let (mut keys, end) = terminal();
    for arguments in [&["--user", "root", "get", "k"][..], &["user", "add", "root"]] {
        let mut asks = command(&server);
        asks.args(arguments);
        let mut asks = asked(asks, &end, "Password of root: ");
        while shows(&end) {}
        // The byte 3 is what Ctrl-C sends.
        keys.write_all(b"\x03").unwrap();
        assert_eq!(asks.child.wait().unwrap().code(), Some(130));
        assert!(shows(&end), "{arguments:?}");
    }
}

#[test]
fn empty_password_cannot_be_typed() {
    let server = Server::alone(&[]);
    ask(&server, &["user", "add", "bob:bp"]).done();
    let of = |arguments: &[&str], input: &[u8]| {
        let mut command = command(&server);
        command.args(arguments);
        run(command, input)
    };
    for arguments in [["user", "add", "ann"], ["user", "passwd", "bob"]] {
        let printed = of(&arguments, b"\n\n");
        assert_eq!(printed.code, 2, "{arguments:?}: {printed:?}");
        assert!(printed.err.contains("the password is empty"), "{printed:?}");
    }
    let nameless = of(&["user", "add", ":x"], b"");
    assert!(nameless.code == 2 && nameless.err.contains("empty user name"), "{nameless:?}");
    assert_eq!(ask(&server, &["user", "list"]).done(), "bob\n");
    // Without a prompt, a password after a colon is used as given. With --no-password, a colon is part of the name.
    let read = "--interactive=false";
    let printed: [(&[&str], &[u8]); 7] = [
        (&["user", "add", "a", read], b""),
        (&["user", "add", "b", read], b"\n"),
        (&["user", "add", "c:"], b""),
        (&["user", "add", "d", "--no-password"], b""),
        (&["user", "add", "e:x", "--no-password", "--new-user-password", "y"], b""),
        (&["user", "passwd", "bob", read], b""),
        (&["user", "passwd", "bob", read], b"\n"),
    ];
    for (arguments, input) in printed {
        of(arguments, input).done();
    }
    assert_eq!(ask(&server, &["user", "list"]).done(), "a\nb\nbob\nc\nd\ne:x\n");
    let nowhere = ask(&server, &["--user", "bob", "get", "k"]);
    assert_eq!(nowhere.code, 2, "{nowhere:?}");
    assert!(nowhere.err.contains("BOWLINE_PASSWORD"), "{nowhere:?}");
}
