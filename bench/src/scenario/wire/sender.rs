//! Sends input packets at their intended times. A thread that is late sends at once. It does not
//! shift the times of later packets ([unless asked](LateSender::Shifts)), so a stall counts in the latency of every packet that it delays (no coordinated
//! omission).

use std::net::SocketAddrV4;

use anyhow::{Context as _, Result};
use mdgw_sys::{
    clock::unix_now,
    sockets::{Interface, OutputOptions, open_output},
};
use rustix::{
    io::Errno,
    net::{SendFlags, send},
};

use super::{input::Input, outcome::SentPacket, schedule::Schedule};

/// The sockets of the venue: one for each channel and line.
pub(super) struct Sender {
    sockets: Vec<Vec<mdgw_sys::batch::Output>>,
}

/// When packets were sent on the first line, in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SendTimes {
    /// Start of the schedule, ns since 1970 UTC.
    pub(super) start_ns: u64,
    pub(super) packets: Vec<SentPacket>,
}

/// What a sender does with the packets that became due while it did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum LateSender {
    /// Sends them at once, in a burst: the rate is kept.
    CatchesUp,
    /// Moves their intended times, and all later ones, by its delay: the distances are kept. The gateway's own log then
    /// shows the gateway and not the sender's stalls. Stalls are missing from what is seen from outside.
    Shifts,
}

/// What the sending thread does between two sends.
pub(super) trait BetweenSends {
    /// The next packet is due in that time, ns; `now_ns` is the present time.
    fn wait(&mut self, now_ns: u64, slack_ns: u64) -> Result<()>;
    /// Another packet was sent.
    fn sent(&mut self) -> Result<()>;
}

impl Sender {
    /// Opens a socket to each group: `groups[channel][line]`.
    pub(super) fn open(groups: &[Vec<SocketAddrV4>], interface: &Interface, loopback: bool) -> Result<Self> {
        let open = |group: &SocketAddrV4| {
            let options = OutputOptions { loopback, ..OutputOptions::new(*group, Some(interface.clone())) };
            open_output(&options).context("open a socket of the venue")
        };
        let lines = |groups: &Vec<SocketAddrV4>| groups.iter().map(open).collect::<Result<Vec<_>>>();
        Ok(Self { sockets: groups.iter().map(lines).collect::<Result<_>>()? })
    }

    /// Sends that schedule's packets. Packet `n` of the schedule is packet `first + n / channels` of channel
    /// `n % channels`.
    pub(super) fn send_all(
        &self,
        input: &Input,
        first: usize,
        schedule: &Schedule,
        late: LateSender,
        between: &mut impl BetweenSends,
    ) -> Result<SendTimes> {
        let channel_count = self.sockets.len();
        let mut times = SendTimes {
            start_ns: unix_now().0 + LEAD_NS,
            packets: Vec::with_capacity(usize::try_from(schedule.packet_count)?),
        };
        let mut shift_ns = 0;
        for due in schedule.sends() {
            let packet = usize::try_from(due.packet)?;
            let channel = packet % channel_count;
            let bytes = input.channels[channel].packet(first + packet / channel_count);
            let mut due_ns = times.start_ns + due.at_ns + shift_ns;
            let now_ns = loop {
                let now_ns = unix_now().0;
                if now_ns >= due_ns {
                    break now_ns;
                }
                between.wait(now_ns, due_ns - now_ns)?;
            };
            if late == LateSender::Shifts && now_ns - due_ns > ON_TIME_NS {
                shift_ns += now_ns - due_ns;
                due_ns = now_ns;
            }
            if due.line == 0 {
                times.packets.push(SentPacket { intended_ns: due_ns, actual_ns: now_ns });
            }
            send_one(&self.sockets[channel][due.line], bytes)?;
            between.sent()?;
        }
        Ok(times)
    }
}

fn send_one(output: &mdgw_sys::batch::Output, bytes: &[u8]) -> Result<()> {
    loop {
        match send(&output.socket, bytes, SendFlags::DONTWAIT) {
            // The socket's send buffer is full: over veth, the kernel has not delivered the packets before yet.
            Err(Errno::AGAIN | Errno::NOBUFS) => std::hint::spin_loop(),
            other => return other.map(|_| ()).context("send an input packet"),
        }
    }
}

/// A sender that is late by less is not: its loop and its system calls take that long.
const ON_TIME_NS: u64 = 20_000;

/// From the computation of the start to the first packet.
const LEAD_NS: u64 = 1_000_000;
