"""Tests of the snapshot group in the receiver in Python that the vectors do not hold: epochs, bounds, times, sessions, a service beside
the group, tags, damaged chunks, and the group's socket."""

import os
import socket
import sys
import zlib

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../gateway/subscriber/python"))
import mdgw_subscriber as mdgw  # noqa: E402

MS = 1_000_000
CHUNKS = 3
WAIT_MS = 120_000
# Records in each chunk.
PER_CHUNK = 2


def record(number):
    return bytes([14, 0xA0]) + number.to_bytes(4, "little") + bytes(50)


def frame(kind, sequence, body, records=0, flags=3):
    return mdgw.FRAME_HEADER.pack(sequence, 9, 0, len(body), records, kind, flags, 0, 0) + body


def packet(flags, first, next_, frames=b"", frame_count=0, epoch=1, restart=0):
    session = mdgw.Session(1, 20240102, restart).to_bytes()
    return mdgw.PACKET_HEADER.pack(
        mdgw.PACKET_MAGIC, mdgw.PACKET_VERSION, flags, 1, 1, frame_count, len(frames), 0, epoch << 8 | 1, session, first, next_, 0
    ) + frames  # fmt: skip


def message(sequence, **header):
    return packet(0, sequence, sequence + 1, frame(mdgw.KIND_MESSAGE, sequence, record(sequence), 1), 1, **header)


def chunk(number, position, index, epoch=1, is_suspect=False, checksum_error=0, restart=0):
    """The packet of one chunk of the image with that number and position."""
    bodies = [b"".join(record(number * 100 + chunk) for _ in range(PER_CHUNK)) for chunk in range(CHUNKS)]
    size, checksum = sum(map(len, bodies)), zlib.crc32(b"".join(bodies)) ^ checksum_error
    totals = mdgw.CHUNK_BODY.pack(number, index, CHUNKS, checksum, PER_CHUNK * CHUNKS, size, 1, 1, 0)
    frames = frame(mdgw.KIND_SNAPSHOT_CHUNK, position, totals, flags=mdgw.SUSPECT if is_suspect else 0)
    frames += frame(mdgw.KIND_SNAPSHOT, position, bodies[index], PER_CHUNK, flags=0)
    return packet(mdgw.RETRANSMISSION | mdgw.SNAPSHOT, index, index + 1, frames, 2, epoch, restart)


def image_items(number, position):
    return [f"s{position} {number * 100 + index} {flags}" for index, flags in enumerate(("1", "0", "2"))]


def messages(first, next_):
    return [f"m{sequence}" for sequence in range(first, next_)]


def text(item):
    kind = type(item)
    if kind is mdgw.Snapshot:
        return f"s{item.sequence} {int.from_bytes(item.body[2:6], 'little')} {item.flags}"
    if kind in (mdgw.Message, mdgw.Repeated):
        return f"{'m' if kind is mdgw.Message else 'r'}{item.sequence}"
    if kind is mdgw.Books:
        return "right" if item.is_right else "suspect"
    if kind in (mdgw.Lost, mdgw.Gap):
        return f"{kind.__name__.lower()} {item.first}..{item.next}"
    return {mdgw.SessionStart: "session", mdgw.EndOfSession: "end", mdgw.State: "state"}[kind]


class Harness:
    """A receiver that starts with the group, on a clock of its own."""

    def __init__(self, services=0, **config):
        config.setdefault("start", "snapshot")
        self.receiver = mdgw.Receiver(mdgw.Config(**config), 1, services, 7, 7 << 18, snapshot_group=True)
        self.now = 1_000 * MS

    def line(self, *packets):
        for data in packets:
            self.receiver.accept(0, data, self.now)

    def publish(self, first, next_, **header):
        self.line(*(message(sequence, **header) for sequence in range(first, next_)))

    def group(self, data):
        return self.receiver.accept_from_snapshot_group(data, self.now)

    def image(self, number, position, indices=range(CHUNKS), **more):
        return [self.group(chunk(number, position, index, **more)) for index in indices]

    def run(self, ms):
        """Lets that time pass."""
        until = self.now + ms * MS
        while True:
            deadline = self.receiver.next_deadline()
            if deadline is None or deadline > until:
                break
            self.now = max(self.now, deadline)
            self.receiver.on_deadline(self.now)
            while self.receiver.poll_request():
                pass
            assert self.receiver.next_deadline() != deadline, "a deadline that stays"
        self.now = until

    def take(self):
        items, self.receiver.items = self.receiver.items, []
        return [text(item) for item in items]

    def expect(self, *items):
        found, expected = self.take(), [item for part in items for item in ([part] if type(part) is str else part)]
        assert found == expected, f"\nfound    {found}\nexpected {expected}"

    @property
    def channel(self):
        return self.receiver.channels[1]


