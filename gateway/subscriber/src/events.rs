//! The blocking form: an iterator over what a subscription receives.

use std::{collections::VecDeque, time::Duration};

use mdgw_wire::{
    arbiter::Gap,
    channel_state::ChannelState,
    consumer_edge::{EdgeOutput, TsRecvMode},
    identity::{ChannelId, InstrumentId, Session},
    published::records::ConsumerEdges,
};

use crate::{BookState, Item, Output, Subscriber, SubscriberError};

/// What happened on a channel. It owns its bytes, so it costs an allocation: [`Subscriber::poll`] lends the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Channel that it belongs to.
    pub channel: ChannelId,
    /// What happened.
    pub kind: EventKind,
}

/// What happened on a channel, in stream order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A session begins: at the start, and when the venue begins again at sequence 1.
    Session(Session),
    /// A DBN record, header and body, with its local times.
    Record(Vec<u8>),
    /// The symbol of an instrument.
    Mapping {
        /// Id of the instrument in records.
        id: InstrumentId,
        /// Its symbol at the venue. Bytes that are not UTF-8 are replaced.
        symbol: String,
    },
    /// The gateway's channel changed its state.
    State(ChannelState),
    /// A gap declared by the gateway: no line of the venue delivered it.
    Gap(Gap),
    /// Neither the published lines nor a service delivered these messages.
    Lost(Gap),
    /// The books kept from the records may be wrong from here on, or are right again: see [`Item::Books`].
    Books(BookState),
    /// The venue ended the session.
    EndOfSession,
}

/// See [`Subscriber::events`].
#[derive(Debug)]
pub struct Events {
    subscriber: Subscriber,
    edges: ConsumerEdges,
    ready: VecDeque<Event>,
    /// Delivered after what was received before it.
    failure: Option<SubscriberError>,
    has_failed: bool,
}

/// How long a wait lasts before the sockets are looked at again. Datagrams and deadlines end it earlier.
const WAIT: Duration = Duration::from_secs(1);

impl Subscriber {
    /// The subscription as an iterator that waits for the next event. It ends after an error only.
    ///
    /// ```no_run
    /// # use mdgw_subscriber::*;
    /// # fn example(subscriber: Subscriber) -> Result<(), SubscriberError> {
    /// for event in subscriber.events(TsRecvMode::Capture) {
    ///     if let EventKind::Record(record) = event?.kind { /* any DBN library reads it */ }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn events(self, ts_recv: TsRecvMode) -> Events {
        let edges = ConsumerEdges::new(ts_recv);
        Events { subscriber: self, edges, ready: VecDeque::new(), failure: None, has_failed: false }
    }
}

impl Events {
    /// The subscriber, for its statistics.
    #[must_use]
    pub fn subscriber(&self) -> &Subscriber {
        &self.subscriber
    }
}

impl Iterator for Events {
    type Item = Result<Event, SubscriberError>;

    fn next(&mut self) -> Option<Self::Item> {
        let Self { subscriber, edges, ready, failure, has_failed } = self;
        loop {
            if let Some(event) = ready.pop_front() {
                return Some(Ok(event));
            }
            if *has_failed {
                return failure.take().map(Err);
            }
            if let Err(error) = subscriber.poll(WAIT, &mut |output| take(&output, edges, ready)) {
                (*failure, *has_failed) = (Some(error), true);
            }
        }
    }
}

/// Appends the events of an output.
fn take(output: &Output<'_>, edges: &mut ConsumerEdges, ready: &mut VecDeque<Event>) {
    let channel = output.channel;
    let mut push = |kind| ready.push_back(Event { channel, kind });
    match output.item {
        Item::Session => push(EventKind::Session(output.session)),
        Item::State(state) => push(EventKind::State(state)),
        Item::Gap(gap) => push(EventKind::Gap(gap)),
        Item::Lost(gap) => push(EventKind::Lost(gap)),
        Item::Books(state) => push(EventKind::Books(state)),
        Item::EndOfSession => push(EventKind::EndOfSession),
        Item::Message { .. } | Item::Definition { .. } | Item::Snapshot { .. } | Item::Repeated { .. } => {
            // A record of another length is not one that a DBN decoder could read.
            edges.deliver(output, |delivered| match delivered {
                EdgeOutput::Record { bytes, .. } => push(EventKind::Record(bytes.to_vec())),
                EdgeOutput::Mapping { id, symbol } => {
                    push(EventKind::Mapping { id, symbol: String::from_utf8_lossy(symbol).into_owned() });
                }
                EdgeOutput::OtherLength { .. } => {}
            });
        }
    }
}
