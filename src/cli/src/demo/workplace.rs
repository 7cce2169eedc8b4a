//! The directory that a demo works in: made at the start, removed at the end, and nothing removed that
//! was not made.

use std::fs::{self, DirBuilder};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// See the module. Removes itself when it is dropped, unless told to stay.
#[derive(Debug)]
pub(crate) struct Workplace {
    dir: PathBuf,
    /// The uppermost directory that was made, if any was.
    made: Option<PathBuf>,
    keep: bool,
}

impl Workplace {
    /// Uses `dir`, which must be empty or absent; without one, a fresh directory for temporary files.
    pub(crate) fn make(dir: Option<&Path>, keep: bool) -> io::Result<Self> {
        match dir {
            Some(dir) => Self::given(dir, keep),
            None => Self::fresh(keep),
        }
    }

    fn given(dir: &Path, keep: bool) -> io::Result<Self> {
        let dir = std::path::absolute(dir)?;
        match fs::read_dir(&dir) {
            Ok(mut entries) => match entries.next() {
                None => Ok(Self { dir, made: None, keep }),
                Some(_) => Err(io::Error::other("it is not empty")),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let absent = dir.ancestors().take_while(|path| !path.exists()).last();
                let made = absent.map(Path::to_owned);
                DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
                Ok(Self { dir, made, keep })
            }
            Err(error) => Err(error),
        }
    }

    fn fresh(keep: bool) -> io::Result<Self> {
        let process = std::process::id();
        for attempt in 0_u32.. {
            let dir = std::env::temp_dir().join(format!("bowline-demo-{process}-{attempt}"));
            match DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => return Ok(Self { made: Some(dir.clone()), dir, keep }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        unreachable!("four thousand million directories of one name")
    }

    /// Where it is.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file of the ledger.
    pub(crate) fn ledger(&self) -> PathBuf {
        self.dir.join("ledger.jsonl")
    }

    /// The data directory of a member.
    pub(crate) fn data(&self, member: &str) -> PathBuf {
        self.dir.join(member)
    }

    /// What a member's process wrote on standard error.
    pub(crate) fn log(&self, member: &str) -> PathBuf {
        self.dir.join(format!("{member}.log"))
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        // It was empty when the demo came, so all that is in it was made here.
        let removed = match &self.made {
            Some(made) => fs::remove_dir_all(made),
            None => clear(&self.dir),
        };
        if let Err(error) = removed {
            crate::complain(&format_args!("{} is left behind: {error}", self.dir.display()));
        }
    }
}

fn clear(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The lowest port that is looked at. Below those that systems hand out for outgoing connections: an
/// address that a killed member left must not be taken by somebody's connection before it is back.
const PORT_MIN: u16 = 20_000;
/// How many ports are looked at.
const PORTS: u32 = 12_000;

/// So many addresses on loopback that nobody listens at. `start` spreads demos that run side by side.
pub(crate) fn free_addresses(many: usize, start: u32) -> io::Result<Vec<String>> {
    let mut held = Vec::new();
    for step in 0..PORTS {
        let port = PORT_MIN + u16::try_from((start.wrapping_mul(16) + step) % PORTS).unwrap_or(0);
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            held.push(listener);
        }
        if held.len() == many {
            return held.iter().map(|listener| Ok(listener.local_addr()?.to_string())).collect();
        }
    }
    Err(io::Error::other("no free port on loopback"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_made_is_removed() {
        let outer = Workplace::make(None, false).unwrap();
        let deep = outer.dir().join("a/b");
        {
            let inner = Workplace::make(Some(&deep), false).unwrap();
            fs::write(inner.ledger(), "x").unwrap();
            fs::create_dir(inner.data("n1")).unwrap();
        }
        assert!(!outer.dir().join("a").exists());

        fs::create_dir_all(&deep).unwrap();
        {
            let inner = Workplace::make(Some(&deep), false).unwrap();
            fs::write(inner.ledger(), "x").unwrap();
        }
        assert_eq!(fs::read_dir(&deep).unwrap().count(), 0);

        drop(Workplace::make(Some(&deep.join("c")), true).unwrap());
        assert!(deep.join("c").exists());
        let gone = outer.dir().to_owned();
        drop(outer);
        assert!(!gone.exists());
    }

    #[test]
    fn a_directory_that_is_not_empty_is_left_alone() {
        let outer = Workplace::make(None, false).unwrap();
        fs::write(outer.ledger(), "mine").unwrap();
        let error = Workplace::make(Some(outer.dir()), false).unwrap_err();
        assert_eq!(error.to_string(), "it is not empty");
        assert!(outer.ledger().exists());
    }

    #[test]
    fn addresses_differ() {
        let addresses = free_addresses(5, std::process::id()).unwrap();
        let distinct: std::collections::BTreeSet<_> = addresses.iter().collect();
        assert_eq!(distinct.len(), 5);
    }
}
