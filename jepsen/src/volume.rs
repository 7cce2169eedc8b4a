//! Small file systems in mounted files, for faults that need a real file system: power cuts and full disks.
//!
//! ```text
//!   Plain    image file ── ext4                            a power cut loses unsynced data in the page cache
//!   Loose    image file ── ext4, data=writeback            in addition, a file's size may be durable before its data
//!   Cached   image file ── ext4 ── image file ── ext4      in addition, loses what the inner file system wrote
//!                           ╳ the power is cut here        without a flush, like a volatile disk cache
//!   Xfs      image file ── XFS                             like Plain, with another kind of journal
//! ```
//!
//! An image file contains a file system, which is mounted through a loop device. The power is cut by an ioctl that
//! shuts a file system down without flushing (`EXT4_IOC_SHUTDOWN`, `XFS_IOC_GOINGDOWN`). After the ioctl, nothing more
//! reaches the image, not even the journal. Data that was only in the page cache is lost at the next mount. Mounting
//! needs root and loop devices, and the ioctl is issued by perl. [`Volumes::possible`] checks whether this machine has
//! all of them, and reports what is missing.
//!
//! Partially written sectors are not covered here. The simulated disk of the library covers them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use tempfile::TempDir;

use crate::process::HarnessError;

/// Prefix of the directory of all volumes of a process, followed by the process id.
const PREFIX: &str = "bowline-volumes-";

/// Space that the outer file system of [`Medium::Cached`] uses for itself, in bytes.
const OUTER_BYTES: u64 = 32 << 20;

/// Size of the first steps when a volume is filled.
const FILL_BYTES: u64 = 64 << 20;

/// Arguments for an ext4 file system without reserved blocks for root.
const EXT4: &[&str] = &["mkfs.ext4", "-q", "-F", "-m", "0"];

const XFS: &[&str] = &["mkfs.xfs", "-q", "-f"];

/// A perl script that opens the given directories, reports that it is ready, waits for a line, and then shuts down
/// their file systems one after the other without flushing: `_IOR('X', 125, __u32)` with `NOLOGFLUSH`. Reports the
/// duration in microseconds, if it can measure it.
const SHUT_DOWN: &str = r#"
    $| = 1;
    my @dirs = map { open(my $dir, "<", $_) or die "$_: $!\n"; $dir } @ARGV;
    my $clock = eval { require Time::HiRes; \&Time::HiRes::time };
    print "ready\n";
    <STDIN>;
    my $begun = $clock && $clock->();
    for my $dir (@dirs) {
        my $flags = pack("L", 2);
        ioctl($dir, 0x8004587D, $flags) or die "cannot shut the file system down: $!\n";
    }
    my $took = $clock ? int(1e6 * ($clock->() - $begun)) : "";
    print "cut $took\n";
"#;

/// A kind of file system for a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// A file system that writes data before it commits the journal.
    Plain,
    /// A file system that may commit the journal before it writes data.
    Loose,
    /// A file system on a disk that loses unflushed data.
    Cached,
    /// XFS. Its images have at least 300 MiB.
    Xfs,
}

/// A file system in a file.
#[derive(Debug)]
struct Mount {
    image: PathBuf,
    at: PathBuf,
    options: &'static str,
    mounted: bool,
}

impl Mount {
    /// Makes an empty file system with a size of `bytes` and mounts it.
    fn make(
        image: PathBuf,
        at: PathBuf,
        bytes: u64,
        maker: &[&str],
        options: &'static str,
    ) -> Result<Self, HarnessError> {
        fs::File::create_new(&image)
            .and_then(|file| file.set_len(bytes))
            .and_then(|()| fs::create_dir(&at))
            .map_err(HarnessError::system("cannot create an image"))?;
        run(Command::new(maker[0]).args(&maker[1..]).arg(&image))?;
        let mut mount = Self { image, at, options, mounted: false };
        mount.mount()?;
        Ok(mount)
    }

    fn mount(&mut self) -> Result<(), HarnessError> {
        let options = format!("loop{}", self.options);
        run(Command::new("mount").args(["-o", &options]).arg(&self.image).arg(&self.at))?;
        self.mounted = true;
        Ok(())
    }

    fn unmount(&mut self) -> Result<(), HarnessError> {
        if self.mounted {
            run(Command::new("umount").arg(&self.at))?;
            self.mounted = false;
        }
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            // A lazy unmount also succeeds while a process still uses the mount.
            drop(run(Command::new("umount").arg("--lazy").arg(&self.at)));
        }
    }
}

