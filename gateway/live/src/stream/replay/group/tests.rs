use dbn::enums::rtype;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::*;
use crate::{control, stream::channel::tests::TestLog};

/// A dataset with one place for replays, and with a log that a feeder has read.
pub(in crate::stream::replay) struct Filled {
    pub(in crate::stream::replay) dataset: Arc<Dataset>,
    orders: u64,
}

impl Filled {
    pub(in crate::stream::replay) fn new(directory: &TempDir, orders: u64) -> Self {
        let mut log = TestLog::new(directory);
        (1..=orders).for_each(|sequence| log.add_order(sequence));
        let dataset = Arc::new(Dataset::new("XNAS.ITCH", vec![log.source.clone()], 1 << 20, 1));
        dataset.set_produced(Schemas::MBO.with(Schemas::MBP_1).with(Schemas::STATUS));
        let filled = Self { dataset, orders };
        filled.dataset.ring.pass_places(&filled.end().first_places);
        filled
    }

    /// The end of the ring when that many orders were in the log.
    fn after(orders: u64) -> RingPosition {
        RingPosition { chunk: 0, first_places: vec![LogPlace { entry: orders, part: None }], is_ended: false }
    }

    pub(in crate::stream::replay) fn end(&self) -> RingPosition {
        Self::after(self.orders)
    }
}

/// A session's end of its replay.
struct Session {
    items: mpsc::Receiver<ReplayItem>,
    state: Arc<ReplayState>,
}

/// What a session has received: the bytes in front of its start, and those behind it.
type Received = [Vec<u8>; 2];

fn member(wanted: Schemas, live_from: RingPosition) -> (Member, Session) {
    let (sender, items) = mpsc::channel(CHUNKS_MAX);
    let state = Arc::new(ReplayState::new(wanted));
    (Member::new(sender, Arc::clone(&state), live_from), Session { items, state })
}

impl Session {
    /// All records, up to where the replay joins the ring.
    fn receive(&mut self) -> Received {
        let mut received = Received::default();
        loop {
            match self.items.blocking_recv().expect("the replay goes on") {
                ReplayItem::Chunk { chunk, is_past_start } => {
                    received[usize::from(is_past_start)].extend_from_slice(chunk.bytes());
                }
                ReplayItem::Joined { has_hole, .. } => {
                    assert!(!has_hole);
                    return received;
                }
                ReplayItem::LostJournal => panic!("there is no journal"),
            }
        }
    }
}

/// Runs a group in another thread while the closure has the sessions.
fn with_group<T>(filled: &Filled, of: &[(Schemas, RingPosition)], act: impl FnOnce(Vec<Session>) -> T) -> T {
    let runtime = Runtime::new().unwrap();
    let (members, sessions): (Vec<_>, Vec<_>) = of.iter().map(|(wanted, start)| member(*wanted, start.clone())).unzip();
    thread::scope(|scope| {
        scope.spawn(|| {
            let _entered = runtime.enter();
            run(&filled.dataset, members);
        });
        act(sessions)
    })
}

fn alone(filled: &Filled, wanted: Schemas, start: RingPosition) -> Received {
    with_group(filled, &[(wanted, start)], |mut sessions| sessions[0].receive())
}