def a_chunk_makes_no_packet_of_a_line_stale():
    harness = Harness()
    harness.publish(10, 11)
    harness.image(3, 10, [0, 1], epoch=2)
    harness.publish(11, 12)
    harness.publish(12, 13, epoch=2)
    harness.image(3, 10, [2], epoch=2)
    harness.expect("session", image_items(3, 10), messages(10, 13))


def epochs_of_lines_and_of_chunks_fence_the_group():
    harness = Harness()
    harness.publish(10, 12)
    assert harness.image(5, 11, [0], epoch=5_000) == ["epoch_jump"] and harness.receiver.rival_epochs is None
    harness.image(5, 11, [0])
    harness.image(5, 11, [1], epoch=2)
    assert harness.image(5, 11, [2]) == ["epoch_stale"], "an earlier chunk's"
    harness.publish(12, 13, epoch=3)
    assert harness.image(5, 11, [2], epoch=2) == ["epoch_stale"], "the lines'"
    harness.image(5, 11, [2], epoch=3)
    harness.expect("session", image_items(5, 11), messages(11, 13))


def chunks_are_refused_while_no_epoch_is_believed():
    harness = Harness()
    assert harness.image(5, 10, [0]) == [None], "no channel is known"
    harness.publish(10, 11)
    harness.publish(11, 12, epoch=900_000)
    assert harness.receiver.rival_epochs is not None
    assert harness.image(5, 10, [0]) == ["epoch_unconfirmed"]
    harness.expect("session")


def an_image_ahead_of_the_stream_waits_for_it():
    harness = Harness()
    harness.publish(10, 11)
    harness.image(5, 12)
    assert harness.image(6, 11) == ["answer_unrequested"] * CHUNKS, "a whole image waits"
    harness.expect("session")
    harness.publish(11, 13)
    harness.expect(image_items(5, 12), messages(12, 13))


def an_image_of_a_position_that_never_comes_is_given_up():
    harness = Harness()
    harness.publish(10, 11)
    harness.image(5, 1 << 40)
    harness.run(9_999)
    assert harness.image(7, 11) == ["answer_unrequested"] * CHUNKS
    harness.run(1)
    assert harness.image(5, 1 << 40) == ["answer_unrequested"] * CHUNKS
    harness.image(7, 11)
    harness.expect("session", image_items(7, 11))


def a_rebuild_gives_up_an_image_of_a_position_that_never_comes():
    harness = Harness(rebuilds_books=True, start="session")
    harness.publish(10, 12)
    harness.image(5, 1 << 40)
    harness.run(10_000)
    harness.image(7, 11)
    harness.expect("session", "suspect", messages(10, 12), image_items(7, 11), "r11", "right")


def chunks_of_two_images_never_mix():
    harness = Harness()
    harness.publish(10, 13)
    harness.image(5, 11, [0, 2])
    assert harness.image(5, 12, [1]) == ["answer_unrequested"], "the same number with other totals"
    harness.image(6, 13, [0])
    assert harness.image(5, 11, [1]) == ["answer_unrequested"], "late"
    harness.image(6, 13, [2])
    harness.expect("session")
    harness.image(6, 13, [1])
    harness.expect(image_items(6, 13))


def a_damaged_and_a_suspect_image_are_not_used():
    harness = Harness()
    harness.publish(10, 12)
    assert harness.image(5, 11, is_suspect=True) == ["answer_unrequested"] * CHUNKS
    assert harness.image(6, 11, checksum_error=1) == [None, None, "field_invalid"]
    assert harness.image(6, 11) == [None] * CHUNKS
    harness.expect("session", image_items(6, 11), messages(11, 12))


def losses_discard_images_from_before_them():
    harness = Harness()
    harness.publish(10, 12)
    harness.image(5, 11, [0, 1])
    harness.publish(14, 15)
    harness.run(10)
    assert harness.image(5, 11, [2]) == ["answer_unrequested"]
    # Whole before the stream reached its position, with losses on both sides.
    harness.image(6, 16)
    harness.publish(18, 19)
    harness.run(10)
    harness.expect("session")
    harness.image(7, 18)
    harness.expect(image_items(7, 18), messages(18, 19))
    assert harness.channel.lost_messages == 0, "nothing behind the start is lost"


