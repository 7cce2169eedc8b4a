//! The directory of a demo. The demo creates the directory at the start and removes it at the end. Only files that the
//! demo created are removed.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A directory that is removed on drop, unless it is to be kept.
#[derive(Debug)]
pub(crate) struct Workplace {
    dir: PathBuf,
    /// Topmost directory that was created, if any.
    made: Option<PathBuf>,
    keep: bool,
}

impl Workplace {
    /// Uses `dir`, which must be empty or missing. Without `dir`, creates a new directory for temporary files.
    pub(crate) fn make(dir: Option<&Path>, keep: bool) -> io::Result<Self> {
        let Some(dir) = dir else {
            let dir = tempfile::Builder::new().prefix("bowline-demo-").tempdir()?.keep();
            return Ok(Self { made: Some(dir.clone()), dir, keep });
        };
        let dir = std::path::absolute(dir)?;
        match fs::read_dir(&dir) {
            Ok(mut entries) => match entries.next() {
                None => Ok(Self { dir, made: None, keep }),
                Some(_) => Err(io::Error::other("the directory is not empty")),
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

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of the ledger's file.
    pub(crate) fn ledger(&self) -> PathBuf {
        self.dir.join("ledger.jsonl")
    }

    /// Returns the data directory of a member.
    pub(crate) fn data(&self, member: &str) -> PathBuf {
        self.dir.join(member)
    }

    /// Returns the file with the standard error of a member's process.
    pub(crate) fn log(&self, member: &str) -> PathBuf {
        self.dir.join(format!("{member}.log"))
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        // The directory was empty at the start, so everything in it was created here.
        let removed = match &self.made {
            Some(made) => fs::remove_dir_all(made),
            None => clear(&self.dir),
        };
        if let Err(error) = removed {
            crate::print_failure(&format_args!("cannot delete {}: {error}", self.dir.display()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_removes_only_its_own_files() {
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
    fn nonempty_directory_is_rejected_and_kept() {
        let outer = Workplace::make(None, false).unwrap();
        fs::write(outer.ledger(), "mine").unwrap();
        let error = Workplace::make(Some(outer.dir()), false).unwrap_err();
        assert_eq!(error.to_string(), "the directory is not empty");
        assert!(outer.ledger().exists());
    }
}
