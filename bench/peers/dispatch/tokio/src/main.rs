//! tokio: one task for each socket on its multi-thread runtime. Sockets, handler and report are those of `subject.hpp`.
//!
//! - `one`: `recv().await` for each datagram, as tutorials write it
//! - `drain`: waits for readiness and reads until the socket is empty

use std::{
    cell::Cell,
    io::{Read as _, Write as _},
    net::UdpSocket,
    os::fd::AsRawFd as _,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

const BUCKETS: usize = 64 * 32;
const THREADS_MAX: usize = 64;
static BUFFER_BYTES: libc::c_int = 512 << 20;

#[repr(align(128))]
struct Counts {
    packets: AtomicU64,
    last_ns: AtomicU64,
    latency: [AtomicU64; BUCKETS],
}

static COUNTS: [Counts; THREADS_MAX] = [const {
    Counts {
        packets: AtomicU64::new(0),
        last_ns: AtomicU64::new(0),
        latency: [const { AtomicU64::new(0) }; BUCKETS],
    }
}; THREADS_MAX];
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OWN: Cell<&'static Counts> =
        Cell::new(&COUNTS[THREADS.fetch_add(1, Relaxed) % THREADS_MAX]);
}

fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec that the call writes.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Relaxed) + count, Relaxed);
}

fn bucket(ns: u64) -> usize {
    if ns < 32 {
        return ns as usize;
    }
    let power = 63 - ns.leading_zeros() as usize;
    (power - 4) * 32 + ((ns >> (power - 5)) & 31) as usize
}

fn handle(datagram: &[u8], work_ns: u64) {
    let sent_ns = u64::from_le_bytes(datagram[..8].try_into().unwrap());
    let begun_ns = now_ns();
    let own = OWN.get();
    add(&own.latency[bucket(begun_ns.saturating_sub(sent_ns))], 1);
    let mut now = begun_ns;
    while now - begun_ns < work_ns {
        now = now_ns();
    }
    own.last_ns.store(now, Relaxed);
    add(&own.packets, 1);
}

fn open_socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    for option in [libc::SO_RCVBUFFORCE, libc::SO_RCVBUF] {
        let (value, length) = ((&raw const BUFFER_BYTES).cast(), size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: `value` points to `length` bytes.
        if unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, length) } == 0 {
            break;
        }
    }
    socket
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |index: usize| arguments[index].parse::<u64>().unwrap();
    let drains = arguments[1] == "drain";
    let (sockets, threads, work_ns, expected) = (number(2), number(3) as usize, number(4), number(5));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_io().build().unwrap();
    let sockets: Vec<_> = (0..sockets).map(|_| open_socket()).collect();
    let ports: Vec<String> = sockets.iter().map(|socket| socket.local_addr().unwrap().port().to_string()).collect();
    for socket in sockets {
        let _entered = runtime.enter();
        let socket = Arc::new(tokio::net::UdpSocket::from_std(socket).unwrap());
        runtime.spawn(async move {
            let mut buffer = [0; 2_048];
            loop {
                if drains {
                    socket.readable().await.unwrap();
                    while let Ok(length) = socket.try_recv(&mut buffer) {
                        handle(&buffer[..length], work_ns);
                    }
                } else {
                    let length = socket.recv(&mut buffer).await.unwrap();
                    handle(&buffer[..length], work_ns);
                }
            }
        });
    }
    println!("{}", ports.join(" "));
    let is_over = Arc::new(AtomicU64::new(0));
    let input = std::thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || {
            let _ = std::io::stdin().read(&mut [0]);
            is_over.store(1, Relaxed);
        }
    });
    let packets = || COUNTS.iter().map(|thread| thread.packets.load(Relaxed)).sum::<u64>();
    while packets() < expected && is_over.load(Relaxed) == 0 {
        std::thread::sleep(Duration::from_millis(2));
    }
    let last_ns = COUNTS.iter().map(|thread| thread.last_ns.load(Relaxed)).max().unwrap();
    let mut line = format!("{} {last_ns} 0", packets());
    for index in 0..BUCKETS {
        let count: u64 = COUNTS.iter().map(|thread| thread.latency[index].load(Relaxed)).sum();
        if count > 0 {
            line += &format!(" {index}:{count}");
        }
    }
    println!("{line}");
    std::io::stdout().flush().unwrap();
    input.join().unwrap();
    std::process::exit(0);
}