def messages_are_kept_within_a_bound():
    harness = Harness(rebuild_bytes_max=300)
    harness.publish(10, 100)
    assert len(harness.channel.kept) == 2
    assert harness.image(5, 50) == ["answer_unrequested"] * CHUNKS
    harness.image(6, 99)
    harness.expect("session", image_items(6, 99), messages(99, 100))
    assert not harness.channel.kept and harness.channel.messages == 1


def too_large_an_image_is_refused():
    harness = Harness(snapshot_bytes_max=100)
    harness.publish(10, 11)
    assert harness.image(5, 10) == ["window_full"] * CHUNKS
    assert not harness.channel.group_image.chunks


def an_image_too_large_to_collect_replaces_none():
    small = len(record(0)) * PER_CHUNK * CHUNKS
    harness = Harness(snapshot_bytes_max=small)
    harness.publish(10, 12)
    harness.image(5, 11, [0, 1])
    oversized = bytearray(chunk(6, 11, 0))
    offset = mdgw.PACKET_HEADER.size + mdgw.FRAME_HEADER.size + 24
    oversized[offset : offset + 8] = (small + 1).to_bytes(8, "little")
    assert harness.group(bytes(oversized)) == "window_full"
    harness.image(5, 11, [2])
    harness.expect("session", image_items(5, 11), messages(11, 12))


def a_session_from_its_first_message_needs_no_image():
    harness = Harness()
    assert harness.receiver.needs_snapshot_group, "its first packet may come at any time"
    harness.publish(1, 4)
    harness.expect("session", messages(1, 4))
    assert not harness.receiver.needs_snapshot_group


def state_and_end_come_behind_the_messages():
    harness = Harness()
    harness.publish(10, 12)
    harness.line(packet(mdgw.SNAPSHOT, 12, 12, frame(mdgw.KIND_STATE, 12, b"\3" + bytes(7), flags=0), 1))
    harness.line(packet(mdgw.HEARTBEAT | mdgw.END_OF_SESSION, 12, 12))
    harness.image(5, 11)
    harness.expect("session", image_items(5, 11), "m11", "state", "end")
    harness.receiver.finish()
    harness.expect()


def a_new_session_ends_the_wait():
    harness = Harness()
    harness.publish(10, 11)
    harness.image(5, 10, [0, 1])
    assert harness.image(5, 10, [2], restart=1) == ["answer_unrequested"], "only the lines say that a session begins"
    harness.publish(1, 2, restart=1)
    assert harness.image(5, 10, [2]) == [None], "no image is needed"
    harness.expect("session", "session", "m1")
    # Its beginning was missed: the wait begins anew.
    harness = Harness()
    harness.publish(10, 11)
    harness.publish(4, 5, restart=1)
    assert harness.image(5, 10, [0]) == ["session_stale"] and harness.receiver.needs_snapshot_group
    harness.image(5, 4, restart=1)
    harness.expect("session", "session", image_items(5, 4), "m4")
    assert harness.channel.snapshots_unavailable == 1


def without_an_image_in_time_the_stream_begins_without():
    for rebuilds in (False, True):
        harness = Harness(rebuilds_books=rebuilds)
        harness.publish(10, 12)
        harness.run(WAIT_MS - 1)
        harness.expect("session")
        harness.run(1)
        harness.expect(["suspect"] if rebuilds else [], "m10", "m11")
        assert (harness.channel.snapshots_unavailable, harness.channel.messages) == (1, 2)
        harness.publish(12, 13)
        harness.image(5, 11)
        harness.expect("m12", [*image_items(5, 11), "r11", "r12", "right"] if rebuilds else [])
        assert not harness.receiver.needs_snapshot_group and harness.receiver.next_deadline() is None


def an_input_that_ends_before_an_image_delivers_nothing():
    harness = Harness()
    harness.publish(10, 12)
    harness.receiver.finish()
    harness.expect("session")
    assert (harness.channel.snapshots_unavailable, harness.channel.messages) == (1, 0)


def books_behind_a_loss_are_rebuilt_from_the_group():
    harness = Harness(rebuilds_books=True)
    harness.publish(1, 4)
    assert not harness.receiver.needs_snapshot_group
    harness.publish(6, 7)
    harness.run(10)
    assert harness.receiver.needs_snapshot_group
    assert harness.image(5, 5) == ["answer_unrequested"] * CHUNKS, "before the loss's end"
    harness.image(6, 7, [0, 2])
    harness.publish(7, 9)
    harness.image(6, 7, [1])
    harness.publish(9, 10)
    harness.expect(
        "session", messages(1, 4), "lost 4..6", "suspect", messages(6, 9), image_items(6, 7), "r7", "r8", "right", "m9"
    )
    assert harness.channel.books_rebuilt == 1 and not harness.receiver.needs_snapshot_group