/// Sessions begin at different times, and each knows which records are from before its start.
#[test]
fn members_of_a_group_get_byte_for_byte_what_a_replay_of_their_own_gets() {
    let directory = tempfile::tempdir().unwrap();
    let filled = Filled::new(&directory, 6_000);
    let starts = [6_000, 2_500, 5_000, 2_500].map(Filled::after);
    let expected = starts.clone().map(|start| alone(&filled, Schemas::MBO, start));
    let lengths = expected.each_ref().map(|halves| halves.each_ref().map(|bytes| bytes.len() / 56));
    assert_eq!(lengths, [[6_000, 0], [2_500, 3_500], [5_000, 1_000], [2_500, 3_500]]);
    let received = with_group(&filled, &starts.map(|start| (Schemas::MBO, start)), |sessions| {
        let threads = sessions.into_iter().map(|mut session| thread::spawn(move || session.receive()));
        threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(received == expected);
}

#[test]
fn members_of_a_group_share_the_memory_of_a_chunk() {
    let directory = tempfile::tempdir().unwrap();
    let filled = Filled::new(&directory, 1_000);
    with_group(&filled, &[(Schemas::MBO, filled.end()), (Schemas::MBO, filled.end())], |mut sessions| {
        let chunks = [0, 1].map(|index: usize| match sessions[index].items.blocking_recv() {
            Some(ReplayItem::Chunk { chunk, .. }) => chunk,
            other => panic!("a chunk: {other:?}"),
        });
        assert!(Arc::ptr_eq(&chunks[0], &chunks[1]));
    });
}

/// The stopped one is let go, and another reader goes on for it once it takes something.
#[test]
fn a_stopped_member_does_not_stop_the_others_and_gets_everything() {
    let directory = tempfile::tempdir().unwrap();
    let filled = Filled::new(&directory, 6_000);
    let expected = alone(&filled, Schemas::MBO, filled.end());
    let of = [0, 1, 2].map(|_| (Schemas::MBO, filled.end()));
    with_group(&filled, &of, |mut sessions| {
        let mut stopped = sessions.remove(1);
        let others = sessions.into_iter().map(|mut session| thread::spawn(move || session.receive()));
        for other in others.collect::<Vec<_>>() {
            assert!(other.join().unwrap() == expected);
        }
        assert!(stopped.receive() == expected);
    });
}

/// Books are not kept for mbo alone, and the others go on without them.
#[test]
fn a_member_that_subscribes_to_a_derived_schema_gets_it_and_the_others_do_not() {
    let directory = tempfile::tempdir().unwrap();
    let filled = Filled::new(&directory, 6_000);
    let expected = alone(&filled, Schemas::MBO, filled.end());
    let of = [0, 1].map(|_| (Schemas::MBO, filled.end()));
    with_group(&filled, &of, |mut sessions| {
        while sessions.iter().any(|session| session.items.is_empty()) {
            thread::sleep(FEEDER_INTERVAL);
        }
        let mut subscriber = sessions.remove(1);
        subscriber.state.wanted.fetch_or(Schemas::MBP_1.0, Relaxed);
        let other = thread::spawn(move || sessions[0].receive());
        let [received, _] = subscriber.receive();
        assert!(other.join().unwrap() == expected);
        let (mut rest, mut orders, mut depths) = (received.as_slice(), Vec::new(), Vec::new());
        while let Some(words) = rest.first() {
            let (record, behind) = rest.split_at(usize::from(*words) * 4);
            rest = behind;
            if record[1] == rtype::MBO {
                orders.extend_from_slice(record);
            } else {
                let at = core::mem::offset_of!(dbn::Mbp1Msg, levels) + core::mem::offset_of!(dbn::BidAskPair, bid_ct);
                depths.push((control::ts_event(record), u64::from(control::u32_at(record, at))));
            }
        }
        assert!(orders == expected[0], "each order once");
        assert!(depths.len() > 100 && depths.iter().all(|(sequence, count)| sequence == count), "all orders so far");
        assert_eq!(depths.last(), Some(&(6_000, 6_000)));
    });
}

#[test]
fn replays_that_wait_for_the_same_records_are_a_group() {
    let places = crate::stream::replay_places::ReplayPlaces::new(1);
    let enter = |wanted| {
        let (member, session) = member(wanted, Filled::after(1));
        (places.enter(vec![member]), session)
    };
    let (takes_place, _first) = enter(Schemas::MBO);
    assert!(takes_place);
    let (takes_place, _other) = enter(Schemas::TRADES);
    assert!(!takes_place && places.has_waiting());
    let (_, left) = enter(Schemas::MBO);
    let (_, _second) = enter(Schemas::MBO);
    drop(left);
    let wanted = |group: Option<Vec<Member>>| group.map(|group| group.iter().map(Member::wanted).collect::<Vec<_>>());
    assert_eq!(wanted(places.next_group(true)), Some(vec![Schemas::MBO; 2]));
    assert_eq!(wanted(places.next_group(true)), Some(vec![Schemas::TRADES]));
    assert_eq!((wanted(places.next_group(true)), places.free(), places.has_waiting()), (None, 1, false));
    // Those that may have to read journals again.
    let (_, _first) = enter(Schemas::MBO);
    let (_, _second) = enter(Schemas::MBO);
    assert_eq!(wanted(places.next_group(false)), Some(vec![Schemas::MBO]));
}

/// Otherwise a machine that is slow for all would break up a group, and each of its members would read the log for itself.
#[test]
fn a_wait_that_holds_up_nobody_is_no_reason_to_let_a_member_go() {
    let (members, mut sessions): (Vec<_>, Vec<_>) = (0..4).map(|_| member(Schemas::MBO, Filled::after(1))).unzip();
    let item = || ReplayItem::Joined { position: Filled::after(1), has_hole: false };
    for member in &members {
        while member.sender.try_send(item()).is_ok() {}
    }
    let began = Instant::now();
    let at = |ms| began + Duration::from_millis(ms);
    let mut wait = Wait::begin(began);
    assert_eq!(wait.step(at(100), &members, 4), Waiting::Goes, "it is the pace of all");
    // The last one has taken all; the second and third still take something.
    while sessions[3].items.try_recv().is_ok() {}
    let mut wait = Wait::begin(began);
    for (ms, taking) in [(100, 1), (200, 2)] {
        sessions[taking].items.try_recv().unwrap();
        assert_eq!(wait.step(at(ms), &members, 1), Waiting::Goes);
    }
    assert_eq!(wait.step(at(210), &members, 1), Waiting::Goes);
    assert_eq!(wait.step(at(225), &members, 1), Waiting::IsTooLong, "nobody has taken anything for 25 ms");
    let mut wait = Wait::begin(began);
    while sessions[1].items.try_recv().is_ok() {}
    assert_eq!(wait.step(at(25), &members, 1), Waiting::IsTooLong, "half of them have nothing to take");
    let mut wait = Wait::begin(began + PATIENCE);
    assert_eq!(wait.step(began + PATIENCE * 2, &members, 4), Waiting::HoldsUpOthersOfDataset);
}
