//! One reader under libFuzzer: `UNISONO_READER=NAME fuzz_reader CORPUS`. `cargo xtask fuzz` builds and runs
//! it.

#![no_main]

use std::env;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use unisono_fuzz::{Limited, Reader, Scratch, reader};

#[global_allocator]
static LIMITED: Limited = Limited;

static READER: LazyLock<Option<&Reader>> = LazyLock::new(|| reader(&env::var("UNISONO_READER").ok()?));

thread_local! {
    static SCRATCH: Scratch = Scratch::new();
}

fuzz_target!(
    // A decoder's panic that is caught and becomes an error is no crash, so libFuzzer's hook must not see it.
    init: drop(std::panic::take_hook()),
    |bytes: &[u8]| {
        let reader = READER.expect("UNISONO_READER names a reader");
        SCRATCH.with(|scratch| (reader.read)(scratch, bytes));
    }
);
