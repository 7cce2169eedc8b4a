//! Small file systems of their own, in files that are mounted, for faults that only a real file system
//! has: one that loses its power, one that is full.
//!
//! ```text
//!   Plain    image ── ext4                       what is not synced is lost with the page cache
//!   Loose    image ── ext4, data=writeback       and sizes may be there before their bytes are
//!   Cached   image ── ext4 ── image ── ext4      and so is what the inner one gave to its disk and
//!                     ╳ the power is cut here    did not flush: a disk with a volatile cache
//!   Xfs      image ── XFS                        another way to keep a journal
//! ```
//!
//! The power is cut by the ioctl that file systems have for it (`EXT4_IOC_SHUTDOWN`, `XFS_IOC_GOINGDOWN`, without flushing):
//! nothing more reaches the image, not even the journal, and what only the page cache knew is gone when
//! it is mounted again. Mounting needs root and loop devices, and the ioctl needs a tool that can speak
//! it (perl): [`Volumes::possible`] says whether this machine has all that, or what is missing.
//!
//! Not covered: a sector that is half written. The simulated disk of the library does that.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use tempfile::TempDir;

use crate::process::HarnessError;

/// What the directory of all volumes of one process is called, with the process's id behind it.
const PREFIX: &str = "bowline-volumes-";

/// What the outer file system of [`Medium::Cached`] takes for itself.
const OUTER_BYTES: u64 = 32 << 20;

/// What a volume is filled with in one step, at first.
const FILL_BYTES: u64 = 64 << 20;

/// What makes an ext4 that keeps nothing back for root.
const EXT4: &[&str] = &["mkfs.ext4", "-q", "-F", "-m", "0"];

const XFS: &[&str] = &["mkfs.xfs", "-q", "-f"];

/// Opens every directory that it is given, says so, waits for a line, and shuts their file systems down
/// one after the other without flushing anything: `_IOR('X', 125, __u32)` with `NOLOGFLUSH`. Says how many
/// microseconds that took, if it can tell.
const SHUT_DOWN: &str = r#"
    $| = 1;
    my @dirs = map { open(my $dir, "<", $_) or die "$_: $!\n"; $dir } @ARGV;
    my $clock = eval { require Time::HiRes; \&Time::HiRes::time };
    print "ready\n";
    <STDIN>;
    my $begun = $clock && $clock->();
    for my $dir (@dirs) {
        my $flags = pack("L", 2);
        ioctl($dir, 0x8004587D, $flags) or die "the file system does not shut down: $!\n";
    }
    my $took = $clock ? int(1e6 * ($clock->() - $begun)) : "";
    print "cut $took\n";
"#;

/// What a volume stands on; see the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// A file system that orders data before the journal's commit.
    Plain,
    /// One that does not.
    Loose,
    /// One on a disk that loses what was not flushed.
    Cached,
    /// XFS. Its images have 300 MiB at least.
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
    /// Makes an empty file system of so many bytes, and mounts it.
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
            .map_err(|source| HarnessError::System { what: "making an image", source })?;
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
            // Whoever still uses it keeps it; nobody finds it any more.
            drop(run(Command::new("umount").arg("--lazy").arg(&self.at)));
        }
    }
}

/// A mounted volume.
#[derive(Debug)]
struct Volume {
    /// From the inside to the outside: the data is in the first, the power is cut in the last.
    mounts: Vec<Mount>,
}

impl Volume {
    fn make(dir: &Path, medium: Medium, bytes: u64) -> Result<Self, HarnessError> {
        fs::create_dir(dir)
            .map_err(|source| HarnessError::System { what: "making a directory", source })?;
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

    /// What takes up room.
    fn ballast(&self) -> PathBuf {
        self.data().join("ballast")
    }

    /// What loses its power.
    fn powered(&self) -> &Path {
        &self.mounts[self.mounts.len() - 1].at
    }

    /// Mounts it again, as after a loss of power.
    fn again(&mut self) -> Result<(), HarnessError> {
        self.mounts.iter_mut().try_for_each(Mount::unmount)?;
        self.mounts.iter_mut().rev().try_for_each(Mount::mount)
    }
}

/// A volume for each member of a cluster. Dropping it unmounts and removes all of them: whatever uses
/// them must have ended.
#[derive(Debug)]
pub struct Volumes {
    volumes: Vec<Volume>,
    _dir: TempDir,
}

impl Volumes {
    /// A volume of so many bytes for each medium.
    ///
    /// # Errors
    /// The operating system's, and that of the tools that make file systems.
    pub fn make(media: &[Medium], bytes: u64) -> Result<Self, HarnessError> {
        clear_up_after_the_dead();
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let dir = TempDir::with_prefix(prefix)
            .map_err(|source| HarnessError::System { what: "making a directory", source })?;
        let mut volumes = Vec::new();
        for (number, medium) in media.iter().enumerate() {
            let at = dir.path().join(format!("v{number}"));
            volumes.push(Volume::make(&at, *medium, bytes)?);
        }
        Ok(Self { volumes, _dir: dir })
    }

