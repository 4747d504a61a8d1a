//! What a run is and what it writes: its identity, resumes of it and of others, logs, and files that leave
//! it.

mod another_model;
mod another_run;
mod export;
mod forged;
mod identity;
mod identity_data;
mod loggers;
mod quantized;
mod resume_loader;
mod resume_other;
mod resume_time;