def with_service(**config):
    """A receiver whose service names the epoch, and answers nothing else."""
    harness = Harness(services=1, **config)
    harness.publish(10, 11)
    number = 7
    harness.receiver.accept(mdgw.SERVICE_LINE, packet(mdgw.EPOCH_ANSWER, number, number), harness.now)
    return harness


def where_no_service_has_a_snapshot_the_group_is_used():
    harness = with_service()
    assert not harness.receiver.needs_snapshot_group
    for _ in range(2_000):
        harness.run(1)
        if harness.receiver.needs_snapshot_group:
            break
    harness.publish(11, 12)
    harness.image(5, 11)
    harness.publish(12, 13)
    harness.expect("session", image_items(5, 11), messages(11, 13))


def without_an_image_in_time_a_service_is_asked_for_the_logs():
    harness = with_service()
    harness.run(5_000)
    harness.publish(11, 13)
    harness.run(WAIT_MS)
    harness.expect("session")
    assert harness.channel.snapshots_unavailable == 1 and not harness.receiver.needs_snapshot_group
    # The services are silent: without their logs the stream begins where it is.
    harness.publish(13, 14)
    harness.expect("m13")


def a_forged_answer_far_ahead_makes_no_gap_while_an_image_is_awaited():
    harness = with_service()
    harness.run(5_000)
    harness.publish(11, 12)
    harness.publish(14, 15)
    harness.run(5)
    answer_end = packet(mdgw.RETRANSMISSION | mdgw.HEARTBEAT, 1, 1 << 40)
    assert harness.receiver.accept(mdgw.SERVICE_LINE, answer_end, harness.now) == "sequence_jump"


def an_image_of_the_group_ends_the_query_of_a_service():
    harness = with_service(rebuilds_books=True, start="live")
    harness.run(5_000)
    harness.publish(11, 12)
    harness.run(600)
    assert harness.channel.stage == "querying" and harness.receiver.needs_snapshot_group
    harness.image(5, 11)
    harness.expect("session", "suspect", "m11", image_items(5, 11), "r11", "right")
    assert harness.channel.stage == "right" and harness.receiver.next_deadline() is None


def chunks_need_the_tag_of_a_published_packet():
    key = mdgw.TagKey(bytes([7] * 32))
    harness = Harness(tag_keys=(key,))

    def tagged(data, nonce=None):
        data = data[:5] + bytes([data[5] | mdgw.TAGGED]) + data[6:]
        return data + key.tag(data, nonce)

    harness.line(tagged(message(10)))
    data = chunk(5, 10, 0)
    assert harness.group(data) == "tag_missing"
    assert harness.group(tagged(data, 7)) == "tag_invalid"
    for index in range(CHUNKS):
        assert harness.group(tagged(chunk(5, 10, index))) is None
    harness.expect("session", image_items(5, 10), "m10")


def what_is_no_chunk_is_refused():
    harness = Harness(packet_bytes_max=len(chunk(5, 11, 0)) - 1)
    harness.publish(10, 11)
    assert harness.image(5, 10, [0]) == ["protocol_mismatch"], "too long"
    harness = Harness()
    harness.publish(10, 11)
    assert harness.group(message(11)) == "protocol_mismatch"
    assert harness.group(packet(mdgw.RETRANSMISSION | mdgw.SNAPSHOT | mdgw.HEARTBEAT, 0, 3)) == "protocol_mismatch"
    assert harness.group(b"") == "header_truncated"
    other_group = chunk(5, 10, 0)
    other_group = other_group[:6] + b"\2\0" + other_group[8:]
    assert harness.group(other_group) == "channel_unknown"
    harness.expect("session")


def damage_ends_no_receiver():
    """Each byte changed, and each length: no image that is not whole is delivered."""
    data = chunk(5, 11, 1)
    for index in range(len(data)):
        for flip in (1, 0x80, 0xFF):
            harness = Harness()
            harness.publish(10, 12)
            harness.image(5, 11, [0, 2])
            harness.group(data[:index] + bytes([data[index] ^ flip]) + data[index + 1 :])
            harness.group(data[:index])
            items = harness.take()
            # The sending time and the fields that receivers ignore are no part of an image.
            assert items == ["session"] or len(items) == 5, (index, items)


