//! A disk in memory whose power can be cut: what was not synced is then there, there in part, or not there.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use unisono_checkpoint::{Disk, Sink, Syncing};

use super::random::Random;

/// A disk below one directory. Two things are not synced at first, and lost at random when power is cut. One
/// is a file's bytes: all of them, a part, or some in their place. The other is each change of a directory's
/// entries by itself, whatever became of earlier ones; a rename is one change.
#[derive(Debug, Clone)]
pub struct PowerDisk {
    base: PathBuf,
    world: Arc<Mutex<World>>,
    /// Syncing files does nothing.
    pub forgets_files: bool,
    /// Syncing directories does nothing.
    pub forgets_names: bool,
}

#[derive(Debug)]
struct World {
    nodes: Vec<Node>,
    /// The number of operations until power fails.
    left: usize,
    /// The number of operations until one fails and those after it do not, if one is to.
    once: Option<usize>,
    /// The number of bytes that files may still take, if there is a limit.
    room: Option<usize>,
    /// The number of names that were made.
    tokens: u64,
}

#[derive(Debug, Clone)]
enum Node {
    File { now: Vec<u8>, safe: Vec<u8> },
    Dir { now: Names, safe: Names, changes: Vec<Change> },
}

type Names = BTreeMap<String, usize>;

#[derive(Debug, Clone)]
enum Change {
    Put(String, usize),
    Take(String),
    Move(String, usize),
}

impl Change {
    fn apply(&self, names: &mut Names) {
        match self {
            Self::Put(name, node) => {
                names.insert(name.clone(), *node);
            }
            Self::Take(name) => {
                names.remove(name);
            }
            Self::Move(to, node) => {
                names.retain(|_, other| other != node);
                names.insert(to.clone(), *node);
            }
        }
    }
}

fn missing() -> io::Error {
    ErrorKind::NotFound.into()
}

impl PowerDisk {
    pub fn new(base: &Path) -> Self {
        let root = Node::Dir { now: Names::new(), safe: Names::new(), changes: Vec::new() };
        let world = World { nodes: vec![root], left: usize::MAX, once: None, room: None, tokens: 0 };
        Self {
            base: base.into(),
            world: Arc::new(Mutex::new(world)),
            forgets_files: false,
            forgets_names: false,
        }
    }

    /// Makes power fail after so many operations.
    pub fn fails_after(&self, operations: usize) {
        self.world.lock().unwrap().left = operations;
    }

    /// Makes one operation fail after so many.
    pub fn fails_once_after(&self, operations: usize) {
        self.world.lock().unwrap().once = Some(operations);
    }

    /// Whether the one operation has failed that was to.
    pub fn has_failed_once(&self) -> bool {
        self.world.lock().unwrap().once.is_none()
    }

    /// Makes the disk full after so many bytes more. What is removed makes no room.
    #[allow(dead_code, reason = "the tests of whole runs, which share this file, use it")]
    pub fn is_full_after(&self, bytes: usize) {
        self.world.lock().unwrap().room = Some(bytes);
    }

    /// Ends all faults. Nothing is lost, as after a process was killed.
    pub fn recover(&self) {
        let world = &mut *self.world.lock().unwrap();
        (world.left, world.once, world.room) = (usize::MAX, None, None);
    }

    /// Cuts the power and restores it. What survives is now on the disk.
    pub fn cut(&self, random: &mut Random) {
        self.recover();
        let world = &mut *self.world.lock().unwrap();
        let chance = random.below(4);
        for node in &mut world.nodes {
            let gone = Node::File { now: Vec::new(), safe: Vec::new() };
            *node = match std::mem::replace(node, gone) {
                Node::File { now, safe } if now == safe => Node::File { now, safe },
                Node::File { now, safe } => {
                    let left = torn(now, safe, random);
                    Node::File { now: left.clone(), safe: left }
                }
                Node::Dir { mut safe, changes, .. } => {
                    changes
                        .iter()
                        .filter(|_| random.below(3) < chance)
                        .for_each(|change| change.apply(&mut safe));
                    Node::Dir { now: safe.clone(), safe, changes: Vec::new() }
                }
            };
        }
    }

    fn step<T>(&self, operation: impl FnOnce(&mut World) -> io::Result<T>) -> io::Result<T> {
        let world = &mut *self.world.lock().unwrap();
        if let Some(once) = world.once {
            world.once = once.checked_sub(1);
            if world.once.is_none() {
                return Err(io::Error::other("once"));
            }
        }
        let Some(left) = world.left.checked_sub(1) else { return Err(io::Error::other("no power")) };
        world.left = left;
        operation(world)
    }

    fn names(&self, path: &Path) -> Vec<String> {
        let inside = path.strip_prefix(&self.base).expect("a path below the base");
        inside.iter().map(|name| name.to_str().unwrap().to_owned()).collect()
    }

    fn find(&self, world: &World, path: &Path) -> io::Result<usize> {
        self.names(path).iter().try_fold(0, |node, name| match &world.nodes[node] {
            Node::Dir { now, .. } => now.get(name).copied().ok_or_else(missing),
            Node::File { .. } => Err(ErrorKind::NotADirectory.into()),
        })
    }

