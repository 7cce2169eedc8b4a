//! Where the log is written: each line to standard error, standard output and files, as `--log-outputs` lists them.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use thiserror::Error;

use super::rotation::RotatingFile;
use crate::server::flags::{LogOptions, LogOutput};

/// A log file that cannot be opened.
#[derive(Debug, Error)]
#[error("cannot open the log file {}: {why}; correct --log-outputs", path.display())]
pub(in crate::server) struct OpenError {
    path: PathBuf,
    why: io::Error,
}

/// The outputs, opened.
#[derive(Clone)]
pub(super) struct Outputs(Arc<Vec<Output>>);

enum Output {
    Stderr,
    Stdout,
    /// Opened for appending: each line is one write.
    File(File),
    Rotating(Mutex<RotatingFile>),
}

impl Outputs {
    /// Opens the files, and makes those that are missing.
    ///
    /// # Errors
    /// The first file that cannot be opened.
    pub(super) fn open(options: &LogOptions) -> Result<Self, OpenError> {
        let open = |output: &LogOutput| match output {
            LogOutput::Stderr => Ok(Output::Stderr),
            LogOutput::Stdout => Ok(Output::Stdout),
            LogOutput::File(path) => {
                let opened = match &options.rotation {
                    None => append(path).map(Output::File),
                    Some(rotation) => RotatingFile::open(path, rotation)
                        .map(|file| Output::Rotating(Mutex::new(file))),
                };
                opened.map_err(|why| OpenError { path: path.clone(), why })
            }
        };
        options.outputs.iter().map(open).collect::<Result<_, _>>().map(|open| Self(Arc::new(open)))
    }

    /// Writes a line to the files.
    pub(super) fn write_to_files(&self, line: &[u8]) {
        for output in self.0.iter() {
            if matches!(output, Output::File(_) | Output::Rotating(_)) {
                drop(output.write(line));
            }
        }
    }
}

/// Opens a file as etcd opens one that it does not rotate.
fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

impl Output {
    fn write(&self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Stderr => io::stderr().lock().write_all(line),
            Self::Stdout => io::stdout().lock().write_all(line),
            Self::File(file) => (&mut &*file).write_all(line),
            Self::Rotating(file) => {
                file.lock().unwrap_or_else(PoisonError::into_inner).write_line(line)
            }
        }
    }
}

impl Write for Outputs {
    /// Writes a line to every output. A line that an output does not take is lost there, and not on the others.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        for output in self.0.iter() {
            drop(output.write(line));
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