    /// Whether volumes can be made here, cut off and mounted again, and keep what they should keep.
    ///
    /// # Errors
    /// Why not, in the words of whoever refused.
    pub fn possible() -> Result<(), String> {
        let try_out = || -> Result<(), HarnessError> {
            let mut volumes = Self::make(&[Medium::Cached], 8 << 20)?;
            let kept = volumes.dir(0).join("kept");
            let system = |what| move |source| HarnessError::System { what, source };
            fs::File::create(&kept)
                .and_then(|mut file| file.write_all(b"kept").and_then(|()| file.sync_all()))
                .and_then(|()| fs::File::open(volumes.dir(0))?.sync_all())
                .and_then(|()| fs::write(volumes.dir(0).join("lost"), b"lost"))
                .map_err(system("writing to a volume"))?;
            volumes.switch(&[0])?.cut()?;
            volumes.again(&[0])?;
            if fs::read(&kept).map_err(system("reading what was synced"))? != b"kept" {
                return Err(HarnessError::Ended("a volume has lost what was synced".to_owned()));
            }
            if volumes.dir(0).join("lost").exists() {
                return Err(HarnessError::Ended(
                    "a volume loses nothing with its power".to_owned(),
                ));
            }
            Ok(())
        };
        try_out().map_err(|trouble| trouble.to_string())
    }

    /// Where a member's data goes.
    pub fn dir(&self, member: usize) -> PathBuf {
        self.volumes[member].data().to_owned()
    }

    /// Fills a member's volume with a file of its own, beside the data, to the last block.
    ///
    /// # Errors
    /// Anything but that it is full.
    pub fn fill(&self, member: usize) -> Result<(), HarnessError> {
        let system = |source| HarnessError::System { what: "filling a volume", source };
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

    /// Gives the room back that was filled.
    ///
    /// # Errors
    /// It was not filled.
    pub fn free(&self, member: usize) -> Result<(), HarnessError> {
        fs::remove_file(self.volumes[member].ballast())
            .map_err(|source| HarnessError::System { what: "freeing a volume", source })
    }

    /// A switch for the power of these members.
    ///
    /// # Errors
    /// There is no perl, or it may not.
    pub fn switch(&self, members: &[usize]) -> Result<Switch, HarnessError> {
        Switch::new(members.iter().map(|member| self.volumes[*member].powered()))
    }

    /// Mounts these members' volumes again. Whatever used them must have ended.
    ///
    /// # Errors
    /// Those of `mount`.
    pub fn again(&mut self, members: &[usize]) -> Result<(), HarnessError> {
        members.iter().try_for_each(|member| self.volumes[*member].again())
    }
}

/// Cuts the power of some volumes at once.
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
            .map_err(|source| HarnessError::System { what: "starting perl", source })?;
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut switch = Self { child, output };
        switch.hear("ready")?;
        Ok(switch)
    }

    /// Cuts. Says how much time lay between the first and the last of them at most.
    ///
    /// # Errors
    /// A file system does not shut down.
    pub fn cut(mut self) -> Result<Duration, HarnessError> {
        let begun = Instant::now();
        let mut input = self.child.stdin.take().expect("it is piped");
        input
            .write_all(b"\n")
            .map_err(|source| HarnessError::System { what: "switching the power off", source })?;
        let micros = self.hear("cut")?.parse().ok();
        let took = micros.map_or_else(|| begun.elapsed(), Duration::from_micros);
        // As long as it lives it uses them.
        self.child
            .wait()
            .map_err(|source| HarnessError::System { what: "waiting for perl", source })?;
        Ok(took)
    }

    /// What comes behind a word that it must say.
    fn hear(&mut self, word: &str) -> Result<String, HarnessError> {
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .map_err(|source| HarnessError::System { what: "hearing perl", source })?;
        match line.strip_prefix(word) {
            Some(rest) => Ok(rest.trim().to_owned()),
            None => Err(HarnessError::Ended(format!("perl says {line:?} instead of {word:?}"))),
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        // One that has ended already is gone too.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Runs a tool; what it says when it fails is the error.
fn run(command: &mut Command) -> Result<(), HarnessError> {
    let output = command.stdin(Stdio::null()).output().map_err(|source| HarnessError::System {
        what: "starting a tool for file systems",
        source,
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    let tool = command.get_program().to_string_lossy().into_owned();
    Err(HarnessError::Tool { tool, status: output.status.to_string(), said })
}

/// Unmounts and removes what a run that was killed has left.
fn clear_up_after_the_dead() {
    let is_dead = |path: &str| {
        let owner = path.split_once(PREFIX).and_then(|(_, rest)| rest.split_once('-'));
        owner.is_some_and(|(owner, _)| {
            owner.bytes().all(|byte| byte.is_ascii_digit())
                && !Path::new("/proc").join(owner).exists()
        })
    };
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    // Later mounts stand on earlier ones.
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
