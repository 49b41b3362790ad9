//! The epoll descriptor with its timer and its wake-up: shared by both backends of pools with several threads.

#![allow(unsafe_code, reason = "timerfd_settime(2) without the old time")]

use std::{
    fmt, io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use mdgw_feeds::{identity::Line, time::MonoNs};
use mdgw_sys::handle::{ChannelIndex, Handle};
use rustix::{
    event::{
        EventfdFlags, Timespec,
        epoll::{self, CreateFlags, EventData, EventFlags},
        eventfd,
    },
    io::{Errno, read, write},
    time::{TimerfdClockId, TimerfdFlags, timerfd_create},
};

use crate::handle_set::{EVENTS_MAX, Event, Wait};

/// An event as the kernel writes it.
pub(in crate::handle_set) type KernelEvent = epoll::Event;

/// No event: what a buffer holds before the kernel writes to it.
pub(in crate::handle_set) const NO_EVENT: KernelEvent =
    KernelEvent { flags: EventFlags::empty(), data: EventData::new_u64(0) };

/// Buffer for the events of one wait.
pub(in crate::handle_set) struct EventBuffer(Box<[KernelEvent; EVENTS_MAX]>);

impl EventBuffer {
    pub(in crate::handle_set) fn new() -> Self {
        Self(Box::new([NO_EVENT; EVENTS_MAX]))
    }
}

impl fmt::Debug for EventBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventBuffer").finish_non_exhaustive()
    }
}

/// Edge-triggered readiness of many sockets, one timer, one wake-up.
#[derive(Debug)]
pub(in crate::handle_set) struct ReadySet {
    epoll: OwnedFd,
    signals: Signals,
}

impl ReadySet {
    pub(in crate::handle_set) fn new() -> io::Result<Self> {
        let set = Self { epoll: epoll::create(CreateFlags::CLOEXEC)?, signals: Signals::new()? };
        epoll::add(&set.epoll, &set.signals.timer_fd, EventData::new_u64(TIMER), EDGE)?;
        epoll::add(&set.epoll, &set.signals.wake, EventData::new_u64(WAKE), EDGE)?;
        Ok(set)
    }

    pub(in crate::handle_set) fn epoll(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    pub(in crate::handle_set) fn add(&self, socket: BorrowedFd<'_>, handle: Handle) -> io::Result<()> {
        epoll::add(&self.epoll, socket, EventData::new_u64(user_data(handle)), EDGE)?;
        self.wake();
        Ok(())
    }

    pub(in crate::handle_set) fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        epoll::delete(&self.epoll, socket)?;
        self.wake();
        Ok(())
    }

    pub(in crate::handle_set) fn wake(&self) {
        self.signals.wake();
    }

    pub(in crate::handle_set) fn set_timer(&self, at: Option<MonoNs>) {
        self.signals.set_timer(at);
    }

    /// Waits and returns the events; an interrupted wait returns none.
    pub(in crate::handle_set) fn wait<'e>(
        &self,
        wait: Wait,
        room: usize,
        buffer: &'e mut EventBuffer,
    ) -> io::Result<&'e [KernelEvent]> {
        let timeout = match wait {
            Wait::Poll => Some(&NOW),
            Wait::Block => None,
        };
        let (events, _) = buffer.0.split_at_mut(room.clamp(1, EVENTS_MAX));
        match epoll::wait(&self.epoll, &mut *events, timeout) {
            Ok(seen) => Ok(events.get(..seen).unwrap_or(&[])),
            Err(Errno::INTR) => Ok(&[]),
            Err(error) => Err(error.into()),
        }
    }
}

/// One timer and one wake-up as descriptors to be watched. Only their edges count: neither needs to be read.
#[derive(Debug)]
pub(in crate::handle_set) struct Signals {
    timer_fd: OwnedFd,
    wake: OwnedFd,
}

impl Signals {
    pub(in crate::handle_set) fn new() -> io::Result<Self> {
        let timer_fd = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { timer_fd, wake })
    }

    pub(in crate::handle_set) fn timer_fd(&self) -> RawFd {
        self.timer_fd.as_raw_fd()
    }

    /// Whether the timer has expired since it was set or since the last call.
    pub(in crate::handle_set) fn take_expiry(&self) -> bool {
        let mut expiries = [0; size_of::<u64>()];
        read(&self.timer_fd, &mut expiries).is_ok() && u64::from_ne_bytes(expiries) > 0
    }

    pub(in crate::handle_set) fn wake_fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    pub(in crate::handle_set) fn wake(&self) {
        // Can fail only when 2^64 - 2 wake-ups were never read; the counter is then far from 0, and the wake-up is
        // pending anyway.
        let _ = write(&self.wake, &1_u64.to_ne_bytes());
    }

    pub(in crate::handle_set) fn set_timer(&self, at: Option<MonoNs>) {
        let value = at.map_or(NEVER, |at| {
            let ns = at.0.max(1); // all zero would disarm
            libc::timespec {
                tv_sec: libc::time_t::try_from(ns / NS_PER_S).unwrap_or(libc::time_t::MAX),
                tv_nsec: libc::c_long::try_from(ns % NS_PER_S).unwrap_or(0),
            }
        });
        let timer_fd = libc::itimerspec { it_interval: NEVER, it_value: value };
        // Not rustix's `timerfd_settime`: it also fetches the old time, which takes 40 to 55 ns longer.
        // SAFETY: timerfd_settime(2) reads `timer_fd` and, given a null pointer, returns no old value.
        let result = unsafe {
            libc::timerfd_settime(
                self.timer_fd.as_raw_fd(),
                libc::TFD_TIMER_ABSTIME,
                &raw const timer_fd,
                std::ptr::null_mut(),
            )
        };
        // The descriptor is our timer and the time is in range: no other error is possible.
        debug_assert_eq!(result, 0);
    }
}

/// Converts an epoll event of this set.
pub(in crate::handle_set) fn to_event(event: &KernelEvent) -> Event {
    match event.data.u64() {
        TIMER => Event::Timer,
        WAKE => Event::Wake,
        #[allow(clippy::cast_possible_truncation, reason = "undoes `user_data`")]
        handle => Event::Ready(Handle { channel: ChannelIndex(handle as u32), line: Line((handle >> 32) as u8) }),
    }
}

/// A handle as the 64 bits of an epoll event: the channel in the lower half, the line above it.
fn user_data(handle: Handle) -> u64 {
    u64::from(handle.channel.0) | u64::from(handle.line.0) << 32
}

const EDGE: EventFlags = EventFlags::IN.union(EventFlags::ET);
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const TIMER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;
const NEVER: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
const NS_PER_S: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_round_trip_through_user_data() {
        for channel in [0, 1, u32::MAX] {
            for line in [Line::A, Line::RECOVERY, Line(255)] {
                let handle = Handle { channel: ChannelIndex(channel), line };
                let event = KernelEvent { data: EventData::new_u64(user_data(handle)), ..NO_EVENT };
                assert_eq!(to_event(&event), Event::Ready(handle));
            }
        }
    }
}
