//! A log file with the rotation of lumberjack, the library that etcd uses. If the next line would make `etcd.log` too
//! long, the file is renamed to `etcd-2026-11-27T18-30-00.000.log`, and a new `etcd.log` is created. A thread then
//! compresses rotated files, and deletes the files that exceed the maximum age or number.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::serve::flags::Rotation;

/// The time in a rotated file's name.
const TIME_FORMAT: &str = "%Y-%m-%dT%H-%M-%S%.3f";

/// Suffix of a compressed file.
const GZIP: &str = ".gz";

/// Permissions of a new file.
const MODE: u32 = 0o600;

/// A log file, opened for appending.
pub(super) struct RotatingFile {
    file: File,
    bytes: u64,
    /// Size from which the next rotation is due.
    rotate_at: u64,
    path: PathBuf,
    rotation: Rotation,
    /// Held by the thread that compresses and deletes rotated files.
    cleaning: Arc<Mutex<()>>,
}

impl RotatingFile {
    /// Opens a file, and creates it with its directory if missing.
    ///
    /// # Errors
    /// Fails if the file cannot be opened or is not a regular file: renaming a device would break it for other
    /// programs.
    pub(super) fn open(path: &Path, rotation: &Rotation) -> io::Result<Self> {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        let file = open_at_end(path, MODE)?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::other("only regular files can be rotated"));
        }
        let opened = Self {
            file,
            bytes: found.len(),
            rotate_at: rotation.bytes_max,
            path: path.to_owned(),
            rotation: rotation.clone(),
            cleaning: Arc::default(),
        };
        opened.clean();
        Ok(opened)
    }

    /// Appends a line, to a new file if the old one would become too long.
    pub(super) fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        let bytes = line.len() as u64;
        if self.bytes > 0 && self.bytes + bytes > self.rotate_at {
            match self.rotate() {
                Ok(()) => self.rotate_at = self.rotation.bytes_max,
                Err(error) => {
                    // The log stays in the old file. A retry at each line would be too expensive.
                    self.rotate_at = self.bytes + self.rotation.bytes_max;
                    let path = self.path.display();
                    drop(writeln!(
                        io::stderr(),
                        "bowline: cannot rotate the log file {path}: {error}"
                    ));
                }
            }
        }
        self.file.write_all(line)?;
        self.bytes += bytes;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        let mode = self.file.metadata()?.permissions().mode() & 0o7777;
        let backup = self.backup_path()?;
        match fs::rename(&self.path, &backup) {
            // Another program has moved or deleted the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        match open_at_end(&self.path, mode) {
            Ok(file) => self.file = file,
            Err(error) => {
                drop(fs::rename(&backup, &self.path));
                return Err(error);
            }
        }
        self.bytes = 0;
        self.clean();
        Ok(())
    }

    /// Returns an unused path for the current file.
    fn backup_path(&self) -> io::Result<PathBuf> {
        let zone = zone(&self.rotation);
        let mut at = Timestamp::now();
        loop {
            let time = at.to_zoned_datetime(zone.clone()).strftime(TIME_FORMAT).to_string();
            let path = Names::of(&self.path).rotated(&time);
            if !path.try_exists()? && !with_gzip(&path).try_exists()? {
                return Ok(path);
            }
            at += SignedDuration::from_millis(1);
        }
    }

    /// Starts compressing and deleting rotated files. After a failure the next rotation tries again.
    fn clean(&self) {
        let Self { path, rotation, cleaning, .. } = self;
        let (path, rotation, cleaning) = (path.clone(), rotation.clone(), Arc::clone(cleaning));
        if rotation.age_max.is_none() && rotation.backups_max.is_none() && !rotation.compress {
            return;
        }
        let clean = move || {
            let _one_at_a_time = cleaning.lock().unwrap_or_else(PoisonError::into_inner);
            drop(clean(&path, &rotation, Timestamp::now()));
        };
        drop(std::thread::Builder::new().name("log-rotation".to_owned()).spawn(clean));
    }
}

/// Opens a file for appending. `mode` applies to a new file.
fn open_at_end(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(mode).open(path)
}

fn zone(rotation: &Rotation) -> TimeZone {
    if rotation.local_time { TimeZone::system() } else { TimeZone::UTC }
}

