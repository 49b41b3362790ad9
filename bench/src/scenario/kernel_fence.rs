//! What does the fence in the kernel cost? Sends on the loopback interface with and without the program at the cgroup's
//! egress, alternating.

use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use mdgw_feeds::{
    identity::{Epoch, GroupId},
    published::packet::{PACKET_MAGIC, PACKET_VERSION, PacketHeader},
    time::MonoNs,
};
use mdgw_sys::kernel_fence::{FenceCgroup, KernelFence};
use serde_json::json;
use zerocopy::{FromZeros as _, IntoBytes as _};

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct KernelFenceOptions {
    /// Rounds; each has both variants.
    #[arg(long, default_value_t = 31)]
    rounds: usize,
    /// Sends of one variant in a round.
    #[arg(long, default_value_t = 50_000)]
    sends: u32,
    /// Groups in the fence.
    #[arg(long, default_value_t = 1)]
    groups: u16,
    /// Print the result as one line of JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &KernelFenceOptions) -> Result<()> {
    let cgroup = FenceCgroup::enter().context("enter a cgroup")?;
    // Nothing reads this socket: once its buffer is full, the kernel drops the packets there.
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let SocketAddr::V4(destination) = receiver.local_addr()? else { unreachable!("bound to an IPv4 address") };
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(destination)?;
    let groups: Vec<_> = (1..=options.groups).map(GroupId).collect();
    let last = *groups.last().context("at least one group")?;
    let mut header = PacketHeader::new_zeroed();
    (header.magic, header.version) = (PACKET_MAGIC.into(), PACKET_VERSION);
    (header.group, header.epoch) = (last.0.into(), Epoch::new(1, 1).0.into());
    let mut packet = header.as_bytes().to_vec();
    packet.resize(400, 0);

    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..options.rounds {
        times[0].push(send(&socket, &packet, options.sends)?);
        let fence = open_fence(&cgroup, &groups, destination)?;
        times[1].push(send(&socket, &packet, options.sends)?);
        fence.group(groups.len() - 1).close();
        ensure!(socket.send(&packet).is_err(), "a closed fence lets packets out");
    }
    let mut ratios: Vec<_> = times[1].iter().zip(&times[0]).map(|(with, without)| with / without).collect();
    let [without, with] = times.each_mut().map(|times| median(times));
    let ratio = median(&mut ratios);
    let spread = [ratios[0], ratios[ratios.len() - 1]];
    if options.json {
        println!(
            "{}",
            json!({
                "scenario": "kernel_fence", "groups": options.groups, "rounds": options.rounds,
                "without_ns": without, "with_ns": with, "ratio": { "median": ratio, "min": spread[0], "max": spread[1] },
            })
        );
    } else {
        println!(
            "a send of 400 bytes: {without:.0} ns, fenced in the kernel {with:.0} ns; ratio {ratio:.3} \
             ({:.3} to {:.3}), {} rounds",
            spread[0], spread[1], options.rounds
        );
    }
    Ok(())
}

fn open_fence(cgroup: &FenceCgroup, groups: &[GroupId], destination: SocketAddrV4) -> Result<KernelFence> {
    let fence = KernelFence::attach(cgroup.path(), groups, &[destination])?;
    fence.group(groups.len() - 1).open(Epoch::new(1, 1), MonoNs(u64::MAX));
    Ok(fence)
}

/// Sends the packet `sends` times. Returns ns per send.
fn send(socket: &UdpSocket, packet: &[u8], sends: u32) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..sends {
        socket.send(packet).context("send")?;
    }
    Ok(started.elapsed().as_secs_f64() * 1e9 / f64::from(sends))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
