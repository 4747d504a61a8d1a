//! What a program that does not end waits for: its processes, with the name and the state of each thread.
//! libtest names a thread after its test.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

/// Writes the threads of a process and of all its descendants, and kills the descendants. Where there is no
/// `/proc`, it does nothing.
pub fn tell_and_kill(process: u32, mut output: &File) -> io::Result<()> {
    let mut found = vec![process];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(children(parent));
        next += 1;
        let dir = Path::new("/proc").join(parent.to_string());
        let Ok(command) = fs::read(dir.join("cmdline")) else { continue };
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        writeln!(output, "process {parent}: {command}")?;
        for thread in fs::read_dir(dir.join("task")).into_iter().flatten().flatten() {
            let read = |name| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            let (name, wait, call) = (read("comm"), read("wchan"), read("syscall"));
            writeln!(output, "    {}: {wait}, system call {}", name.trim(), call.trim())?;
        }
    }
    for child in &found[1..] {
        // A child may have ended by itself.
        let _ = Command::new("kill").args(["-9", &child.to_string()]).status();
    }
    Ok(())
}

/// Returns the processes that a process has started and that have not ended.
fn children(process: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let listed = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    listed
        .flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
        .collect()
}
