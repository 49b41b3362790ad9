//! Captures a published multicast group, received as a subscriber receives it.

use std::{
    fs::File,
    io::{self, BufWriter},
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use mdgw_captures::capture_file::PcapWriter;
use mdgw_feeds::published::packet::parse_packet;
use socket2::{Domain, Protocol, Socket, Type};

use crate::process::wait_until;

/// Captures a multicast group on loopback into a pcap file.
#[derive(Debug)]
pub struct Tap {
    stop: Arc<AtomicBool>,
    /// The captured packets cover all input sequences before this one.
    covered_through: Arc<AtomicU64>,
    thread: Option<JoinHandle<u64>>,
}

impl Tap {
    /// Joins the group and captures everything from now on.
    ///
    /// # Panics
    /// When the socket can't be opened or the file can't be written.
    #[must_use]
    pub fn start(group: SocketAddrV4, path: &Path) -> Self {
        let socket = open(group).expect("the tap joins a group");
        let file = BufWriter::new(File::create(path).expect("a capture can be created"));
        let mut writer = PcapWriter::new(file).expect("a capture can be begun");
        let stop = Arc::new(AtomicBool::new(false));
        let thread_copy = Arc::clone(&stop);
        let covered_through = Arc::new(AtomicU64::new(0));
        let covered_writer = Arc::clone(&covered_through);
        let thread = std::thread::spawn(move || {
            // As large as a gateway can be configured to publish.
            let mut datagram = [0; 9_000];
            let mut count = 0;
            let sender = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);
            loop {
                // Read before the socket, so that all datagrams queued at that time are still captured.
                let is_stopping = thread_copy.load(Ordering::Acquire);
                while let Ok(length) = socket.recv(&mut datagram) {
                    let time_ns = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos();
                    let time_ns = u64::try_from(time_ns).expect("before 2554");
                    writer.datagram(time_ns, sender, group, &datagram[..length]).expect("a capture can be written");
                    count += 1;
                    if let Ok(packet) = parse_packet(&datagram[..length]) {
                        covered_writer.fetch_max(packet.meta.next.0, Ordering::Release);
                    }
                }
                if is_stopping {
                    writer.finish().expect("a capture can be ended");
                    return count;
                }
            }
        });
        Self { stop, covered_through, thread: Some(thread) }
    }

    /// Waits until the output covers all input before that sequence, in any session.
    ///
    /// # Panics
    /// When it does not within the timeout.
    pub fn wait_until_covered(&self, next: u64) {
        wait_until("the output covers what was sent", || self.covered_through.load(Ordering::Acquire) >= next);
    }

    /// Finishes the file. Returns the number of its datagrams.
    ///
    /// # Panics
    /// When it could not be written.
    #[must_use]
    pub fn finish(mut self) -> u64 {
        self.stop.store(true, Ordering::Release);
        self.thread.take().expect("finished once").join().expect("the tap writes its file")
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

fn open(group: SocketAddrV4) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.set_recv_buffer_size(4 << 20)?;
    socket.bind(&group.into())?;
    socket.join_multicast_v4(group.ip(), &Ipv4Addr::LOCALHOST)?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    Ok(socket.into())
}
