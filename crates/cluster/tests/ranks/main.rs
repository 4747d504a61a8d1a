//! Ranks from outside: what they sum under any schedule, and what it costs.

mod model;
mod schedules;