/// A mounted volume.
#[derive(Debug)]
struct Volume {
    /// From the innermost to the outermost: the data is in the first, and the power is cut in the last.
    mounts: Vec<Mount>,
}

impl Volume {
    fn make(dir: &Path, medium: Medium, bytes: u64) -> Result<Self, HarnessError> {
        fs::create_dir(dir).map_err(HarnessError::system("cannot create a directory"))?;
        let (image, data) = (dir.join("image"), dir.join("data"));
        let mounts = match medium {
            Medium::Plain => vec![Mount::make(image, data, bytes, EXT4, "")?],
            Medium::Loose => vec![Mount::make(image, data, bytes, EXT4, ",data=writeback")?],
            Medium::Cached => {
                let outer = Mount::make(image, dir.join("disk"), bytes + OUTER_BYTES, EXT4, "")?;
                let inner = Mount::make(outer.at.join("image"), data, bytes, EXT4, "")?;
                vec![inner, outer]
            }
            Medium::Xfs => vec![Mount::make(image, data, bytes, XFS, "")?],
        };
        Ok(Self { mounts })
    }

    fn data(&self) -> &Path {
        &self.mounts[0].at
    }

    /// Returns the path of the file that fills the volume.
    fn ballast(&self) -> PathBuf {
        self.data().join("ballast")
    }

    /// Returns the mount point whose power is cut.
    fn powered(&self) -> &Path {
        &self.mounts[self.mounts.len() - 1].at
    }

    /// Mounts the volume again, as after a power cut.
    fn again(&mut self) -> Result<(), HarnessError> {
        self.mounts.iter_mut().try_for_each(Mount::unmount)?;
        self.mounts.iter_mut().rev().try_for_each(Mount::mount)
    }
}

/// The volumes of the members of a cluster. Dropping this value unmounts and removes all volumes. The processes that
/// use the volumes must have ended before.
#[derive(Debug)]
pub struct Volumes {
    volumes: Vec<Volume>,
    _dir: TempDir,
}

impl Volumes {
    /// Makes a volume with a size of `bytes` for each medium.
    ///
    /// # Errors
    ///
    /// Returns errors of the operating system and of the tools that make file systems.
    pub fn make(media: &[Medium], bytes: u64) -> Result<Self, HarnessError> {
        clear_up_after_the_dead();
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let dir = TempDir::with_prefix(prefix)
            .map_err(HarnessError::system("cannot create a directory"))?;
        let mut volumes = Vec::new();
        for (number, medium) in media.iter().enumerate() {
            let at = dir.path().join(format!("v{number}"));
            volumes.push(Volume::make(&at, *medium, bytes)?);
        }
        Ok(Self { volumes, _dir: dir })
    }

    /// Checks that this machine can make volumes, cut their power and mount them again, and that the volumes keep
    /// synced data.
    ///
    /// # Errors
    ///
    /// Returns the output of the tool that failed.
    pub fn possible() -> Result<(), String> {
        let try_out = || -> Result<(), HarnessError> {
            let mut volumes = Self::make(&[Medium::Cached], 8 << 20)?;
            let kept = volumes.dir(0).join("kept");
            fs::File::create(&kept)
                .and_then(|mut file| file.write_all(b"kept").and_then(|()| file.sync_all()))
                .and_then(|()| fs::File::open(volumes.dir(0))?.sync_all())
                .and_then(|()| fs::write(volumes.dir(0).join("lost"), b"lost"))
                .map_err(HarnessError::system("cannot write to a volume"))?;
            volumes.switch(&[0])?.cut()?;
            volumes.again(&[0])?;
            if fs::read(&kept).map_err(HarnessError::system("cannot read synced data"))? != b"kept"
            {
                return Err(HarnessError::Ended("a volume has lost synced data".to_owned()));
            }
            if volumes.dir(0).join("lost").exists() {
                return Err(HarnessError::Ended("a volume lost nothing in a power cut".to_owned()));
            }
            Ok(())
        };
        try_out().map_err(|trouble| trouble.to_string())
    }

    /// Returns the data directory of a member.
    pub fn dir(&self, member: usize) -> PathBuf {
        self.volumes[member].data().to_owned()
    }

