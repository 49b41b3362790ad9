//! Input packets: MoldUDP64 packets of a synthetic session for each channel, made before any run.

use mdgw_feeds::{
    identity::Sequence,
    transport::moldudp64::{MoldSession, PacketWriter},
};
use mdgw_simulator::itch_generator::{ItchDay, ItchGenerator};

/// What shapes the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::scenario) struct InputShape {
    /// Messages of a measured packet; fewer if they would not fit a datagram.
    pub(in crate::scenario) messages_per_packet: usize,
    pub(in crate::scenario) channel_count: usize,
    /// Of all channels together.
    pub(in crate::scenario) live_orders: u32,
    /// Of all channels together: messages before the first measured packet, in full packets.
    pub(in crate::scenario) warm_up_messages: u64,
    pub(in crate::scenario) seed: u64,
}

/// The packets of all channels. Every run sends a prefix of them.
pub(in crate::scenario) struct Input {
    pub(super) shape: InputShape,
    pub(in crate::scenario) channels: Vec<ChannelInput>,
    /// The first packets of each channel, which bring the directory and fill the books.
    pub(in crate::scenario) warm_up_packets: usize,
}

impl Input {
    pub(in crate::scenario) fn new(shape: InputShape) -> Self {
        let mut channels: Vec<_> = (0..shape.channel_count).map(|index| ChannelInput::new(&shape, index)).collect();
        let warm_up_packets = channels.iter().map(|channel| channel.ends.len()).max().unwrap_or(0);
        for channel in &mut channels {
            while channel.ends.len() < warm_up_packets {
                channel.push_packet(usize::MAX);
            }
        }
        Self { shape, channels, warm_up_packets }
    }

    /// Makes sure that each channel has that many measured packets.
    pub(in crate::scenario) fn grow_to(&mut self, packets_per_channel: usize) {
        for channel in &mut self.channels {
            while channel.ends.len() < self.warm_up_packets + packets_per_channel {
                channel.push_packet(self.shape.messages_per_packet);
            }
        }
    }
}

/// The packets of one channel.
pub(in crate::scenario) struct ChannelInput {
    generator: ItchGenerator,
    session: MoldSession,
    bytes: Vec<u8>,
    /// End of each packet in `bytes`.
    ends: Vec<usize>,
    /// First sequence after each packet.
    boundaries: Vec<u64>,
    message: Vec<u8>,
}

impl ChannelInput {
    fn new(shape: &InputShape, index: usize) -> Self {
        let per_channel = u32::try_from(shape.channel_count).unwrap_or(u32::MAX).max(1);
        let session = session_name(index);
        let day = ItchDay {
            seed: shape.seed.wrapping_add(index as u64),
            message_count: u64::MAX,
            stock_count: STOCK_COUNT,
            live_orders: (shape.live_orders / per_channel).max(1),
            session,
            ..ItchDay::default()
        };
        let mut channel = Self {
            generator: ItchGenerator::new(day),
            session,
            bytes: Vec::new(),
            ends: Vec::new(),
            boundaries: Vec::new(),
            message: Vec::new(),
        };
        let warm_up_messages = shape.warm_up_messages / u64::from(per_channel);
        while channel.next_sequence() <= warm_up_messages.max(DIRECTORY_MESSAGES) {
            channel.push_packet(usize::MAX);
        }
        channel
    }

    /// Appends a packet of at most `messages_max` messages.
    fn push_packet(&mut self, messages_max: usize) {
        let first = self.next_sequence();
        let mut payload = Vec::with_capacity(PAYLOAD_BYTES_MAX);
        let mut packet = PacketWriter::begin(&mut payload, self.session, Sequence(first), PAYLOAD_BYTES_MAX);
        let mut count = 0;
        while count < messages_max {
            // A message that did not fit the packet before is still here.
            if self.message.is_empty() && self.generator.next_message(&mut self.message).is_none() {
                break;
            }
            if !packet.push(&self.message) {
                break;
            }
            self.message.clear();
            count += 1;
        }
        let count = packet.finish();
        self.bytes.extend_from_slice(&payload);
        self.ends.push(self.bytes.len());
        self.boundaries.push(first + u64::from(count));
    }

    fn next_sequence(&self) -> u64 {
        self.boundaries.last().copied().unwrap_or(1)
    }

    /// The first sequence after each packet, warm-up included.
    pub(super) fn boundaries(&self) -> &[u64] {
        &self.boundaries
    }

    /// The packet of that number, from the first one of the warm-up.
    pub(in crate::scenario) fn packet(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[number]]
    }
}

/// The session's name tells a receiver of bare packets which channel they are of.
fn session_name(channel_index: usize) -> MoldSession {
    let mut name = SESSION_PREFIX;
    for (digit, place) in (6..10).rev().zip(0..) {
        name[digit] = b'0' + u8::try_from(channel_index / 10_usize.pow(place) % 10).unwrap_or(0);
    }
    name
}

/// Index of the channel whose session has that name.
pub(super) fn channel_of_session(name: &[u8]) -> Option<usize> {
    let digits = name.get(..10)?.strip_prefix(&SESSION_PREFIX[..6])?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

const SESSION_PREFIX: MoldSession = *b"MDGWIR0000";
const PAYLOAD_BYTES_MAX: usize = 1_472;
/// Fewer stocks than a real session has, so that the directory of each of 128 channels is short.
pub(super) const STOCK_COUNT: u16 = 1_000;
/// Two messages for each stock, and the system events around them.
const DIRECTORY_MESSAGES: u64 = 2 * STOCK_COUNT as u64 + 10;

#[cfg(test)]
mod tests {
    use mdgw_feeds::transport::{Transport as _, moldudp64::MoldUdp64};

    use super::*;

    fn shape() -> InputShape {
        InputShape { messages_per_packet: 3, channel_count: 2, live_orders: 200, warm_up_messages: 6_000, seed: 1 }
    }

    #[test]
    fn packets_are_consecutive_and_name_their_channel() {
        let mut input = Input::new(shape());
        input.grow_to(50);
        let warm_up_packets = input.warm_up_packets;
        for (index, channel) in input.channels.iter().enumerate() {
            let mut next = 1;
            assert_eq!(channel.boundaries().len(), warm_up_packets + 50);
            for (number, boundary) in channel.boundaries().iter().enumerate() {
                let bytes = channel.packet(number);
                let packet = MoldUdp64::parse(bytes).unwrap();
                assert_eq!((packet.first.0, packet.next().0), (next, *boundary));
                assert_eq!(channel_of_session(bytes), Some(index));
                assert!(number < warm_up_packets || packet.count == 3);
                next = *boundary;
            }
            assert!(channel.boundaries()[warm_up_packets - 1] > 3_000, "the books are filled");
        }
    }

    #[test]
    fn forty_messages_make_one_packet_of_at_most_one_datagram() {
        let mut input = Input::new(InputShape { messages_per_packet: 40, channel_count: 1, ..shape() });
        input.grow_to(200);
        let (channel, warm_up_packets) = (&input.channels[0], input.warm_up_packets);
        let counts: Vec<u64> =
            channel.boundaries()[warm_up_packets - 1..].windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(counts.len(), 200);
        assert!(counts.iter().all(|count| (35..=40).contains(count)), "{counts:?}");
    }

    #[test]
    fn other_sessions_belong_to_no_channel() {
        assert_eq!(channel_of_session(&session_name(127)), Some(127));
        assert_eq!(channel_of_session(b"MDGWSIM001"), None);
        assert_eq!(channel_of_session(b"MDGW"), None);
    }
}