def free_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def poll_until(subscriber, is_done):
    items = []
    for _ in range(1_000):
        items += map(text, subscriber.poll(0.01))
        if is_done(items):
            return items
    raise AssertionError(items)


def the_group_is_joined_while_a_snapshot_is_needed(address="239.66.255.9", sources=()):
    config, line, port = mdgw.Config(start="snapshot", rebuilds_books=True), mdgw.LineAddress("127.0.0.1", 0), free_port()
    group = mdgw.LineAddress(address, port, "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender, mdgw.Subscriber(
        config, [line], sources=sources, snapshot_group=group
    ) as subscriber:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        [to_line] = subscriber.line_addresses()
        assert subscriber._group is not None
        sender.sendto(message(10), to_line)
        poll_until(subscriber, lambda items: "session" in items)
        for index in range(CHUNKS):
            sender.sendto(chunk(5, 10, index), (address, port))
        expected = [*image_items(5, 10), "m10"]
        assert poll_until(subscriber, lambda items: "m10" in items) == expected
        assert subscriber._group is None and subscriber.snapshot_group_failures == 0
        # Books that become suspect need it again.
        sender.sendto(message(15), to_line)
        poll_until(subscriber, lambda items: "m15" in items)
        assert subscriber._group is not None


def other_senders_of_a_unicast_group_are_refused():
    config, port = mdgw.Config(start="snapshot"), free_port()
    group = mdgw.LineAddress("127.0.0.1", port)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender, mdgw.Subscriber(
        config, [mdgw.LineAddress("127.0.0.1", 0)], sources=["127.0.0.2"], snapshot_group=group
    ) as subscriber:
        sender.sendto(chunk(5, 10, 0), ("127.0.0.1", port))
        poll_until(subscriber, lambda _: subscriber.sources_refused == 1)


def a_group_that_cannot_be_joined_does_not_stop_the_lines():
    port = free_port()
    line, group = mdgw.LineAddress("127.0.0.1", 0), mdgw.LineAddress("127.0.0.1", port)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as blocker, socket.socket(
        socket.AF_INET, socket.SOCK_DGRAM
    ) as sender:
        blocker.bind(("127.0.0.1", port))
        try:
            mdgw.Subscriber(mdgw.Config(start="snapshot"), [line], snapshot_group=group).close()
        except OSError:
            pass
        else:
            raise AssertionError("a start that needs the group fails")
        with mdgw.Subscriber(mdgw.Config(rebuilds_books=True), [line], snapshot_group=group) as subscriber:
            [to_line] = subscriber.line_addresses()
            sender.sendto(message(10), to_line)
            poll_until(subscriber, lambda items: "m10" in items)
            sender.sendto(message(11), to_line)
            poll_until(subscriber, lambda items: "m11" in items)
            assert subscriber._group is None and subscriber.snapshot_group_failures == 1
            blocker.close()
            poll_until(subscriber, lambda _: subscriber._group is not None)


a_chunk_makes_no_packet_of_a_line_stale()
epochs_of_lines_and_of_chunks_fence_the_group()
chunks_are_refused_while_no_epoch_is_believed()
an_image_ahead_of_the_stream_waits_for_it()
an_image_of_a_position_that_never_comes_is_given_up()
a_rebuild_gives_up_an_image_of_a_position_that_never_comes()
chunks_of_two_images_never_mix()
a_damaged_and_a_suspect_image_are_not_used()
losses_discard_images_from_before_them()
messages_are_kept_within_a_bound()
too_large_an_image_is_refused()
an_image_too_large_to_collect_replaces_none()
a_session_from_its_first_message_needs_no_image()
state_and_end_come_behind_the_messages()
a_new_session_ends_the_wait()
without_an_image_in_time_the_stream_begins_without()
an_input_that_ends_before_an_image_delivers_nothing()
books_behind_a_loss_are_rebuilt_from_the_group()
where_no_service_has_a_snapshot_the_group_is_used()
without_an_image_in_time_a_service_is_asked_for_the_logs()
a_forged_answer_far_ahead_makes_no_gap_while_an_image_is_awaited()
an_image_of_the_group_ends_the_query_of_a_service()
chunks_need_the_tag_of_a_published_packet()
what_is_no_chunk_is_refused()
damage_ends_no_receiver()
the_group_is_joined_while_a_snapshot_is_needed()
other_senders_of_a_unicast_group_are_refused()
a_group_that_cannot_be_joined_does_not_stop_the_lines()