fn with_gzip(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(GZIP);
    name.into()
}

/// The naming scheme of a log file's rotated files.
struct Names<'a> {
    dir: &'a Path,
    /// The parts of a file name before and after the time.
    prefix: String,
    extension: String,
}

impl<'a> Names<'a> {
    fn of(path: &'a Path) -> Self {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // As in Go, the extension starts at the last dot, wherever that dot is.
        let (stem, extension) = name.split_at(name.rfind('.').unwrap_or(name.len()));
        let (prefix, extension) = (format!("{stem}-"), extension.to_owned());
        Self { dir: dir.unwrap_or(Path::new(".")), prefix, extension }
    }

    fn rotated(&self, time: &str) -> PathBuf {
        self.dir.join(format!("{}{time}{}", self.prefix, self.extension))
    }

    /// Returns the time in the name of a rotated file, or `None` for other files.
    fn time(&self, name: &str) -> Option<DateTime> {
        let name = name.strip_suffix(GZIP).unwrap_or(name);
        let time = name.strip_prefix(&self.prefix)?.strip_suffix(&self.extension)?;
        // The parser accepts variants, so the result must format back to the same text.
        let parsed = DateTime::strptime(TIME_FORMAT, time).ok()?;
        (parsed.strftime(TIME_FORMAT).to_string() == time).then_some(parsed)
    }
}

/// Deletes rotated files that are too many or too old, and compresses the others if configured.
fn clean(path: &Path, rotation: &Rotation, now: Timestamp) -> io::Result<()> {
    let names = Names::of(path);
    let mut rotated: Vec<(DateTime, PathBuf)> = Vec::new();
    for found in fs::read_dir(names.dir)? {
        let found = found?;
        let is_file = found.file_type()?.is_file();
        if let Some(time) = names.time(&found.file_name().to_string_lossy()).filter(|_| is_file) {
            rotated.push((time, found.path()));
        }
    }
    // Newest first. A file and its compressed form have the same time.
    rotated.sort_unstable_by(|one, other| other.cmp(one));
    let mut times: Vec<DateTime> = rotated.iter().map(|(time, _)| *time).collect();
    times.dedup();
    let oldest = rotation.backups_max.and_then(|most| times.get(most.checked_sub(1)?)).copied();
    let age =
        rotation.age_max.map(|age| SignedDuration::try_from(age).unwrap_or(SignedDuration::MAX));
    let cutoff = age.and_then(|age| now.checked_sub(age).ok());
    let cutoff = cutoff.map(|cutoff| cutoff.to_zoned_datetime(zone(rotation)).datetime());
    for (time, path) in rotated {
        if oldest.is_some_and(|oldest| time < oldest) || cutoff.is_some_and(|cutoff| time < cutoff)
        {
            drop(fs::remove_file(path));
        } else if rotation.compress && !path.to_string_lossy().ends_with(GZIP) {
            drop(compress(&path));
        }
    }
    Ok(())
}

