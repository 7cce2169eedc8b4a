//! Writes each log line to the outputs listed in `--log-outputs`: standard error, standard output and files.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use thiserror::Error;

use super::rotation::RotatingFile;
use crate::serve::flags::{LogOptions, LogOutput};

#[derive(Debug, Error)]
#[error("cannot open the log file {}: {why}; correct --log-outputs", path.display())]
pub(in crate::serve) struct OpenError {
    path: PathBuf,
    why: io::Error,
}

/// The opened outputs.
#[derive(Clone)]
pub(super) struct Outputs(Arc<Vec<Output>>);

enum Output {
    Stderr,
    Stdout,
    /// Opened for appending; each line is one write.
    File(File),
    Rotating(Mutex<RotatingFile>),
}

impl Outputs {
    /// Opens the files, and creates missing ones.
    ///
    /// # Errors
    /// Fails at the first file that cannot be opened.
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
    /// Writes a line to every output. A failure of one output does not affect the others.
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
