//! One gateway, and what is run beside it: the commands that feed it, watch it, ask it and record it.

mod capture;
mod damaged_input;
mod demo;
mod determinism;
mod full_log;
mod ha_control;
mod late_join;
mod new_day;
mod outputs_that_fail;
mod several_channels;
mod straight_line;
mod top;
mod until_loss;
mod witness_check;
