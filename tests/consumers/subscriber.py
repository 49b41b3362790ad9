"""Tests of the receiver in Python that no vector can hold: its sockets, and damaged packets in the form that it reads fastest."""

import os
import random
import socket
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../gateway/subscriber/python"))
import mdgw_subscriber as mdgw  # noqa: E402

SESSION = mdgw.Session(1, 20240102, 0).to_bytes()
# An mbo record: 14 units of four bytes.
RECORD = bytes([14, 0xA0]) + bytes(54)


def packet(first, next_, frames=b"", frame_count=0, flags=0, epoch=1 << 8 | 1):
    header = mdgw.PACKET_HEADER.pack(
        mdgw.PACKET_MAGIC, mdgw.PACKET_VERSION, flags, 1, 1, frame_count, len(frames), 0, epoch, SESSION, first, next_, 0
    )
    return header + frames


def messages(first, next_, epoch=1 << 8 | 1):
    frames = [mdgw.FRAME_HEADER.pack(n, 1, 0, len(RECORD), 1, mdgw.KIND_MESSAGE, 3, 0, 0) + RECORD for n in range(first, next_)]
    return packet(first, next_, b"".join(frames), next_ - first, epoch=epoch)


def with_subscriber(test):
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with mdgw.Subscriber(mdgw.Config(), [mdgw.LineAddress("127.0.0.1", 0)]) as subscriber:
        [address] = subscriber.line_addresses()
        test(subscriber, lambda data: sender.sendto(data, address))
    sender.close()


def a_flood_does_not_suspend_the_report_of_a_loss(subscriber, send):
    send(packet(1, 2, flags=mdgw.HEARTBEAT))
    send(packet(5, 5, flags=mdgw.HEARTBEAT))
    items = []
    for _ in range(400):
        # More than a round reads, so that the socket is never empty.
        for _ in range(100):
            send(b"junk")
        items += subscriber.poll(0)
    assert [(item.first, item.next) for item in items if type(item) is mdgw.Lost] == [(2, 5)], items


def items_come_before_the_rival_epochs(subscriber, send):
    send(messages(1, 2))
    send(packet(2, 2, flags=mdgw.HEARTBEAT, epoch=900_000_000 << 8))
    items = []
    try:
        for _ in range(100):
            items += subscriber.poll(0.1)
    except mdgw.RivalEpochs:
        assert [item.sequence for item in items if type(item) is mdgw.Message] == [1], items
        return
    raise AssertionError("no rivals")


def damaged(data, source):
    """Another byte, shorter or longer. Often with a header that fits the new length, so that the frames are looked at."""
    at = source.randrange(len(data))
    kind = source.randrange(4)
    if kind == 0:
        data = data[:at]
    elif kind == 1:
        data += bytes(at)
    else:
        data = data[:at] + bytes([source.randrange(256)]) + data[at + 1 :]
    if len(data) >= 64 and source.random() < 0.7:
        data = data[:12] + (len(data) - 64).to_bytes(2, "little") + data[14:]
    return data


def damage_ends_no_receiver():
    source = random.Random(1)
    for _ in range(120):
        receiver = mdgw.Receiver(mdgw.Config())
        packets = [messages(first, first + 2) for first in range(1, 41, 2)]
        for index, data in enumerate(packets):
            receiver.accept(0, data, index)
            for _ in range(5):
                damage = damaged(source.choice(packets[: index + 2]), source)
                # Another epoch or session, or a position far away, may be sound: what they lead to is no concern here.
                if damage[6:10] == data[6:10] and damage[16:56] in [packet[16:56] for packet in packets]:
                    receiver.accept(0, damage, index)
        receiver.finish()
        delivered = [item.sequence for item in receiver.items if type(item) is mdgw.Message]
        assert delivered == sorted(set(delivered)), delivered
        # Only a damaged packet with a gap frame, or without its frames, takes the place of a sound one.
        assert delivered[0] == 1 and len(delivered) >= 30, delivered


def an_epoch_that_a_service_names_ends_the_old_one():
    """The receiver was cut off for many terms: packets in the form that it reads fastest are refused too."""
    receiver = mdgw.Receiver(mdgw.Config(), 1, 1, request_nonce=7, epoch_nonce=7 << 18)
    answer = [packet(7, 7, flags=mdgw.EPOCH_ANSWER, epoch=term << 8) for term in (5, 5_000)]
    receiver.accept(0, messages(1, 2, 5 << 8), 0)
    receiver.accept(mdgw.SERVICE_LINE, answer[0], 1)
    assert receiver.accept(0, messages(2, 3, 5_000 << 8), 2_000_000_000) == "epoch_jump"
    receiver.accept(mdgw.SERVICE_LINE, answer[1], 2_000_000_001)
    assert receiver.accept(0, messages(2, 3, 5 << 8), 2_000_000_002) == "epoch_stale"
    assert receiver.accept(0, messages(2, 3, 5_000 << 8), 2_000_000_003) is None


with_subscriber(a_flood_does_not_suspend_the_report_of_a_loss)
with_subscriber(items_come_before_the_rival_epochs)
damage_ends_no_receiver()
an_epoch_that_a_service_names_ends_the_old_one()