/// Replaces a file by its compressed form. After a crash both may exist, and the next run compresses again.
fn compress(path: &Path) -> io::Result<()> {
    let target = with_gzip(path);
    let mut source = File::open(path)?;
    let mode = source.metadata()?.permissions().mode() & 0o7777;
    let open =
        |target| OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(target);
    let mut written = || {
        let mut gzip = GzEncoder::new(open(&target)?, Compression::default());
        io::copy(&mut source, &mut gzip)?;
        gzip.finish()?.set_permissions(Permissions::from_mode(mode))
    };
    match written() {
        Ok(()) => fs::remove_file(path),
        Err(error) => {
            drop(fs::remove_file(&target));
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::{Duration, Instant};

    use flate2::read::GzDecoder;
    use tempfile::{TempDir, tempdir};

    use super::*;

    /// Returns the files of a directory with their contents, sorted by name.
    fn files(dir: &TempDir) -> Vec<(String, String)> {
        let found = fs::read_dir(dir.path()).unwrap().map(|found| found.unwrap().path());
        let named = |path: PathBuf| {
            let bytes = fs::read(&path).unwrap();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, String::from_utf8_lossy(&bytes).into_owned())
        };
        let mut found: Vec<_> = found.map(named).collect();
        found.sort_unstable();
        found
    }

    fn contents(dir: &TempDir) -> Vec<String> {
        files(dir).into_iter().map(|(_, content)| content).collect()
    }

    fn rotation(bytes_max: u64) -> Rotation {
        Rotation { bytes_max, ..Rotation::default() }
    }

    #[test]
    fn line_that_exceeds_the_maximum_size_starts_a_new_file() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("below").join("x.log");
        let mut file = RotatingFile::open(&path, &rotation(10)).unwrap();
        for line in ["12345\n", "123\n", "1\n", "longer than ten\n", "1\n"] {
            file.write_line(line.as_bytes()).unwrap();
        }
        drop(file);
        // The bytes of an existing file count, too.
        let mut file = RotatingFile::open(&path, &rotation(10)).unwrap();
        file.write_line(b"12345678\n").unwrap();
        file.write_line(b"\n").unwrap();
        let below = dir.path().join("below");
        let mut found: Vec<_> =
            fs::read_dir(&below).unwrap().map(|found| found.unwrap().path()).collect();
        found.sort_unstable();
        let read: Vec<_> = found.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        assert_eq!(read, ["12345\n123\n", "1\n", "longer than ten\n", "1\n", "12345678\n\n"]);
        assert_eq!(found.last(), Some(&path), "the newest file keeps the configured name");
        let names = Names::of(&path);
        for path in &found[..4] {
            let name = path.file_name().unwrap().to_string_lossy();
            assert!(names.time(&name).is_some(), "{name}");
        }
    }

    #[test]
    fn new_log_file_keeps_the_permissions() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("x.log");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let mut file = RotatingFile::open(&path, &rotation(1)).unwrap();
        assert_eq!(mode(&path), 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        file.write_line(b"1\n").unwrap();
        file.write_line(b"2\n").unwrap();
        assert_eq!(mode(&path), 0o640);
        assert_eq!(contents(&dir), ["1\n", "2\n"]);
    }

    #[test]
    fn only_names_with_a_timestamp_are_rotated_files() {
        let time = "2026-11-27T18-30-00.123";
        for (path, name, is_rotated) in [
            ("/d/etcd.log", "etcd-2026-11-27T18-30-00.123.log", true),
            ("/d/etcd.log", "etcd-2026-11-27T18-30-00.123.log.gz", true),
            ("etcd", "etcd-2026-11-27T18-30-00.123", true),
            ("/d/a.b.log", "a.b-2026-11-27T18-30-00.123.log", true),
            ("/d/etcd.log", "etcd.log", false),
            ("/d/etcd.log", "etcd-2026-11-27T18-30-00.log", false),
            ("/d/etcd.log", "etcd-2026-11-27T18-30-00.1234.log", false),
            ("/d/etcd.log", "etcd-2026-11-27T18-30-00.123.txt", false),
            ("/d/etcd.log", "etcd-2026-13-27T18-30-00.123.log", false),
            ("/d/etcd.log", "other-2026-11-27T18-30-00.123.log", false),
            ("/d/etcd.log", "etcd-x-2026-11-27T18-30-00.123.log", false),
        ] {
            let found = Names::of(Path::new(path)).time(name);
            assert_eq!(found.is_some(), is_rotated, "{name}");
            let written = found.map(|found| found.strftime(TIME_FORMAT).to_string());
            assert!(written.is_none_or(|written| written == time), "{name}");
        }
    }

    /// Creates rotated files of these days of November, cleans up, and returns the names that are left.
    fn cleaned(days: &[&str], rotation: &Rotation) -> Vec<String> {
        let dir = tempdir().unwrap();
        let path = dir.path().join("x.log");
        fs::write(&path, "now").unwrap();
        fs::write(dir.path().join("x-kept.log"), "").unwrap();
        for day in days {
            let (day, end) = day.split_once('.').map_or((*day, ""), |(day, end)| (day, end));
            let dot = if end.is_empty() { "" } else { "." };
            fs::write(dir.path().join(format!("x-2026-11-{day}T12-00-00.000.log{dot}{end}")), day)
                .unwrap();
        }
        let now = "2026-11-27T18:00:00Z".parse().unwrap();
        clean(&path, rotation, now).unwrap();
        let names = files(&dir).into_iter().map(|(name, _)| name);
        names.map(|name| name.replace("x-2026-11-", "").replace("T12-00-00.000.log", "")).collect()
    }

    #[test]
    fn excess_and_expired_rotated_files_are_deleted() {
        let usual = Rotation { local_time: false, ..Rotation::default() };
        let days = ["20", "25", "26.gz", "27"];
        let own = ["x-kept.log", "x.log"];
        let left = |rotation: &Rotation| {
            let left = cleaned(&days, rotation);
            assert!(left.ends_with(&own.map(str::to_owned)), "{left:?}");
            left[..left.len() - 2].to_vec()
        };
        assert_eq!(left(&usual), days);
        assert_eq!(left(&Rotation { backups_max: Some(2), ..usual.clone() }), ["26.gz", "27"]);
        assert_eq!(left(&Rotation { backups_max: Some(9), ..usual.clone() }), days);
        let day = Duration::from_secs(86_400);
        let age = |days| Rotation { age_max: Some(day * days), ..usual.clone() };
        assert_eq!(left(&age(1)), ["27"]);
        assert_eq!(left(&age(7)), ["25", "26.gz", "27"]);
        assert_eq!(left(&age(u32::MAX)), days);
        assert_eq!(left(&Rotation { backups_max: Some(1), ..age(7) }), ["27"]);
        // A file and its compressed form, left by a crash, count as one.
        let both = ["24", "25", "26", "26.gz"];
        let two = Rotation { backups_max: Some(2), ..usual };
        assert_eq!(cleaned(&both, &two)[..3], ["25", "26", "26.gz"]);
    }

    #[test]
    fn rotated_files_are_compressed() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("x.log");
        let rotation = Rotation { compress: true, ..rotation(1) };
        let mut file = RotatingFile::open(&path, &rotation).unwrap();
        file.write_line(b"one\n").unwrap();
        file.write_line(b"two\n").unwrap();
        let begun = Instant::now();
        let rotated = loop {
            let found = files(&dir);
            // The original is removed when its compressed form is complete.
            if found.len() == 2 && found[0].0.ends_with(".log.gz") {
                break dir.path().join(&found[0].0);
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{found:?}");
            std::thread::yield_now();
        };
        let mut text = String::new();
        GzDecoder::new(File::open(rotated).unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "one\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");
    }

    #[test]
    fn failed_rename_keeps_writing_to_the_old_file() {
        let dir = tempdir().unwrap();
        let (below, away) = (dir.path().join("below"), dir.path().join("away"));
        let mut file = RotatingFile::open(&below.join("x.log"), &rotation(4)).unwrap();
        file.write_line(b"one\n").unwrap();
        fs::rename(&below, &away).unwrap();
        fs::write(&below, "not a directory").unwrap();
        file.write_line(b"2\n").unwrap();
        assert_eq!(fs::read_to_string(away.join("x.log")).unwrap(), "one\n2\n");
        // The rotation is retried only when another `maxsize` bytes were written.
        fs::remove_file(&below).unwrap();
        fs::rename(&away, &below).unwrap();
        file.write_line(b"x\n").unwrap();
        assert_eq!(fs::read_to_string(below.join("x.log")).unwrap(), "one\n2\nx\n");
        file.write_line(b"three\n").unwrap();
        assert_eq!(fs::read_to_string(below.join("x.log")).unwrap(), "three\n");
    }

    #[test]
    fn moved_log_file_is_recreated_at_the_next_rotation() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("x.log");
        let mut file = RotatingFile::open(&path, &rotation(4)).unwrap();
        file.write_line(b"one\n").unwrap();
        fs::rename(&path, dir.path().join("moved")).unwrap();
        file.write_line(b"two\n").unwrap();
        assert_eq!(contents(&dir), ["one\n", "two\n"]);
    }

    #[test]
    fn only_regular_files_are_rotated() {
        for (path, words) in [("/dev/null", "only regular files"), ("/", "directory")] {
            let error =
                RotatingFile::open(Path::new(path), &rotation(1)).err().unwrap().to_string();
            assert!(error.contains(words), "{path}: {error}");
        }
    }
}
