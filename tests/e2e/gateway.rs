//! One gateway, and the commands that feed, watch, query and record it.

mod capture;
mod cold_threads;
mod damaged_input;
mod data_path;
mod day_change;
mod demo;
mod determinism;
mod doctor;
mod forged_packets;
mod ha_control;
mod late_join;
mod log_disk_full;
mod log_formats;
mod metrics;
mod multi_channel;
mod output_failures;
mod overload;
mod program_metrics;
mod reload;
mod service_manager;
mod shared_memory;
mod snapshot_start;
mod systemd;
mod top;
mod until_loss;
mod witness_check;