    /// Fills the volume of a member to the last block with an additional file.
    ///
    /// # Errors
    ///
    /// Returns every error except that the volume is full, which is the purpose.
    pub fn fill(&self, member: usize) -> Result<(), HarnessError> {
        let system = HarnessError::system("cannot fill a volume");
        let file = fs::File::create(self.volumes[member].ballast()).map_err(system)?;
        let (mut at, mut step) = (0, FILL_BYTES);
        while step > 0 {
            match rustix::fs::fallocate(&file, FallocateFlags::empty(), at, step) {
                Ok(()) => at += step,
                Err(rustix::io::Errno::NOSPC) => step /= 2,
                Err(errno) => return Err(system(errno.into())),
            }
        }
        file.sync_all().map_err(system)
    }

    /// Removes the file that fills the volume.
    ///
    /// # Errors
    /// Returns an error if the volume was not filled.
    pub fn free(&self, member: usize) -> Result<(), HarnessError> {
        fs::remove_file(self.volumes[member].ballast())
            .map_err(HarnessError::system("cannot free a volume"))
    }

    /// Returns a switch for the power of these members.
    ///
    /// # Errors
    /// Returns an error if perl is missing or lacks the privilege.
    pub fn switch(&self, members: &[usize]) -> Result<Switch, HarnessError> {
        Switch::new(members.iter().map(|member| self.volumes[*member].powered()))
    }

    /// Mounts the volumes of these members again. The processes that use the volumes must have ended.
    ///
    /// # Errors
    /// Returns the errors of `mount`.
    pub fn again(&mut self, members: &[usize]) -> Result<(), HarnessError> {
        members.iter().try_for_each(|member| self.volumes[*member].again())
    }
}

/// A switch that cuts the power of several volumes at the same time.
#[derive(Debug)]
pub struct Switch {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Switch {
    fn new<'a>(volumes: impl Iterator<Item = &'a Path>) -> Result<Self, HarnessError> {
        let mut child = Command::new("perl")
            .args(["-e", SHUT_DOWN])
            .args(volumes)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(HarnessError::system("cannot start perl"))?;
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut switch = Self { child, output };
        switch.hear("ready")?;
        Ok(switch)
    }

    /// Cuts the power. Returns the maximum time between the first volume and the last.
    ///
    /// # Errors
    /// Returns an error if a file system does not shut down.
    pub fn cut(mut self) -> Result<Duration, HarnessError> {
        let begun = Instant::now();
        let mut input = self.child.stdin.take().expect("it is piped");
        input.write_all(b"\n").map_err(HarnessError::system("cannot cut the power"))?;
        let micros = self.hear("cut")?.parse().ok();
        let took = micros.map_or_else(|| begun.elapsed(), Duration::from_micros);
        // Wait for the script, because it uses the volumes until it ends.
        self.child.wait().map_err(HarnessError::system("cannot wait for perl"))?;
        Ok(took)
    }

    /// Reads a line that must begin with a word, and returns the rest.
    fn hear(&mut self, word: &str) -> Result<String, HarnessError> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(HarnessError::system("cannot read from perl"))?;
        match line.strip_prefix(word) {
            Some(rest) => Ok(rest.trim().to_owned()),
            None => Err(HarnessError::Ended(format!(
                "unexpected output of perl: {line:?} instead of {word:?}"
            ))),
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        // If the process has already ended, the error is ignored.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Runs a tool. If the tool fails, returns its output as the error.
fn run(command: &mut Command) -> Result<(), HarnessError> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(HarnessError::system("cannot start a file system tool"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    let tool = command.get_program().to_string_lossy().into_owned();
    Err(HarnessError::Tool { tool, status: output.status.to_string(), output: text })
}

/// Unmounts and removes what a killed run has left.
fn clear_up_after_the_dead() {
    let is_dead = |path: &str| {
        let owner = path.split_once(PREFIX).and_then(|(_, rest)| rest.split_once('-'));
        owner.is_some_and(|(owner, _)| {
            owner.bytes().all(|byte| byte.is_ascii_digit())
                && !Path::new("/proc").join(owner).exists()
        })
    };
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    // Later mounts are on top of earlier ones, so they are unmounted first.
    for at in mounts.lines().rev().filter_map(|line| line.split(' ').nth(1)) {
        if is_dead(at) {
            drop(run(Command::new("umount").arg(at)));
        }
    }
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.to_str().is_some_and(is_dead) {
            drop(fs::remove_dir_all(path));
        }
    }
}
