//! The last resort after a death notice: when no candidate has taken over within half a lease, the sentinel itself
//! removes the dead holder from the record. A candidate that reads the record, even one that starts later, then need
//! not wait.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use crate::{
    identity::Member,
    record::Record,
    register::{Outcome, Register, RegisterEvent, RequestId, Version, Versioned},
};

/// Result for one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReleaseResult {
    /// The record has no holder any more.
    Released,
    /// The dead gateway did not hold the record: another gateway has taken over, or it never led.
    NotHeld,
    /// The store did not accept the change; others wait for the lease.
    Failed(String),
}

/// Removes `dead` as the holder, if the record shows exactly that holder. `events` are the register's.
pub fn release_on_behalf(
    register: &mut dyn Register,
    events: &Receiver<RegisterEvent>,
    dead: &Member,
    limit: Duration,
) -> ReleaseResult {
    let deadline = Instant::now() + limit;
    let mut asked = 0;
    let mut ask = |hand_in: &mut dyn FnMut(&mut dyn Register, RequestId)| {
        asked += 1;
        hand_in(register, RequestId(asked));
        answer(events, RequestId(asked), deadline)
    };
    loop {
        let (version, record): (Version, Record) = match ask(&mut |register, request_id| register.read(request_id)) {
            Ok(Outcome::Read(Some(Versioned { version, record }))) if record.is_held_by(dead) => (version, record),
            Ok(Outcome::Read(_)) => return ReleaseResult::NotHeld,
            Ok(other) => return ReleaseResult::Failed(format!("read: {other:?}")),
            Err(error) => return ReleaseResult::Failed(error),
        };
        let released = Record { holder: None, ..record };
        match ask(&mut |register, request_id| register.compare_and_swap(request_id, version, &released)) {
            Ok(Outcome::Swapped(_)) => return ReleaseResult::Released,
            // A candidate was quicker, or the dead holder's last renewal was still outstanding.
            Ok(Outcome::Refused) => {}
            Ok(other) => return ReleaseResult::Failed(format!("swap: {other:?}")),
            Err(error) => return ReleaseResult::Failed(error),
        }
    }
}

/// The answer to that request.
fn answer(events: &Receiver<RegisterEvent>, asked: RequestId, deadline: Instant) -> Result<Outcome, String> {
    loop {
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(RegisterEvent::Answer { request_id, outcome }) if request_id == asked => return Ok(outcome),
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => return Err("timed out".to_owned()),
            Err(RecvTimeoutError::Disconnected) => return Err("the connection to the store has ended".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;
    use crate::{
        file::FileRegister,
        record::tests::{member, record},
    };

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Makes a register that holds `held`, runs `act`, and returns the record then.
    fn record_after(
        held: Option<&Record>,
        act: impl FnOnce(&mut dyn Register, &Receiver<RegisterEvent>),
    ) -> Option<Record> {
        let directory = tempfile::tempdir().unwrap();
        let (sender, events) = mpsc::channel();
        let mut register =
            FileRegister::open(directory.path(), Arc::new(move |event| drop(sender.send(event)))).unwrap();
        let deadline = Instant::now() + PATIENCE;
        if let Some(held) = held {
            register.compare_and_swap(RequestId(1_000), Version::NONE, held);
            assert!(matches!(answer(&events, RequestId(1_000), deadline).unwrap(), Outcome::Swapped(_)));
        }
        act(&mut register, &events);
        register.read(RequestId(1_001));
        match answer(&events, RequestId(1_001), deadline).unwrap() {
            Outcome::Read(versioned) => versioned.map(|versioned| versioned.record),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_dead_holders_record_is_released() {
        let held = record(3, &member(1, 7));
        let left = record_after(Some(&held), |register, events| {
            assert_eq!(release_on_behalf(register, events, &member(1, 7), PATIENCE), ReleaseResult::Released);
        });
        assert_eq!(left.unwrap(), Record { holder: None, ..held });
    }

    #[test]
    fn a_record_of_another_holder_is_unchanged() {
        for held in [Some(record(3, &member(1, 8))), Some(record(3, &member(2, 7))), None] {
            let left = record_after(held.as_ref(), |register, events| {
                assert_eq!(release_on_behalf(register, events, &member(1, 7), PATIENCE), ReleaseResult::NotHeld);
            });
            assert_eq!(left, held);
        }
    }

    /// A register that answers from a list.
    struct Scripted(Vec<Outcome>, mpsc::Sender<RegisterEvent>);

    impl Register for Scripted {
        fn read(&mut self, request_id: RequestId) {
            if !self.0.is_empty() {
                let outcome = self.0.remove(0);
                self.1.send(RegisterEvent::Answer { request_id, outcome }).unwrap();
            }
        }

        fn compare_and_swap(&mut self, request_id: RequestId, _: Version, _: &Record) {
            self.read(request_id);
        }

        fn watch(&mut self) {}

        fn reconnect(&mut self) {}
    }

    #[test]
    fn a_lost_swap_is_retried_and_an_unanswering_store_times_out() {
        let held = |version| {
            let record = record(3, &member(1, 7));
            Outcome::Read(Some(Versioned { version: Version(version), record }))
        };
        let play = |script: Vec<Outcome>, limit| {
            let (sender, events) = mpsc::channel();
            release_on_behalf(&mut Scripted(script, sender), &events, &member(1, 7), limit)
        };
        let renewed = vec![held(1), Outcome::Refused, held(2), Outcome::Swapped(Version(3))];
        assert_eq!(play(renewed, PATIENCE), ReleaseResult::Released);
        assert!(matches!(play(vec![held(1)], Duration::ZERO), ReleaseResult::Failed(_)));
        let unknown = vec![held(1), Outcome::Unknown("cut".to_owned())];
        assert!(matches!(play(unknown, PATIENCE), ReleaseResult::Failed(_)));
    }
}
