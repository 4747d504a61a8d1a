//! Tests that need a process of their own, one after another and without a test harness: one prepares the
//! environment, which is possible only while there is one thread, and one stops the whole process.

mod quiet;
#[cfg(unix)]
mod stopped;

fn main() {
    if std::env::args().any(|argument| argument == quiet::CHILD) {
        return quiet::child();
    }
    quiet::drivers_print_nothing();
    #[cfg(unix)]
    stopped::a_stopped_process_loses_no_device();
}