    fn change(
        &self,
        world: &mut World,
        path: &Path,
        change: impl FnOnce(String) -> Change,
    ) -> io::Result<()> {
        let parent = self.find(world, path.parent().unwrap())?;
        let Node::Dir { now, changes, .. } = &mut world.nodes[parent] else { return Err(missing()) };
        let change = change(self.names(path).pop().unwrap());
        change.apply(now);
        changes.push(change);
        Ok(())
    }

    fn add(&self, world: &mut World, path: &Path, node: Node) -> io::Result<usize> {
        world.nodes.push(node);
        let new = world.nodes.len() - 1;
        self.change(world, path, |name| Change::Put(name, new))?;
        Ok(new)
    }

    fn take(&self, world: &mut World, path: &Path) -> io::Result<()> {
        let Ok(found) = self.find(world, path) else { return Ok(()) };
        if let Node::Dir { now, .. } = &world.nodes[found] {
            let inside: Vec<String> = now.keys().cloned().collect();
            inside.iter().try_for_each(|name| self.take(world, &path.join(name)))?;
        }
        self.change(world, path, Change::Take)
    }

    fn file(&self, path: &Path) -> io::Result<Vec<u8>> {
        let world = self.world.lock().unwrap();
        match &world.nodes[self.find(&world, path)?] {
            Node::File { now, .. } => Ok(now.clone()),
            Node::Dir { .. } => Err(ErrorKind::IsADirectory.into()),
        }
    }
}

/// Returns what is left of bytes that were not synced.
fn torn(mut now: Vec<u8>, safe: Vec<u8>, random: &mut Random) -> Vec<u8> {
    match random.below(4) {
        0 => return safe,
        1 => {}
        2 => now.truncate(random.below(now.len() + 1)),
        _ => {
            let from = random.below(now.len() + 1);
            let to = from + random.below(now.len() - from + 1);
            now[from..to].fill(0);
        }
    }
    now
}

impl Disk for PowerDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let node = Node::Dir { now: Names::new(), safe: Names::new(), changes: Vec::new() };
        self.step(|world| match self.find(world, dir) {
            Ok(_) => Err(ErrorKind::AlreadyExists.into()),
            Err(_) => self.add(world, dir, node).map(drop),
        })
    }

    fn create(&self, file: &Path) -> io::Result<Box<dyn Sink>> {
        let node = self.step(|world| match self.find(world, file) {
            Ok(_) => Err(ErrorKind::AlreadyExists.into()),
            Err(_) => self.add(world, file, Node::File { now: Vec::new(), safe: Vec::new() }),
        })?;
        Ok(Box::new(PowerSink { disk: self.clone(), node }))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        // What is above is always there.
        if !dir.starts_with(&self.base) {
            return Ok(());
        }
        self.step(|world| {
            let found = self.find(world, dir)?;
            if let Node::Dir { now, safe, changes } = &mut world.nodes[found]
                && !self.forgets_names
            {
                *safe = now.clone();
                changes.clear();
            }
            Ok(())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        assert_eq!(from.parent(), to.parent());
        self.step(|world| {
            let node = self.find(world, from)?;
            self.change(world, to, |name| Change::Move(name, node))
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step(|world| self.take(world, path))
    }

    /// Counts, so that a seed gives the same names each time.
    fn token(&self) -> u64 {
        let world = &mut *self.world.lock().unwrap();
        world.tokens += 1;
        world.tokens
    }

    fn is_dir(&self, path: &Path) -> bool {
        let world = self.world.lock().unwrap();
        !path.starts_with(&self.base)
            || self.find(&world, path).is_ok_and(|node| matches!(world.nodes[node], Node::Dir { .. }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        // A run looks beside its directory, where this disk has nothing.
        if !dir.starts_with(&self.base) {
            return Err(missing());
        }
        self.step(|world| match &world.nodes[self.find(world, dir)?] {
            Node::Dir { now, .. } => Ok(now.keys().cloned().collect()),
            Node::File { .. } => Err(ErrorKind::NotADirectory.into()),
        })
    }

    fn size(&self, file: &Path) -> io::Result<u64> {
        self.file(file).map(|bytes| bytes.len() as u64)
    }

    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        self.file(file)
    }
}

struct PowerSink {
    disk: PowerDisk,
    node: usize,
}

impl Write for PowerSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.disk.step(|world| {
            let written = world.room.map_or(bytes.len(), |room| room.min(bytes.len()));
            if written < bytes.len() && written == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            world.room = world.room.map(|room| room - written);
            if let Node::File { now, .. } = &mut world.nodes[self.node] {
                now.extend(&bytes[..written]);
            }
            Ok(written)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for PowerSink {
    /// Nothing is durable before the caller has waited for it.
    fn sync(self: Box<Self>) -> Syncing {
        Syncing::new(move || {
            self.disk.step(|world| {
                if let Node::File { now, safe } = &mut world.nodes[self.node]
                    && !self.disk.forgets_files
                {
                    *safe = now.clone();
                }
                Ok(())
            })
        })
    }
}
