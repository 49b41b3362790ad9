//! The epoll descriptor with its timer and its wake-up: shared by both backends of pools with several threads.

#![allow(unsafe_code, reason = "system calls")]

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use mdgw_feeds::{identity::Line, time::MonoNs};
use mdgw_sys::handle::{ChannelIndex, Handle};

use crate::handle_set::{Event, Wait};

/// Maximum number of events of one wait.
pub(in crate::handle_set) const EVENTS_MAX: usize = 64;

/// Buffer for the events of one wait.
pub(in crate::handle_set) fn event_buffer() -> Box<[libc::epoll_event; EVENTS_MAX]> {
    Box::new([libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX])
}

/// Edge-triggered readiness of many sockets, one timer, one wake-up.
#[derive(Debug)]
pub(in crate::handle_set) struct ReadySet {
    epoll: OwnedFd,
    signals: Signals,
}

impl ReadySet {
    pub(in crate::handle_set) fn new() -> io::Result<Self> {
        // SAFETY: epoll_create1(2) takes no pointer.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let set = Self { epoll, signals: Signals::new()? };
        set.control(libc::EPOLL_CTL_ADD, set.signals.timer_fd(), TIMER)?;
        set.control(libc::EPOLL_CTL_ADD, set.signals.wake_fd(), WAKE)?;
        Ok(set)
    }

    pub(in crate::handle_set) fn epoll(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    pub(in crate::handle_set) fn add(&self, socket: BorrowedFd<'_>, handle: Handle) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket.as_raw_fd(), user_data(handle))?;
        self.wake();
        Ok(())
    }

    pub(in crate::handle_set) fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, socket.as_raw_fd(), 0)?;
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
        events: &'e mut [libc::epoll_event; EVENTS_MAX],
    ) -> io::Result<&'e [libc::epoll_event]> {
        let count = i32::try_from(room.clamp(1, EVENTS_MAX)).unwrap_or(1);
        let timeout_ms = match wait {
            Wait::Poll => 0,
            Wait::Block => -1,
        };
        // SAFETY: epoll_wait(2) writes at most `count` events, and there is room for that many.
        let seen = unsafe { libc::epoll_wait(self.epoll(), events.as_mut_ptr(), count, timeout_ms) };
        let Ok(seen) = usize::try_from(seen) else {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(&[]) } else { Err(error) };
        };
        Ok(events.get(..seen).unwrap_or(&[]))
    }

    fn control(&self, operation: i32, descriptor: RawFd, user_data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: EDGE, u64: user_data };
        // SAFETY: epoll_ctl(2) reads `event`.
        let result = unsafe { libc::epoll_ctl(self.epoll(), operation, descriptor, &raw mut event) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
        // SAFETY: timerfd_create(2) takes no pointer.
        let timer_fd =
            owned(unsafe { libc::timerfd_create(libc::CLOCK_BOOTTIME, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC) })?;
        // SAFETY: eventfd(2) takes no pointer.
        let wake = owned(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })?;
        Ok(Self { timer_fd, wake })
    }

    pub(in crate::handle_set) fn timer_fd(&self) -> RawFd {
        self.timer_fd.as_raw_fd()
    }

    /// Whether the timer has expired since it was set or since the last call.
    pub(in crate::handle_set) fn take_expiry(&self) -> bool {
        let mut expiries = 0_u64;
        // SAFETY: read(2) writes at most 8 bytes to `expiries`.
        let read = unsafe { libc::read(self.timer_fd.as_raw_fd(), (&raw mut expiries).cast(), size_of::<u64>()) };
        read > 0 && expiries > 0
    }

    pub(in crate::handle_set) fn wake_fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    pub(in crate::handle_set) fn wake(&self) {
        let one = 1_u64;
        // SAFETY: write(2) reads the 8 bytes of `one`. It can fail only when 2^64 - 2 wake-ups were never read; the
        // counter is then far from 0, and the wake-up is pending anyway.
        let _ = unsafe { libc::write(self.wake.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
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
pub(in crate::handle_set) fn to_event(event: &libc::epoll_event) -> Event {
    match event.u64 {
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

fn owned(descriptor: RawFd) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned the descriptor, so it is open and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[allow(clippy::cast_sign_loss, reason = "bits")]
const EDGE: u32 = (libc::EPOLLIN | libc::EPOLLET) as u32;
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
                let event = libc::epoll_event { events: 0, u64: user_data(handle) };
                assert_eq!(to_event(&event), Event::Ready(handle));
            }
        }
    }
}
