#!/usr/bin/env python3
"""Receives the published multicast of mdgw: one file, standard library only, Python 3.9 or later, Linux.

    import mdgw_subscriber as mdgw

    lines = [mdgw.LineAddress("239.66.1.1", 31000, "10.20.0.30"), mdgw.LineAddress("239.66.1.2", 31000, "10.20.0.30")]
    services = [("10.20.0.7", 31100), ("10.20.0.8", 31100)]  # of both gateways of a pair
    with mdgw.Subscriber(mdgw.Config(group=1), lines, services=services) as subscriber:
        for item in subscriber:  # raises RivalEpochs where two senders contradict each other at the start
            if type(item) is mdgw.Message:
                for record in mdgw.records(item.body):
                    ...  # one DBN record, as published
            elif type(item) in (mdgw.Gap, mdgw.Lost):
                print("missing:", item)

A receiver without a path for requests starts in mid-session, and rebuilds suspect books, from the gateways' snapshot group:
`Subscriber(mdgw.Config(group=1, start="snapshot"), lines, snapshot_group=mdgw.LineAddress("239.66.1.9", 31009, "10.20.0.30"))`.

`ops/guide/output-protocol.md` is the specification. `Receiver` is the protocol without sockets and clocks: output lines are
arbitrated, epochs fenced, parts joined, gaps requested and reported. `Subscriber` adds the sockets.

The records of an item are DBN records (version 3) back to back, as published: `ts_recv` in them is undefined and `ts_in_delta`
is 0, since both are local to a gateway. `LocalTimes` copies them from the item into the records.

Every limit is a field of `Config`. One thread at a time may use a receiver.
"""

from __future__ import annotations

import argparse
import bisect
import hmac
import os
import select
import signal
import socket
import stat
import struct
import sys
import time
import zlib
from collections import Counter, deque
from typing import Iterator, NamedTuple, Optional, Sequence, Union

# --- Formats ----------------------------------------------------------------------------------------------------------

PACKET_MAGIC = int.from_bytes(b"MDGW", "little")
PACKET_VERSION = 1
REQUEST_MAGIC = int.from_bytes(b"MDGR", "little")
REQUEST_VERSION = 1

# magic, version, flags, group, channel, frame_count, payload_bytes, reserved, epoch, session, first, next, send_time_ns
PACKET_HEADER = struct.Struct("<IBBHHHHHQ16sQQQ")
# sequence, ts_recv, ts_in_delta_ns, body_bytes, record_count, kind, flags, part, reserved
FRAME_HEADER = struct.Struct("<QQiHHBBHI")
# feed, reserved, date, restart, reserved
SESSION = struct.Struct("<HHIII")
# magic, version, kind, group, channel, reserved, session, first, next, nonce
REQUEST = struct.Struct("<IBBHH6s16sQQQ")
GAP_BODY = struct.Struct("<QQ")
# image, chunk, chunk_count, checksum, record_count, record_bytes, order_count, instrument_count, reserved
CHUNK_BODY = struct.Struct("<IIIIQQQII")
TAG_BYTES = 16
assert (PACKET_HEADER.size, FRAME_HEADER.size, SESSION.size, REQUEST.size) == (64, 32, 16, 56)

# Flags of a packet.
HEARTBEAT, RETRANSMISSION, SNAPSHOT, END_OF_SESSION, TAGGED = 1, 2, 4, 8, 16
EPOCH_ANSWER = HEARTBEAT | RETRANSMISSION | SNAPSHOT | END_OF_SESSION
# Kinds of frames.
KIND_MESSAGE, KIND_GAP, KIND_SNAPSHOT, KIND_STATE, KIND_SNAPSHOT_CHUNK = 0, 1, 2, 3, 4
# Flags of a frame.
FIRST_PART, LAST_PART, SUSPECT, LATE_FILL = 1, 2, 4, 8
# Kinds of requests.
RANGE, DEFINITIONS, SESSIONS, EPOCH, SNAPSHOT_CHUNKS = 1, 2, 3, 4, 5

#: Dataset of each feed, by its number in a session.
DATASETS = {1: "XNAS.ITCH", 2: "XBOS.ITCH", 3: "XPSX.ITCH", 4: "IEXG.TOPS", 5: "IEXG.DEEP"}
STATES = ("waiting", "live", "gap", "recovering", "stale", "ended", "failed")

# Sequences are below this, so that a sequence and its part fit one 64-bit position: sequence << 16 | part.
_SEQUENCE_END = 1 << 47
_POSITION_END = 1 << 63
_PART_MASK = 0xFFFF
_ZERO_SESSION = bytes(16)

_PUBLISHED_LABEL = b"mdgw packet    1"
_ANSWER_LABEL = b"mdgw answer    1"

# Line number of the services' answers.
SERVICE_LINE = 7


class Session(NamedTuple):
    """Sequences of a channel that begin at 1. Sessions are ordered."""

    feed: int
    date: int  # YYYYMMDD
    restart: int

    def __str__(self) -> str:
        return f"{DATASETS[self.feed]} {self.date} #{self.restart}"

    def to_bytes(self) -> bytes:
        return SESSION.pack(self.feed, 0, self.date, self.restart, 0)


class SessionStart(NamedTuple):
    """A session begins: at the start, and when the venue begins again at sequence 1. Sessions only go forward."""

    channel: int
    session: Session


class Message(NamedTuple):
    """All records of one input message, its parts joined. Without records and suspect: the gateway could not use it."""

    channel: int
    session: Session
    sequence: int
    flags: int
    ts_recv: int  # ns since 1970 UTC, of the gateway
    ts_in_delta: int  # ns
    record_count: int
    body: bytes


class Definition(NamedTuple):
    """A definition requested at the start: an earlier message of the session, out of sequence."""

    channel: int
    session: Session
    sequence: int
    flags: int
    ts_recv: int
    ts_in_delta: int
    record_count: int
    body: bytes


class Snapshot(NamedTuple):
    """A part of the channel's state: records that build books, mark the trading status, and so on.

    All parts of a snapshot are delivered one after the other, or none. The first has FIRST_PART, the last one LAST_PART. The
    stream continues with the message `sequence`.
    """

    channel: int
    session: Session
    sequence: int
    flags: int
    ts_recv: int
    ts_in_delta: int
    record_count: int
    body: bytes


class Repeated(NamedTuple):
    """A message that was delivered before, behind the position of the snapshot that was just delivered.

    Books that were built from the snapshot need it; a program that counts messages ignores it. Only with `Config.rebuilds_books`.
    """

    channel: int
    session: Session
    sequence: int
    flags: int
    ts_recv: int
    ts_in_delta: int
    record_count: int
    body: bytes


class Books(NamedTuple):
    """The books kept from these items may be wrong from here on, or are right again. Only with `Config.rebuilds_books`.

    Each session begins with right books.
    """

    channel: int
    session: Session
    is_right: bool


class State(NamedTuple):
    """The gateway's channel changed its state, an index of `STATES`."""

    channel: int
    session: Session
    state: int


class Gap(NamedTuple):
    """[first, next) was declared missing by the gateway: no line of the venue delivered it."""

    channel: int
    session: Session
    first: int
    next: int


class Lost(NamedTuple):
    """[first, next) was published, but neither the output lines nor a service delivered it."""

    channel: int
    session: Session
    first: int
    next: int


class EndOfSession(NamedTuple):
    """The venue ended the session."""

    channel: int
    session: Session


class Request(NamedTuple):
    """A request to a retransmission service. Without a session: the current one, or the sessions from the first on."""

    kind: int
    group: int
    channel: int
    session: Optional[Session]
    first: int
    next: int
    nonce: int

    def to_bytes(self) -> bytes:
        session = self.session.to_bytes() if self.session else _ZERO_SESSION
        return REQUEST.pack(
            REQUEST_MAGIC, REQUEST_VERSION, self.kind, self.group, self.channel, bytes(6), session, self.first, self.next,
            self.nonce,
        )  # fmt: skip


Item = Union[SessionStart, Message, Definition, Snapshot, Repeated, Books, State, Gap, Lost, EndOfSession]


class Refused(Exception):
    """A datagram or a part of it was not used; the argument is the reason."""

    @property
    def reason(self) -> str:
        return self.args[0]


class RivalEpochs(Exception):
    """Packets under epochs that exclude each other were received. Some are forged, and nothing tells which."""

    def __init__(self, lowest: int, highest: int, is_contradicted: bool):
        super().__init__(lowest, highest, is_contradicted)
        self.lowest, self.highest, self.is_contradicted = lowest, highest, is_contradicted

    def __str__(self) -> str:
        epochs = " and ".join(f"{epoch >> 8} of node {epoch & 0xFF}" for epoch in (self.lowest, self.highest))
        if self.is_contradicted:
            return f"the retransmission service contradicts the epoch that was accepted at the start: {epochs}"
        return f"rival epochs at the start: {epochs}; no retransmission service named which of them is the gateways'"


class Packet(NamedTuple):
    """A checked packet."""

    flags: int  # without TAGGED
    group: int
    channel: int
    epoch: int
    session: Session
    first: int
    next: int
    send_time_ns: int
    frame_count: int
    is_tagged: bool
    #: Whole messages in sequence only: then `frames` holds a `Message` for each.
    is_plain: bool
    #: `Message`, or else (kind, sequence, part, flags, ts_recv, ts_in_delta, record_count, body).
    frames: list
    #: The part of a message in the packet, if any: (sequence, part, is_last).
    part: Optional[tuple]


def parse_session(raw: bytes) -> Session:
    """Raises `Refused` for an unknown feed, an invalid date, or reserved bits that are not zero."""
    feed, reserved_1, date, restart, reserved_2 = SESSION.unpack(raw)
    if feed not in DATASETS or reserved_1 or reserved_2 or not _is_date(date):
        raise Refused("field_invalid")
    return Session(feed, date, restart)


def _is_date(date: int) -> bool:
    year, month, day = date // 10_000, date // 100 % 100, date % 100
    if not (1970 <= year <= 9999 and 1 <= month <= 12):
        return False
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 1 <= day <= (31, 28 + is_leap, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]


def parse_packet(data: bytes) -> Packet:
    """Checks a datagram, except for its tag. Raises `Refused`."""
    if len(data) < 64:
        raise Refused("header_truncated")
    (magic, version, flags, group, channel, frame_count, payload_bytes, reserved, epoch, raw_session, first, next_,
     send_time_ns) = PACKET_HEADER.unpack_from(data)  # fmt: skip
    if magic != PACKET_MAGIC or version != PACKET_VERSION or flags > 31 or reserved:
        raise Refused("protocol_mismatch")
    is_tagged = flags & TAGGED != 0
    if len(data) != 64 + payload_bytes + (TAG_BYTES if is_tagged else 0):
        raise Refused("length_mismatch")
    session = parse_session(raw_session)
    if first > next_ or next_ >= _SEQUENCE_END:
        raise Refused("sequence_invalid")
    flags &= ~TAGGED
    is_plain, frames, part = _parse_frames(data, flags, channel, session, first, next_, frame_count, 64 + payload_bytes)
    return Packet(
        flags, group, channel, epoch, session, first, next_, send_time_ns, frame_count, is_tagged, is_plain, frames, part
    )


_new = tuple.__new__
_unpack_frame = FRAME_HEADER.unpack_from


def _parse_frames(data, flags, channel, session, first, next_, frame_count, end):
    """Checks every frame. Nothing of a packet is delivered before all of it is checked."""
    if frame_count == 0:
        if end != 64:
            raise Refused("length_mismatch")
        return True, [], None
    if flags & HEARTBEAT:
        raise Refused("length_mismatch")
    offset, position, frames = 64, first, []
    if not flags & SNAPSHOT:
        # The usual case: whole messages. Any other frame, and whatever is wrong, is left to the loop below.
        while offset + 32 <= end:
            sequence, ts_recv, delta, body_bytes, count, kind, frame_flags, part, _reserved = _unpack_frame(data, offset)
            if kind or part or frame_flags & 11 != 3 or sequence < position:
                break
            start = offset + 32
            offset = start + body_bytes
            if offset > end:
                break
            if count != 1 or body_bytes < 16 or body_bytes & 7 or data[start] * 4 != body_bytes:
                if _count_records(data, start, offset) != count:
                    break
            frames.append(
                _new(Message, (channel, session, sequence, frame_flags, ts_recv, delta, count, data[start:offset]))
            )
            position = sequence + 1
        else:
            if offset == end and position <= next_ and len(frames) == frame_count:
                return True, frames, None
        offset, position, frames = 64, first, []
    part_found = None
    for _ in range(frame_count):
        if end - offset < 32:
            raise Refused("length_mismatch")
        sequence, ts_recv, delta, body_bytes, count, kind, frame_flags, part, _reserved = _unpack_frame(data, offset)
        start = offset + 32
        offset = start + body_bytes
        if offset > end:
            raise Refused("message_truncated")
        if kind > KIND_SNAPSHOT_CHUNK:
            raise Refused("protocol_mismatch")
        next_covered = _check_body(data, start, offset, sequence, count, kind)
        # With its part it must fit a position, whatever the kind.
        if sequence >= _SEQUENCE_END:
            raise Refused("sequence_invalid")
        if kind == KIND_MESSAGE and frame_flags & 3 == 3 and part:
            raise Refused("field_invalid")
        body = data[start:offset]
        frames.append((kind, sequence, part, frame_flags, ts_recv, delta, count, body))
        # Snapshots are out of sequence, and a late fill precedes the packet's range by definition.
        if kind > KIND_GAP or flags & SNAPSHOT or frame_flags & LATE_FILL:
            continue
        if sequence < position:
            raise Refused("sequence_invalid")
        if kind == KIND_MESSAGE and frame_flags & 3 != 3:
            # A part is alone in its packet, and the packet's range is limited to it.
            if frame_count != 1:
                raise Refused("field_invalid")
            is_last = frame_flags & LAST_PART != 0
            part_found = (sequence, part, is_last)
            position = next_covered if is_last else sequence
            if next_ != position or (part > 0 and first != sequence):
                raise Refused("sequence_invalid")
        else:
            position = next_covered
        if position > next_:
            raise Refused("sequence_invalid")
    if offset != end:
        raise Refused("length_mismatch")
    return False, frames, part_found


def _check_body(data, start, end, sequence, count, kind):
    """Checks a body against its kind. Returns the first sequence after the frame's range."""
    length = end - start
    if length % 8:
        raise Refused("message_length")
    if kind == KIND_MESSAGE or kind == KIND_SNAPSHOT:
        if _count_records(data, start, end) != count:
            raise Refused("message_length")
        return sequence + 1
    if length != (16 if kind == KIND_GAP else 48 if kind == KIND_SNAPSHOT_CHUNK else 8):
        raise Refused("message_length")
    if kind >= KIND_STATE:
        return sequence
    first, next_ = GAP_BODY.unpack_from(data, start)
    if first != sequence or first >= next_:
        raise Refused("sequence_invalid")
    return next_


def _count_records(data, start, end):
    """Number of DBN records; -1 for anything else. The first byte of each is its length in units of four bytes."""
    count = 0
    while start < end:
        length = data[start] * 4
        if length < 16 or length % 8:
            return -1
        start += length
        count += 1
    return count if start == end else -1


def parse_request(data: bytes) -> Request:
    """Checks a request. Raises `Refused`."""
    if len(data) != REQUEST.size:
        raise Refused("header_truncated" if len(data) < REQUEST.size else "trailing_bytes")
    magic, version, kind, group, channel, reserved, raw_session, first, next_, nonce = REQUEST.unpack(data)
    if magic != REQUEST_MAGIC or version != REQUEST_VERSION or not RANGE <= kind <= SNAPSHOT_CHUNKS or reserved != bytes(6):
        raise Refused("protocol_mismatch")
    session = None if raw_session == _ZERO_SESSION else parse_session(raw_session)
    if first > next_:
        raise Refused("sequence_invalid")
    return Request(kind, group, channel, session, first, next_, nonce)


def records(body: bytes) -> Iterator[bytes]:
    """The DBN records of a body, one after the other."""
    offset = 0
    while offset < len(body):
        end = offset + body[offset] * 4
        yield body[offset:end]
        offset = end


# --- Tags -------------------------------------------------------------------------------------------------------------


class TagKey:
    """Key of packet tags: 32 bytes."""

    def __init__(self, key: bytes):
        if len(key) != 32:
            raise ValueError("a tag key has 32 bytes")
        self._published = hmac.new(key, _PUBLISHED_LABEL, "sha256")
        self._answer = hmac.new(key, _ANSWER_LABEL, "sha256")

    @classmethod
    def load(cls, path: str) -> TagKey:
        """Reads a file of 64 hexadecimal digits that only its owner may read."""
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ValueError(f"{path}: group or others may use the file; make it readable by its owner only")
            text = file.read(1_000).decode("ascii", "replace").strip()
        try:
            return cls(bytes.fromhex(text) if len(text) == 64 else b"")
        except ValueError:
            raise ValueError(f"{path}: not a key of 64 hexadecimal digits") from None

    def tag(self, packet: bytes, nonce: Optional[int] = None) -> bytes:
        """The tag of these bytes: of a published packet, or of an answer to the request with that nonce."""
        if nonce is None:
            mac = self._published.copy()
        else:
            mac = self._answer.copy()
            mac.update(nonce.to_bytes(8, "little"))
        mac.update(packet)
        return mac.digest()[:TAG_BYTES]


def check_tag(keys: Sequence[TagKey], accepts_untagged: bool, data: bytes, nonce: Optional[int] = None) -> None:
    """Checks the tag of a datagram, an answer if there is a nonce. Without keys every datagram passes. Raises `Refused`."""
    if not keys:
        return
    if len(data) < 64:
        raise Refused("header_truncated")
    if data[:5] != b"MDGW\x01":
        raise Refused("protocol_mismatch")
    if not data[5] & TAGGED:
        if accepts_untagged:
            return
        raise Refused("tag_missing")
    packet, tag = data[:-TAG_BYTES], data[-TAG_BYTES:]
    if len(packet) < 64 or not any(hmac.compare_digest(key.tag(packet, nonce), tag) for key in keys):
        raise Refused("tag_invalid")


# --- Receiver ---------------------------------------------------------------------------------------------------------


class Config(NamedTuple):
    """Reception of one group. Times are in ns."""

    group: int = 1
    #: Channels to receive; empty: every channel observed, up to `channels_max`.
    channels: tuple = ()
    channels_max: int = 64
    #: Where a receiver begins that comes late: "session" (the oldest message of the session in the services' logs), "day"
    #: (first the ended sessions of the trading date), "live" (the messages published now, after the definitions), or "snapshot"
    #: (a snapshot of the session's state, then the messages behind it: from a service, or, where none has one or there is no service,
    #: from the snapshot group; without a snapshot as "session").
    start: str = "session"
    #: Maximum packet size without the tag, bytes.
    packet_bytes_max: int = 1_472
    #: Keys of packet tags. With keys, packets without a valid tag are refused.
    tag_keys: tuple = ()
    #: Packets without a tag are accepted although there are keys: while a deployment changes to tags.
    accepts_untagged: bool = False
    #: Packets held per channel while a gap is pending.
    window_packets: int = 256
    #: How long a gap waits for another line.
    gap_timeout_ns: int = 2_000_000
    #: Timeout of an answer of a service, and attempts for the same request.
    request_timeout_ns: int = 50_000_000
    attempts_max: int = 10
    #: Rounds of queries to all services, after which services that do not answer are left out if another one has.
    unanswered_rounds_max: int = 2
    messages_per_request_max: int = 10_000
    #: Largest step of the epoch's count above the highest accepted one.
    epoch_jump_max: int = 1_000
    #: How long a receiver without an answering service watches for rival epochs after its first packet: at least three times
    #: the gateways' heartbeat_ms.
    start_window_ns: int = 3_000_000_000
    #: Most bytes of packets held at the start until a service names the epoch.
    start_bytes_max: int = 16 << 20
    #: Largest distance of a packet from the known position, in messages, without confirmation by two more packets.
    sequence_jump_max: int = 1 << 24
    #: Maximum bytes of one message's records.
    message_bytes_max: int = 1 << 16
    #: Maximum bytes of a snapshot's records. A larger snapshot is refused, and the session delivered from the logs.
    snapshot_bytes_max: int = 1 << 30
    #: Whether suspect books are rebuilt from a snapshot while the stream goes on. Needs a service or the snapshot group. The receiver
    #: then delivers `Books`, `Snapshot` and `Repeated` in the middle of a session.
    rebuilds_books: bool = False
    #: Maximum bytes of messages kept per channel while its books are suspect, to be delivered again behind the snapshot; or until the
    #: image of the snapshot group has come with which the channel starts. A message counts as 48 bytes more than its records.
    rebuild_bytes_max: int = 64 << 20
    #: How long a start waits for a whole image of the snapshot group before it does without: longer than the group needs for one image
    #: of each of its channels.
    snapshot_group_wait_ns_max: int = 120_000_000_000


class Receiver:
    """Turns the datagrams of one group into items. No sockets, no clock: times are ns of any clock that only goes forward.

    Call `accept` with each datagram, `on_deadline` when `next_deadline` is reached, and send what `poll_request` returns.
    What they deliver is appended to `items`, which the caller empties. With `snapshot_group`, call `accept_from_snapshot_group` with
    each datagram of the snapshot group, at least while `needs_snapshot_group`.
    """

    def __init__(
        self, config: Config, lines: int = 1, services: int = 0,
        request_nonce: Optional[int] = None, epoch_nonce: Optional[int] = None, snapshot_group: bool = False,
    ):  # fmt: skip
        if not 1 <= lines <= 7 or not 0 <= services <= 8:
            raise ValueError("1 to 7 lines and at most 8 services")
        if config.start not in ("session", "day", "live", "snapshot"):
            raise ValueError(f"unknown start: {config.start!r}")
        if not 64 <= config.window_packets <= 32_768:
            raise ValueError("window_packets: 64 to 32768")
        self.items: list = []
        #: Why datagrams, or messages of them, were not used, by reason.
        self.drops: Counter = Counter()
        self._config, self._lines, self._services = config, lines, services
        self._has_snapshot_group = snapshot_group
        # The highest epoch of a chunk of the snapshot group.
        self._group_epoch = 0
        # Answers must repeat these numbers, which nobody else may be able to guess.
        self._request_nonce = int.from_bytes(os.urandom(8), "little") if request_nonce is None else request_nonce
        epoch_nonce = int.from_bytes(os.urandom(8), "little") if epoch_nonce is None else epoch_nonce
        self._epochs = _EpochStart(config, services, epoch_nonce >> 18)
        self._channels: dict = {channel: _Channel(self, channel) for channel in config.channels}
        self._turn = 0
        self._selections: dict = {}
        self._snapshot_services: dict = {}

    @property
    def rival_epochs(self) -> Optional[RivalEpochs]:
        """Set when rival epochs were seen and nothing decided between them. From then on every packet is refused."""
        return self._epochs.failure

    @property
    def epoch(self) -> Optional[int]:
        """Highest epoch accepted: the count in the upper 56 bits, the node in the lower 8."""
        return self._epochs.highest

    @property
    def channels(self) -> dict:
        """Counts of each known channel: see `_Channel`."""
        return self._channels

    def request_nonce(self, service: int) -> int:
        """Nonce of the requests to that service."""
        return (self._request_nonce + service) & (1 << 64) - 1

    def accept(self, line: int, data: bytes, now: int, service: int = 0) -> Optional[str]:
        """Processes a datagram. Returns why no part of it was used, or `None`.

        `line` counts from 0; answers of services have line `SERVICE_LINE` and the index of their service.
        """
        # Most packets follow the ones before, or repeat what the other line brought.
        if len(data) > 64 and not self._config.tag_keys:
            header = PACKET_HEADER.unpack_from(data)
            channel = self._channels.get(header[4])
            if (
                channel is not None
                and line < self._lines
                and header[0] == PACKET_MAGIC
                and header[1] == PACKET_VERSION
                and not header[2] & ~RETRANSMISSION
                and header[3] == self._config.group
                and not header[7]
                and header[8] == self._epochs.believed
                and header[9] == channel.raw_session
                and channel.phase is _RUNNING
                and len(data) == 64 + header[6] <= self._config.packet_bytes_max
                and header[5]
            ):
                first, next_ = header[10], header[11]
                expected = channel.expected
                if first << 16 == expected == channel.frontier and first < next_ < _SEQUENCE_END and channel.kept_from is None:
                    if channel.reported_through <= first and next_ - first <= channel.jump_max >> 16:
                        try:
                            is_plain, frames, part = _parse_frames(
                                data, 0, header[4], channel.session, first, next_, header[5], 64 + header[6]
                            )
                        except Refused as refused:
                            self.drops[refused.reason] += 1
                            return refused.reason
                        if is_plain and not (channel.watches_books and any(frame[3] & SUSPECT for frame in frames)):
                            self._epochs.last_accepted = now
                            channel.arrivals[line] += 1
                            channel.expected = channel.frontier = next_ << 16
                            channel.reported_through = next_
                            channel.messages += len(frames)
                            self.items += frames
                            if channel.session_end is not None:
                                channel.report_end_if_reached()
                            return None
                elif (
                    first < next_ and next_ << 16 <= expected != _NONE and channel.session_end is None
                    and len(data) >= 96 and not (data[88] == 0 and data[89] & 3 != 3)
                ):  # fmt: skip
                    # Not examined any further: a packet with a malformed frame counts as a duplicate, too.
                    self._epochs.last_accepted = now
                    channel.arrivals[line] += 1
                    self.drops["duplicate"] += 1
                    return "duplicate"
        try:
            self._accept(line, data, now, service)
        except Refused as refused:
            if len(data) == 8 and data[:4] == b"MDGP" and data[5:] == b"\0\0\0" and line != SERVICE_LINE:
                return None  # a probe by which a gateway on this host checks its own group
            self.drops[refused.reason] += 1
            return refused.reason
        return None

    def _accept(self, line, data, now, service):
        packet = parse_packet(data)
        if packet.group != self._config.group:
            raise Refused("channel_unknown")
        is_answer = line == SERVICE_LINE
        nonce = self.request_nonce(service) if is_answer else None
        check_tag(self._config.tag_keys, self._config.accepts_untagged, data, nonce)
        is_retransmission = packet.flags & RETRANSMISSION != 0
        # On the published lines, a new leader repeats what the previous one may not have sent. The end of an answer is not
        # valid there.
        is_allowed = is_retransmission if is_answer else not (is_retransmission and packet.flags & HEARTBEAT)
        bytes_max = self._config.packet_bytes_max + (TAG_BYTES if packet.is_tagged else 0)
        if not is_allowed or len(data) > bytes_max:
            raise Refused("protocol_mismatch")
        if is_answer and packet.flags == EPOCH_ANSWER:
            try:
                self._epochs.on_answer(packet, now)
            finally:
                self._release_held(now)
            return
        if self._config.channels and packet.channel not in self._channels:
            raise Refused("channel_unknown")
        if is_answer:
            self._epochs.admit_answer(packet.epoch)
        elif not self._epochs.admit(packet, line, data, now):
            return  # held
        self._accept_believed(packet, line, now, service)

    def accept_from_snapshot_group(self, data: bytes, now: int) -> Optional[str]:
        """Processes a datagram of the snapshot group. Returns why it was not used, or `None`.

        A receiver that needs no snapshot ignores it.
        """
        try:
            self._accept_group_chunk(data, now)
        except Refused as refused:
            self.drops[refused.reason] += 1
            return refused.reason
        return None

    def _accept_group_chunk(self, data, now):
        packet = parse_packet(data)
        if packet.group != self._config.group:
            raise Refused("channel_unknown")
        # Lines say which channels there are, and of which session. Most receivers need nothing of the group most of the time.
        channel = self._channels.get(packet.channel)
        if channel is None or not channel.collects_group_image():
            return
        if len(data) > self._config.packet_bytes_max + (TAG_BYTES if packet.is_tagged else 0):
            raise Refused("protocol_mismatch")
        check_tag(self._config.tag_keys, self._config.accepts_untagged, data)
        chunk = _parse_chunk(packet)
        self._epochs.check_group_chunk(packet.epoch)
        if packet.epoch < self._group_epoch:
            raise Refused("epoch_stale")
        self._group_epoch = packet.epoch
        channel.accept_group_chunk(packet.session, chunk, now)

    @property
    def needs_snapshot_group(self) -> bool:
        """Whether packets of the snapshot group are needed now. Its user may leave the group while they are not."""
        if not self._has_snapshot_group:
            return False
        will_start_with_it = self._config.start == "snapshot" and not self._services and not self._channels
        return will_start_with_it or any(channel.needs_snapshot_group() for channel in self._channels.values())

    def next_deadline(self) -> Optional[int]:
        """When `on_deadline` must be called."""
        deadlines = [self._epochs.next_deadline()]
        deadlines += [channel.next_deadline() for channel in self._channels.values()]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def on_deadline(self, now: int) -> None:
        """Processes expired deadlines. Read the sockets before: what is still in them is not missing."""
        self._epochs.on_deadline(now)
        self._release_held(now)
        for channel in self._channels.values():
            deadline = channel.next_deadline()
            if deadline is not None and deadline <= now:
                channel.on_deadline(now)

    def poll_request(self) -> Optional[tuple]:
        """A request that is due, as (index of the service, bytes); `None` if there is none."""
        request = self._epochs.poll_request()
        channels = list(self._channels.values())
        for _ in channels:
            if request is not None:
                break
            self._turn = (self._turn + 1) % len(channels)
            request = channels[self._turn].poll_request()
        if request is None:
            return None
        kind, channel, session, first, next_ = request
        if kind == SNAPSHOT_CHUNKS:
            # Only the service that has the image can send the rest of it.
            service = self._snapshot_services.get(channel, -1)
            if service < 0 or first >> 32 == 0:
                service = self._snapshot_services[channel] = (service + 1) % max(self._services, 1)
            return service, Request(*request[:1], self._config.group, *request[1:], self.request_nonce(service)).to_bytes()
        # A service that answers is kept; a repeated request goes to the next one. Requests for messages and queries for log
        # extents alternate, so each has its own turn.
        # A query for definitions that begins again goes to the next one too: each is asked for all that its log has.
        turn = self._selections.setdefault((channel, first < next_), [0, None])
        last, turn[1] = turn[1], (kind, session, first)
        begins_again = kind == DEFINITIONS and first == 0
        if last is not None and (last == turn[1] or begins_again and last[:2] == (kind, session)):
            turn[0] = (turn[0] + 1) % max(self._services, 1)
        service = turn[0]
        nonce = self.request_nonce(service)
        return service, Request(kind, self._config.group, channel, session, first, next_, nonce).to_bytes()

    def finish(self) -> None:
        """The input has ended: delivers held messages and reports the missing ones as lost."""
        last_arrival = self._epochs.finish()
        if last_arrival is not None:
            self._release_held(last_arrival)
        for channel in self._channels.values():
            channel.finish()

    def _accept_believed(self, packet, line, now, service):
        channel = self._channels.get(packet.channel)
        if channel is None:
            if self._config.channels or len(self._channels) >= self._config.channels_max:
                raise Refused("channel_unknown")
            channel = self._channels[packet.channel] = _Channel(self, packet.channel)
        channel.accept(packet, line, now, service)

    def _release_held(self, now):
        self.drops["epoch_unconfirmed"] += self._epochs.take_discarded()
        for line, data in self._epochs.release(now):
            try:
                packet = parse_packet(data)
                if self._epochs.admit(packet, line, data, now):
                    self._accept_believed(packet, line, now, 0)
            except Refused as refused:
                self.drops[refused.reason] += 1


class _Query:
    """A query to the services, repeated until it is answered or given up."""

    __slots__ = ("config", "services", "attempts_max", "attempt", "deadline", "is_due")

    def __init__(self, config, services, now, attempts_max=None):
        self.config, self.services = config, services
        self.attempts_max = max(config.attempts_max if attempts_max is None else attempts_max, 1)
        self.attempt, self.deadline, self.is_due = 1, now + config.request_timeout_ns, True

    def take_due(self):
        is_due, self.is_due = self.is_due, False
        return is_due

    def on_progress(self, is_any_new, now):
        """A service that only ever sends its beginning must not be asked for ever."""
        if is_any_new:
            self.attempt = 1
        self.deadline = now + self.config.request_timeout_ns

    def request_next_piece(self, now):
        self.deadline, self.is_due = now + self.config.request_timeout_ns, True

    def ask_next(self, now):
        self.attempt += 1
        self.deadline, self.is_due = now + self.config.request_timeout_ns, True

    def on_deadline(self, now):
        """Returns False if the query is given up."""
        if self.deadline <= now:
            self.ask_next(now)
        return self.attempt <= self.attempts_max

    def has_asked_enough(self):
        return self.attempt > self.config.unanswered_rounds_max * self.services


class _Assembly:
    """Collects the chunks of one image: complete or nothing."""

    def __init__(self, config):
        self.bytes_max = config.snapshot_bytes_max
        self.clear()

    def clear(self):
        # Position and totals of the image; None before its first chunk.
        self.image: Optional[tuple] = None
        self.chunks: dict = {}
        self.record_bytes = self.record_count = 0

    def check_size(self, image):
        """Raises `Refused`: the image's records are beyond the limit."""
        if image[4] > self.bytes_max:
            raise Refused("window_full")

    def choose(self, image):
        """Collects this image from now on. Raises `Refused`: it is too large."""
        self.check_size(image)
        self.image = image

    def add(self, image, chunk, frame):
        if image != self.image:
            raise Refused("answer_unrequested")
        if chunk in self.chunks:
            raise Refused("duplicate")
        if self.record_bytes + len(frame[-1]) > image[4]:
            raise Refused("window_full")
        self.chunks[chunk] = frame
        self.record_bytes += len(frame[-1])
        self.record_count += frame[-2]

    def has_all(self):
        return len(self.chunks) == self.image[1]

    def is_sound(self):
        """Whether the chunks, all of which are there, agree with the totals and the checksum."""
        checksum = 0
        for body in self.bodies():
            checksum = zlib.crc32(body, checksum)
        return (self.record_bytes, self.record_count, checksum) == (self.image[4], self.image[3], self.image[2])

    def position(self):
        """Where the stream continues behind the image; None before its first chunk."""
        return None if self.image is None else self.image[-2]

    def frames(self):
        """The snapshot frames, in order, with the flags of their place."""
        last = len(self.chunks) - 1
        for chunk in range(last + 1):
            kind, sequence, part, flags, *rest = self.chunks[chunk]
            flags = flags & ~(FIRST_PART | LAST_PART) | (FIRST_PART if chunk == 0 else 0) | (LAST_PART if chunk == last else 0)
            yield (kind, sequence, part, flags, *rest)

    def bodies(self):
        return (self.chunks[chunk][-1] for chunk in range(len(self.chunks)))


class _Snapshot(_Assembly):
    """The snapshot of one session, from the service that first offered an acceptable one."""

    def __init__(self, config, services):
        super().__init__(config)
        self.services = services
        self.begin(None)

    def begin(self, rebuilt_from):
        """Discards everything. A rebuild needs an image without suspect books at `rebuilt_from` or later, a start (None) any."""
        self.rebuilt_from: Optional[int] = rebuilt_from
        self.restart()
        # How often an image was begun, a service was about to take one, and an image was left for another one.
        self.attempts = self.waits = self.images_left = 0
        # The answer to the last request is such an image.
        self.leaves_image = False

    def restart(self):
        self.clear()
        self.service: Optional[int] = None
        self.first_missing = 0
        # Whether a chunk arrived since the last request.
        self.has_progress = False

    def request(self):
        """The first missing chunks, as (first, next) of a request. Image 0 before the first chunk.

        A receiver that runs asks for one chunk first, since that says whether the image is good enough.
        """
        self.has_progress = self.leaves_image = False
        if self.image is None:
            return 0, _CHUNKS_PER_REQUEST if self.rebuilt_from is None else 1
        while self.first_missing in self.chunks:
            self.first_missing += 1
        # Chunks behind the last one missing in the range have arrived.
        next_ = min(self.first_missing + _CHUNKS_PER_REQUEST, self.image[1])
        while next_ - 1 in self.chunks:
            next_ -= 1
        name = self.image[0] << 32
        return name | self.first_missing, name | next_

    def accept(self, packet, service, query, now):
        """Processes a packet of an answer. Returns whether all chunks are there. Raises `Refused`."""
        if self.service not in (None, service) or not packet.flags & SNAPSHOT:
            raise Refused("answer_unrequested")
        if packet.flags & HEARTBEAT:
            self.accept_end(packet, query, now)
            return False
        image, chunk, frame = _parse_chunk(packet)
        if self.image is None:
            self.begin_image(image, service)
        self.add(image, chunk, frame)
        if not self.has_all():
            self.has_progress = True
            query.on_progress(True, now)
            return False
        if self.is_sound():
            return True
        self.restart()
        if self.attempts < _IMAGES_MAX:
            query.request_next_piece(now)
        raise Refused("field_invalid")

    def begin_image(self, image, service):
        """Each service is asked for a snapshot without suspect books first."""
        position, is_suspect = image[-2:]
        if self.rebuilt_from is None:
            is_left = is_suspect and (self.leaves_image or self.images_left < self.services - 1)
        else:
            is_left = is_suspect or position < self.rebuilt_from
        if is_left:
            # Once per answer: its other chunks are refused too.
            self.images_left += not self.leaves_image
            self.leaves_image = True
            raise Refused("answer_unrequested")
        self.attempts += 1
        self.choose(image)
        self.service = service

    def accept_end(self, packet, query, now):
        has_more = packet.first < packet.next
        if self.image is not None:
            if self.has_progress:
                query.request_next_piece(now)
            elif not has_more and packet.next == 0:
                # The service has lost the image, as after a restart.
                self.restart()
                if self.attempts < _IMAGES_MAX:
                    query.request_next_piece(now)
        elif has_more and packet.first == 0 and self.waits < _WAITS_MAX:
            # Not a chunk was sent: the service is about to take the snapshot.
            self.waits += 1
            query.on_progress(True, now)

    def give_up_image(self):
        """No answer came in time. Returns whether any service is asked for another image."""
        had_image = self.image is not None
        self.restart()
        return had_image and self.attempts < _IMAGES_MAX


class _GroupImage(_Assembly):
    """An image of the snapshot group, which a leader sends unasked.

    Nothing is requested: a chunk that was lost is awaited in the next pass of the same image. Chunks of another image replace those of
    one that is incomplete, since its remaining chunks do not come any more.

                 chunk of a usable image           last chunk, totals and checksum agree
      empty ----------------------------> collecting -----------------------> complete --stream at its position--> used
        ^                                   |   ^ | another usable image         |
        +--- a loss behind the position ----+---+-+ <------ a loss, or the stream never comes

    An image is usable if its books are not suspect and the receiver has kept every message from its position on.
    """

    def __init__(self, config):
        super().__init__(config)
        self.reset()

    def reset(self):
        self.clear()
        # All chunks are there: the stream must reach their position before then.
        self.complete_until: Optional[int] = None
        # The image before this one: its chunks that arrive late change nothing.
        self.left: Optional[tuple] = None

    def accept(self, image, chunk, frame, kept_from, now):
        """Adds a chunk. The receiver has kept all messages from `kept_from` on. Raises `Refused`."""
        position, is_suspect = image[-2:]
        if is_suspect or position < kept_from or image == self.left:
            raise Refused("answer_unrequested")
        if self.image is not None and image != self.image:
            # A complete image needs nothing more. Another image has another number.
            if self.complete_until is not None or image[0] == self.image[0]:
                raise Refused("answer_unrequested")
            # An image that can never be collected must not discard one that can.
            self.check_size(image)
            self.leave()
        if self.image is None:
            self.choose(image)
        self.add(image, chunk, frame)
        if not self.has_all():
            return
        if not self.is_sound():
            # Its next pass may be sound.
            self.clear()
            raise Refused("field_invalid")
        self.complete_until = now + _COMPLETE_NS_MAX

    def leave(self):
        self.left, self.complete_until = self.image, None
        self.clear()

    def discard_unusable(self, kept_from, now):
        """Discards an image whose messages are not all kept any more, and one whose position the stream has not reached in time."""
        is_too_old = self.image is not None and self.position() < kept_from
        if is_too_old or self.complete_until is not None and self.complete_until <= now:
            self.leave()

    def is_ready(self, received_through):
        """Whether all chunks are there, and everything before their position was received."""
        return self.complete_until is not None and self.position() <= received_through


def _parse_chunk(packet):
    """What a chunk says about its image, its number, and its snapshot frame. Raises `Refused`."""
    if packet.flags != RETRANSMISSION | SNAPSHOT or len(packet.frames) != 2:
        raise Refused("protocol_mismatch")
    head, frame = packet.frames
    if (head[0], frame[0]) != (KIND_SNAPSHOT_CHUNK, KIND_SNAPSHOT):
        raise Refused("protocol_mismatch")
    number, chunk, chunk_count, checksum, record_count, record_bytes, order_count, instrument_count, _ = CHUNK_BODY.unpack(head[-1])
    position = head[1]
    is_empty = record_count == 0 and record_bytes == 0 and chunk_count == 1
    is_sound = (
        number != 0 and position > 0 and chunk < chunk_count and (record_count >= chunk_count or is_empty)
        and record_bytes // 16 >= record_count >= order_count
    )  # fmt: skip
    # Chunks without records would cost memory that no limit counts.
    has_records = len(frame[-1]) > 0 or record_bytes == 0
    if not (is_sound and has_records) or frame[1] != position or (packet.first, packet.next) != (chunk, chunk + 1):
        raise Refused("field_invalid")
    is_suspect = head[3] & SUSPECT != 0
    image = (
        number, chunk_count, checksum, record_count, record_bytes, order_count, instrument_count, position, is_suspect,
    )  # fmt: skip
    return image, chunk, frame


# Chunks in one request, which fit the receive buffer of a host whose limits nobody has raised; images that are begun before the
# receiver does without; how often a service may answer that the snapshot is being taken.
_CHUNKS_PER_REQUEST, _IMAGES_MAX, _WAITS_MAX = 128, 8, 200


class _EpochStart:
    """Which epoch is believed. A packet with a very high forged epoch must not make the receiver drop all others."""

    IDLE, ASKING, WATCHING, VOUCHED, FAILED = range(5)

    def __init__(self, config, services, nonce):
        self.config, self.services, self.nonce = config, services, nonce
        self.highest: Optional[int] = None
        self.vouched: Optional[int] = None
        self.failure: Optional[RivalEpochs] = None
        self.phase = self.IDLE
        # The epoch whose packets need no further check: the highest, while packets are accepted.
        self.believed: Optional[int] = None
        self.query: Optional[_Query] = None
        self.query_name = None  # channel and session
        self.asked_at = 0
        self.until = self.last_accepted = 0
        self.held: list = []  # (line, data, epoch)
        self.held_bytes = 0
        self.held_span = None
        self.is_released = False
        self.last_arrival = 0
        self.discarded = 0

    def are_rivals(self, one, other):
        return abs((one >> 8) - (other >> 8)) > self.config.epoch_jump_max

    def check(self, epoch):
        """Whether the epoch is within a bounded step of the highest accepted or the vouched one."""
        if self.highest is not None and epoch < self.highest:
            raise Refused("epoch_stale")
        known = max((e for e in (self.highest, self.vouched) if e is not None), default=None)
        if known is not None and self.are_rivals(known, epoch):
            raise Refused("epoch_stale" if epoch < known else "epoch_jump")

    def filter(self, epoch):
        """Accepts an epoch if `check` does."""
        self.check(epoch)
        self.highest = self.believed = epoch

    def admit(self, packet, line, data, now):
        """A packet of the published lines. Returns False if it is held."""
        epoch = packet.epoch
        if self.phase == self.IDLE:
            if self.services:
                return self.ask_and_hold(packet, line, data, now)
            self.phase, self.until, self.last_accepted = self.WATCHING, now + self.config.start_window_ns, now
            self.filter(epoch)
            return True
        if self.phase == self.ASKING:
            self.hold(epoch, line, data, now)
            return False
        if self.phase == self.WATCHING:
            try:
                self.filter(epoch)
            except Refused:
                is_watched = now <= self.until or now - self.last_accepted >= self.config.start_window_ns
                if self.highest is None or not self.are_rivals(self.highest, epoch) or not is_watched:
                    raise
                if self.services:
                    return self.ask_and_hold(packet, line, data, now)
                self.fail(min(self.highest, epoch), max(self.highest, epoch), False)
                raise Refused("epoch_unconfirmed") from None
            self.last_accepted = now
            return True
        if self.phase == self.VOUCHED:
            try:
                self.filter(epoch)
            except Refused as refused:
                # The receiver may have been cut off for many terms. Forged packets must not make it flood the services.
                if refused.reason == "epoch_jump" and self.query is None and now - self.asked_at >= 1_000_000_000:
                    self.query, self.asked_at = _Query(self.config, self.services, now), now
                    self.query_name = (packet.channel, packet.session)
                raise
            return True
        raise Refused("epoch_unconfirmed")

    def admit_answer(self, epoch):
        self.check_group_chunk(epoch)
        self.filter(epoch)

    def check_group_chunk(self, epoch):
        """A chunk of the snapshot group decides nothing: packets of the former leader may still wait in the sockets of the lines."""
        if self.phase not in (self.WATCHING, self.VOUCHED):
            raise Refused("epoch_unconfirmed")
        self.check(epoch)

    def on_answer(self, packet, now):
        """A service names the highest epoch that it knows."""
        if packet.first != self.nonce or packet.next != self.nonce or packet.epoch == 0:
            raise Refused("field_invalid")
        if self.phase in (self.IDLE, self.FAILED):
            raise Refused("field_invalid")
        if self.phase != self.VOUCHED and self.highest is not None and self.are_rivals(self.highest, packet.epoch):
            self.fail(min(self.highest, packet.epoch), max(self.highest, packet.epoch), True)
            raise Refused("epoch_unconfirmed")
        self.vouched = max(self.vouched or 0, packet.epoch)
        if self.highest is not None and self.are_rivals(self.highest, self.vouched):
            self.believed = None
        if self.phase == self.ASKING:
            self.is_released = True
        else:
            self.phase, self.query, self.asked_at = self.VOUCHED, None, now

    def next_deadline(self):
        return self.query.deadline if self.query is not None else None

    def on_deadline(self, now):
        if self.query is None or (self.phase == self.ASKING and self.query.deadline > now):
            return
        is_given_up = not self.query.on_deadline(now)
        if self.phase == self.VOUCHED:
            if is_given_up:
                self.query = None
            return
        rivals = self.held_rivals()
        if rivals is None:
            self.is_released = is_given_up or self.query.has_asked_enough()
        elif is_given_up:
            self.fail(*rivals, False)

    def finish(self):
        if self.phase != self.ASKING:
            return None
        rivals = self.held_rivals()
        if rivals is None:
            self.is_released = True
        else:
            self.fail(*rivals, False)
        return self.last_arrival

    def take_discarded(self):
        discarded, self.discarded = self.discarded, 0
        return discarded

    def release(self, now):
        """The held packets, once the epoch is decided."""
        if self.phase != self.ASKING or not self.is_released:
            return []
        held, self.held, self.held_bytes, self.held_span, self.is_released = self.held, [], 0, None, False
        self.query = None
        if self.vouched is not None:
            self.phase, self.asked_at = self.VOUCHED, now
        else:
            self.phase, self.until, self.last_accepted = self.WATCHING, now + self.config.start_window_ns, now
        self.believed = self.highest
        return held

    def poll_request(self):
        if self.query is None or not self.query.take_due():
            return None
        return (EPOCH, *self.query_name, self.nonce, self.nonce)

    def ask_and_hold(self, packet, line, data, now):
        self.phase, self.believed = self.ASKING, None
        self.query, self.query_name = _Query(self.config, self.services, now), (packet.channel, packet.session)
        self.hold(packet.epoch, line, data, now)
        return False

    def hold(self, epoch, line, data, now):
        """Without room the packet is refused. The service has it: it is requested like any missing packet."""
        self.last_arrival = now
        lowest, highest = self.held_span or (epoch, epoch)
        self.held_span = (min(lowest, epoch), max(highest, epoch))
        if self.held_bytes + len(data) > self.config.start_bytes_max:
            raise Refused("window_full")
        self.held_bytes += len(data)
        self.held.append((line, data))

    def held_rivals(self):
        if self.held_span is None:
            return None
        lowest, highest = self.held_span
        accepted = lowest if self.highest is None else self.highest
        lowest, highest = min(lowest, accepted), max(highest, accepted)
        return (lowest, highest) if self.are_rivals(lowest, highest) else None

    def fail(self, lowest, highest, is_contradicted):
        self.discarded += len(self.held)
        self.held, self.query, self.believed = [], None, None
        self.phase, self.failure = self.FAILED, RivalEpochs(lowest, highest, is_contradicted)


class _Held:
    """A packet in the reorder window."""

    __slots__ = ("is_plain", "frames", "fragments")

    def __init__(self, is_plain, frames):
        self.is_plain, self.frames, self.fragments = is_plain, frames, 0


# Phases of a channel.
_IDLE, _SESSIONS, _DEFINITIONS, _SNAPSHOT, _GROUP_IMAGE, _EXTENT, _RUNNING, _CLOSING = (
    "idle", "sessions", "definitions", "snapshot", "group image", "extent", "running", "closing",
)  # fmt: skip
# Definitions of one session that a receiver remembers: three times what the largest venue lists.
_DEFINITIONS_MAX = 1 << 15
_NONE = 1 << 64  # `expected` before the first packet: beyond every position
# Stages of a rebuild.
_RIGHT, _WAITING, _QUERYING, _COMPLETE = "right", "waiting", "querying", "complete"
# Pause before the first query for a snapshot: other losses of the same burst come within it. It doubles with each query. Books that
# stayed right for the longest pause have the shortest one again.
_PAUSE_NS_MIN, _PAUSE_NS_MAX = 500_000_000, 64_000_000_000
# Longest time that a whole image waits for the stream to come to its position; attempts with one service; bytes that a kept message
# counts beside its records.
_COMPLETE_NS_MAX, _REBUILD_ATTEMPTS_MIN, _KEPT_MESSAGE_BYTES = 10_000_000_000, 4, 48


class _Channel:
    """One channel: sessions, the start, arbitration of the lines, gaps, requests.

                 first packet, sequence 1 (or no service)
      idle -----------------------------------------------------------------> running
        | first packet, later sequence                                         ^ |  packet of a newer session,
        +--> definitions --answered--> extent (of the logs) ------answered-----+ |  current one not at its end
                 +---- start "live": directly ---------------------------------+ |
                 +---- start "snapshot": snapshot --complete-------------------+ v  (without one: group image, then extent)
      idle --> group image (no service) --complete, or given up----------------+
                                           the newer session <--------------- closing (where did the current one end?)
                                                   ^ none between               | ^ a session between: that one first
      start "day", not its first session           |                            v |
      idle ----------------------------------------+------------------------- sessions (which are in the logs?)

    All positions are `sequence << 16 | part`, so that two gateways may split packets and messages differently.

    While a channel waits for an image of the snapshot group, the stream runs as ever, but nothing is delivered: messages are kept,
    within a bound. With the image everything is delivered at once, from the image's position on.
    """

    def __init__(self, receiver, number):
        config = receiver._config
        self.receiver, self.config, self.number = receiver, config, number
        self.services, self.lines = receiver._services, receiver._lines
        self.jump_max = min(max(config.sequence_jump_max, 1), 1 << 40) << 16
        self.request_max = min(max(config.messages_per_request_max, 1), 1 << 40) << 16
        self.phase = _IDLE
        self.query: Optional[_Query] = None
        self.is_end_known = False
        self.next_session: Optional[Session] = None
        self.sessions_from: Optional[Session] = None
        self.oldest: Optional[Session] = None
        # Each log has indices of its own, so each service is asked from index 0 on. Until one answers, any may (None).
        self.definitions_service: Optional[int] = None
        self.next_definition = self.requested_from = 0
        self.definitions: set = set()
        self.image = _Snapshot(config, self.services)
        self.group_image = _GroupImage(config) if receiver._has_snapshot_group else None
        # How long a start waits for an image of the group, and the counts without what was received meanwhile.
        self.group_until = 0
        self.counts_before = (0, 0, 0)
        self.extents: list = [None] * self.services
        self.previous_session: Optional[Session] = None
        self.skipped: Optional[tuple] = None
        # Stream of items.
        self.session: Optional[Session] = None
        self.raw_session: Optional[bytes] = None
        self.reported_through = 0
        self.state: Optional[int] = None
        self.snapshot: Optional[tuple] = None
        self.session_end: Optional[int] = None
        self.has_reported_end = False
        self.parts: Optional[list] = None  # header of the first part
        self.part_bodies: list = []
        self.part_bytes = self.next_part = 0
        self.is_broken = False
        # Whether the books that a consumer keeps from the items are watched. While they are suspect: messages from `kept_from` on
        # are in `kept`, or produced nothing.
        self.rebuilds_books = config.rebuilds_books and (self.services > 0 or self.group_image is not None)
        self.watches_books = self.rebuilds_books
        self.kept_from: Optional[int] = None
        self.kept: deque = deque()
        self.kept_bytes = 0
        self.clear_rebuild()
        # Counts: messages delivered; missing messages, by who declared them; starts without an answer; starts at which a service
        # did not send all of its definitions; sessions left although no service knew their end; snapshots delivered, and starts for
        # which there was none; suspect books that a snapshot replaced, and queries for such a snapshot that ended without one.
        self.messages = self.gap_messages = self.lost_messages = 0
        self.starts_unanswered = self.definitions_incomplete = self.sessions_incomplete = 0
        self.snapshots = self.snapshots_unavailable = 0
        self.books_rebuilt = self.rebuilds_refused = 0
        # Arbitration: next position to deliver, and the first one not known to exist.
        self.arrivals = [0] * 8
        self.jumps: list = [None] * 8
        self.begin_at(None)

    # --- Arbitration ---

    def begin_at(self, expected):
        """Positions restart with a session."""
        self.expected = _NONE if expected is None else expected
        self.frontier = self.expected
        self.froms: list = []  # ascending and disjoint fragments of held packets: [from, until, gap_since, packet]
        self.fragments: list = []
        self.held_packets = 0
        self.trailing_gap_since = 0
        self.jumps = [None] * 8
        # The request in flight: [first, next, attempt, deadline, is_unsent].
        self.request: Optional[list] = None
        # Everything missing before this position has been requested or given up.
        self.requested_through = 0
        self.current_gap = (0, 0, 0)  # first, next, due
        self.given_up_at = 0

    def arbitrate(self, line, first, next_, is_plain, frames, now):
        is_answer = line == SERVICE_LINE
        if line >= self.lines and not is_answer:
            raise Refused("source_unexpected")
        self.arrivals[line] += 1
        is_sized = next_ - first <= self.jump_max
        if first == self.expected == self.frontier and next_ < _POSITION_END and is_sized:
            self.expected = self.frontier = next_
            self.deliver(is_plain, frames, first, next_)
            return
        if first == 0 or next_ >= _POSITION_END:
            raise Refused("sequence_invalid")
        if not is_sized:
            raise Refused("length_mismatch")
        if self.expected == _NONE:
            self.expected = self.frontier = first
        if next_ <= self.expected:
            raise Refused("duplicate")
        self.check_jump(line, first, next_)
        while first > self.expected and self.is_full() and not self.covers(first, next_):
            gap = None if self.services else self.front_gap()
            if gap is None:
                # The service has it.
                self.raise_frontier(max(next_, self.frontier), now)
                raise Refused("window_full")
            self.declare(gap[0], min(gap[1], first) if gap[0] < first else gap[1])
        if next_ <= self.expected:
            raise Refused("duplicate")
        add = self.hold if first > self.expected else self.merge
        added = add(first, next_, is_plain, frames, now)
        if self.services:
            self.recovery_on_arrival(first, next_, now)
        if not added:
            raise Refused("duplicate")

    def announce(self, line, next_, now):
        """All positions before `next_` exist."""
        is_answer = line == SERVICE_LINE
        if line >= self.lines and not is_answer:
            raise Refused("source_unexpected")
        self.arrivals[line] += 1
        if next_ == 0 or next_ >= _POSITION_END:
            raise Refused("sequence_invalid")
        if self.expected == _NONE:
            self.expected = self.frontier = next_
            return
        # At the start, and where a session that is left has ended, the services are asked for what may be far ahead.
        if not is_answer or self.phase in (_RUNNING, _GROUP_IMAGE):
            self.check_jump(line, next_, next_)
        if next_ > self.frontier:
            self.raise_frontier(next_, now)
        if is_answer and self.services:
            if self.request is not None:
                self.continue_request(True, now)
            self.request_continuations(now)

    def check_jump(self, line, first, next_):
        """A packet far ahead needs two more that continue it, on its line. One forged sequence must not make a gap."""
        if first - max(self.frontier, self.expected) <= self.jump_max:
            return
        jump, arrival = self.jumps[line], self.arrivals[line]
        is_continued = jump is not None and jump[0] == first and jump[2] + 1 == arrival
        confirmations = jump[1] + 1 if is_continued else 1
        if confirmations >= 3:
            self.jumps[line] = None
            return
        self.jumps[line] = (next_, confirmations, arrival)
        raise Refused("sequence_jump")

    def merge(self, first, next_, is_plain, frames, now):
        """Delivers a packet that begins at or before the expected position, with all connected held ones."""
        added = 0
        while self.expected < next_:
            until = min(self.froms[0], next_) if self.froms else next_
            if self.expected < until:
                start, self.expected = self.expected, until
                added += until - start
                self.frontier = max(self.frontier, until)
                self.deliver(is_plain, frames, start, until)
            if self.froms and self.froms[0] == self.expected and self.expected < next_:
                self.deliver_front()
        self.deliver_connected()
        if self.fragments:
            self.fragments[0][2] = now
        else:
            self.trailing_gap_since = now
        return added

    def hold(self, first, next_, is_plain, frames, now):
        """Holds what is not held yet of a packet that begins after the expected position."""
        held, added, position = _Held(is_plain, frames), 0, first
        index = self.index_of(first)
        while position < next_:
            hole_end = min(self.froms[index], next_) if index < len(self.froms) else next_
            if position < hole_end:
                if index < len(self.froms):
                    self.fragments[index][2] = now
                self.froms.insert(index, position)
                self.fragments.insert(index, [position, hole_end, now, held])
                held.fragments += 1
                added += hole_end - position
                index, position = index + 1, hole_end
            if index >= len(self.froms) or self.froms[index] >= next_:
                break
            position = max(position, min(self.fragments[index][1], next_))
            index += 1
        self.held_packets += held.fragments > 0
        if added and self.fragments[-1][1] == next_:
            self.trailing_gap_since = now
        self.frontier = max(self.frontier, next_)
        return added

    def index_of(self, position):
        """Index of the first fragment that ends after `position`."""
        index = bisect.bisect_right(self.froms, position)
        return index - 1 if index and self.fragments[index - 1][1] > position else index

    def is_full(self):
        return self.held_packets >= self.config.window_packets

    def has_space(self):
        """Whether packets that fill later gaps find room."""
        return self.config.window_packets - self.held_packets >= self.config.window_packets // 2

    def covers(self, first, next_):
        return self.first_missing_from(first)[0] >= next_

    def first_missing_from(self, position):
        """The first position from there on that is not held, and the index of the fragment after it."""
        for index in range(self.index_of(position), len(self.froms)):
            start, until, _since, _held = self.fragments[index]
            if start > position:
                return position, index
            position = until
        return position, None

    def deliver_front(self):
        del self.froms[0]
        start, until, _since, held = self.fragments.pop(0)
        held.fragments -= 1
        self.held_packets -= held.fragments == 0
        self.expected = until
        self.deliver(held.is_plain, held.frames, start, until)

    def deliver_connected(self):
        while self.froms and self.froms[0] == self.expected:
            self.deliver_front()
        self.frontier = max(self.frontier, self.expected)

    def raise_frontier(self, next_, now):
        end = self.fragments[-1][1] if self.fragments else self.expected
        if end >= self.frontier:
            self.trailing_gap_since = now
        self.frontier = next_

    def front_gap(self):
        next_ = self.froms[0] if self.froms else self.frontier
        return (self.expected, next_) if self.expected < next_ else None

    def front_gap_due(self):
        since = self.fragments[0][2] if self.fragments else self.trailing_gap_since
        return since + self.config.gap_timeout_ns

    def declare(self, first, next_):
        """Reports a gap that begins at the expected position, and delivers what follows it."""
        self.expected = next_
        self.on_lost(first, next_)
        self.deliver_connected()
        if self.services:
            if self.request is not None and self.request[1] <= self.expected:
                self.request = None
            self.requested_through = max(self.requested_through, self.expected)

    def declare_missing_before(self, next_, now):
        if self.expected == _NONE or next_ >= _POSITION_END or next_ <= self.expected:
            return
        if next_ > self.frontier:
            self.raise_frontier(next_, now)
        while True:
            gap = self.front_gap()
            if gap is None or gap[0] >= next_:
                return
            self.declare(gap[0], min(gap[1], next_))

    # --- Requests for missing messages: one at a time ---

    def pending_gap_from(self, position):
        """The first gap from there on: first, next, and when its wait for another line ends."""
        first, index = self.first_missing_from(max(position, self.expected))
        next_, since = (self.frontier, self.trailing_gap_since) if index is None else self.fragments[index][0:3:2]
        return (first, next_, since + self.config.gap_timeout_ns) if first < next_ else None

    def first_gap_in(self, first, next_):
        gap = self.pending_gap_from(first)
        if gap is None or gap[0] >= next_:
            return None
        return gap[0], min(gap[1], next_)

    def next_planned(self):
        """The next piece to request: the gap, the piece, when, and whether it continues a large gap."""
        if self.request is not None:
            return None
        gap = self.pending_gap_from(self.requested_through)
        if gap is None:
            return None
        first, next_, due = gap
        is_continuation = first < self.current_gap[1]
        bound = min(next_, self.current_gap[1]) if is_continuation else next_
        piece_next = min(first + self.request_max, bound)
        return (first, next_), piece_next, self.current_gap[2] if is_continuation else due, is_continuation

    def request_piece(self, planned, now):
        (first, next_), piece_next, _due, is_continuation = planned
        if not is_continuation:
            self.current_gap = (first, next_, now)
        self.issue(first, piece_next, 1, now)
        self.requested_through = piece_next

    def request_continuations(self, now):
        planned = self.next_planned()
        if planned is not None and planned[3]:
            self.request_piece(planned, now)

    def issue(self, first, next_, attempt, now):
        self.request = [first, next_, attempt, now + self.config.request_timeout_ns, True]

    def recovery_on_arrival(self, first, next_, now):
        if self.request is None and self.requested_through >= self.current_gap[1]:
            return
        self.requested_through = self.first_missing_from(max(self.requested_through, self.expected))[0]
        if self.request is not None and first < self.request[1] and self.request[0] < next_:
            self.continue_request(False, now)
        self.request_continuations(now)

    def continue_request(self, is_end, now):
        first, next_, _attempt, _deadline, _is_unsent = self.request
        rest = self.first_gap_in(first, next_)
        if rest is None:
            self.request = None
        elif is_end and rest[0] > first:
            # The answer brought something: the rest is requested at once. Otherwise the deadline decides.
            self.issue(rest[0], next_, 1, now)

    def retry(self, now):
        first, next_, attempt, _deadline, _is_unsent = self.request
        rest = self.first_gap_in(first, next_)
        if rest is None:
            self.request = None
            return
        if not self.has_space() and rest[0] > self.expected:
            # An answer would be refused.
            self.request[3] = now + max(self.config.request_timeout_ns, 1)
            return
        attempt = 1 if rest[0] > first else attempt + 1
        if attempt <= max(self.config.attempts_max, 1):
            self.issue(rest[0], next_, attempt, now)
            return
        self.given_up_at = now
        behind = self.first_gap_in(rest[1], next_)
        if behind is not None:
            # A later message has arrived, so the services answer. Other missing parts have their own attempts.
            self.issue(behind[0], next_, 1, now)
            return
        self.request = None
        if first >= self.current_gap[0] and rest[1] >= next_:
            self.requested_through = max(self.requested_through, self.current_gap[1])

    def given_up(self, first, next_):
        """The part of the first gap that nobody is left to fill, or None."""
        if first >= self.requested_through:
            return None
        if self.request is not None and self.request[1] > first:
            return None if self.request[0] <= first else (first, min(next_, self.request[0]))
        return first, next_

    def gap_deadline(self):
        if self.expected == self.frontier:
            return None
        if not self.services:
            return self.front_gap_due()
        gap = self.front_gap()
        if gap is not None and self.given_up(*gap) is not None:
            return self.given_up_at
        planned = self.next_planned()
        deadlines = [self.request[3]] if self.request is not None else []
        deadlines += [planned[2]] if planned is not None else []
        return min(deadlines, default=None)

    def gaps_on_deadline(self, now):
        if self.services:
            self.requests_on_deadline(now)
        while True:
            gap = self.front_gap()
            if gap is None:
                return
            if self.services:
                gap = self.given_up(*gap)
            elif self.front_gap_due() > now:
                gap = None
            if gap is None:
                return
            self.declare(*gap)
            if self.services:
                self.requests_on_deadline(now)

    def requests_on_deadline(self, now):
        if self.request is not None and self.request[3] <= now:
            self.retry(now)
        while True:
            planned = self.next_planned()
            if planned is None or planned[2] > now:
                return
            self.request_piece(planned, now)

    # --- Stream of items ---

    def emit(self, item):
        self.receiver.items.append(item)

    def begin_stream(self, session):
        self.session, self.raw_session = session, session.to_bytes()
        self.parts, self.reported_through, self.state, self.snapshot = None, 0, None, None
        self.session_end, self.has_reported_end = None, False
        self.clear_books()
        self.emit(SessionStart(self.number, session))

    def on_lost(self, first, next_):
        # Parts of a message at either end of the gap are useless without the missing ones.
        self.parts = None
        self.report_lost(first >> 16, -(-next_ >> 16))

    def report_lost(self, first, next_):
        first = max(first, self.reported_through)
        if first < next_:
            self.lost_messages += next_ - first
            self.reported_through = next_
            self.emit(Lost(self.number, self.session, first, next_))
            self.suspect_books_before(next_)

    def deliver(self, is_plain, frames, start, until):
        """Delivers [start, until) of a packet."""
        if is_plain:
            for message in frames:
                sequence = message[2]
                if start <= sequence << 16 < until and sequence >= self.reported_through:
                    self.abandon_message_before(sequence)
                    self.messages += 1
                    self.reported_through = sequence + 1
                    self.emit(message)
                    if self.watches_books:
                        self.watch_message(message)
        else:
            for frame in frames:
                self.on_frame(frame, start, until)
        # Messages without output are covered by the range alone.
        if not until & _PART_MASK:
            self.abandon_message_before(until >> 16)
            self.reported_through = max(self.reported_through, until >> 16)

    def on_frame(self, frame, start, until):
        kind, sequence, part, flags = frame[:4]
        if flags & LATE_FILL:
            return
        position = sequence << 16 | part
        if kind == KIND_MESSAGE:
            if start <= position < until:
                self.abandon_message_before(sequence)
                self.on_message(frame)
        elif kind == KIND_GAP:
            first, next_ = GAP_BODY.unpack(frame[7])
            first, next_ = max(first, start >> 16, self.reported_through), min(next_, -(-until >> 16))
            if first < next_:
                self.abandon_message_before(first)
                self.parts = None
                self.gap_messages += next_ - first
                self.reported_through = next_
                self.emit(Gap(self.number, self.session, first, next_))
                self.suspect_books_before(next_)
        elif start <= position <= until:
            self.on_out_of_sequence(frame)

    def on_out_of_sequence(self, frame):
        """State and snapshot frames are delivered when their content is new, whichever gateway sent them."""
        kind, sequence, part, flags, ts_recv, delta, count, body = frame
        if kind == KIND_STATE:
            before, self.state = self.state, body[0]
            if before != self.state and self.state < len(STATES):
                self.emit(State(self.number, self.session, self.state))
        elif kind == KIND_SNAPSHOT:
            if self.snapshot is None or self.snapshot < (sequence, part):
                self.snapshot = (sequence, part)
                self.emit(Snapshot(self.number, self.session, sequence, flags, ts_recv, delta, count, body))

    def on_message(self, frame):
        _kind, sequence, part, flags, ts_recv, delta, count, body = frame
        if sequence < self.reported_through:
            return
        if flags & 3 != 3:
            joined = self.join_part(sequence, part, flags, ts_recv, delta, count, body)
            if joined is None:
                if flags & LAST_PART:
                    self.report_lost(sequence, sequence + 1)
                return
            flags, ts_recv, delta, count, body = joined
        self.messages += 1
        self.reported_through = sequence + 1
        message = Message(self.number, self.session, sequence, flags, ts_recv, delta, count, body)
        self.emit(message)
        if self.watches_books:
            self.watch_message(message)

    def join_part(self, sequence, part, flags, ts_recv, delta, count, body):
        if part == 0:
            self.parts = [sequence, flags, ts_recv, delta, 0]
            self.part_bodies, self.part_bytes, self.next_part, self.is_broken = [], 0, 0, False
        if self.parts is not None and self.parts[0] == sequence and part == self.next_part:
            self.next_part += 1
            self.parts[1] |= flags
            self.parts[4] = min(self.parts[4] + count, 0xFFFF)
            self.part_bytes += len(body)
            if self.part_bytes > self.config.message_bytes_max:
                self.is_broken = True
            else:
                self.part_bodies.append(body)
        else:
            self.is_broken = True
        if not flags & LAST_PART:
            return None
        parts, self.parts = self.parts, None
        if parts is None or self.is_broken:
            return None
        return parts[1] | 3, parts[2], parts[3], parts[4], b"".join(self.part_bodies)

    def abandon_message_before(self, next_):
        """Something after a message is delivered, and its last part did not come: gateways with different packet sizes number
        the parts differently. What follows must not be delivered before the loss is reported."""
        if self.parts is not None and self.parts[0] < next_:
            self.abandon_message()

    def abandon_message(self):
        sequence, self.parts = self.parts[0], None
        self.report_lost(sequence, sequence + 1)

    def report_end_if_reached(self):
        if self.has_reported_end or self.session_end is None or self.expected == _NONE:
            return
        if self.expected >= self.session_end:
            self.has_reported_end = True
            self.emit(EndOfSession(self.number, self.session))

    # --- Rebuilding suspect books ---
    #
    #   loss, gap, suspect message at s          image without suspect books, position p >= s
    #         |                                              |
    #   right +-> suspect --pause--> one chunk is requested --+-> all chunks --> complete --delivered up to p--> right
    #                ^                     | suspect, too old, no answer                |
    #                +---- pause x 2 <-----+------------ lost, or another loss <--------+
    #
    # Messages are delivered all the time. Those since the books became suspect are kept, within a bound, and those behind the
    # position are delivered once more directly after the snapshot.
    #
    # An image of the snapshot group is collected at the same time, without a request. Whichever image is whole first is used.

    def clear_books(self):
        self.kept_from = None
        self.forget_messages()

    def watch_books(self, is_watched):
        """Keeps messages from now on, or none any more. What was kept is forgotten."""
        self.watches_books = is_watched
        self.clear_books()

    def forget_messages(self):
        self.kept.clear()
        self.kept_bytes = 0

    def suspect_books_before(self, next_):
        """The books may be wrong: what happened before `next_` is not known, or not to the gateway."""
        if not self.watches_books:
            return
        self.forget_messages()
        were_right, self.kept_from = self.kept_from is None, next_
        if were_right:
            self.emit(Books(self.number, self.session, False))

    def watch_message(self, message):
        if self.kept_from is not None:
            self.kept.append(message)
            self.kept_bytes += _KEPT_MESSAGE_BYTES + len(message.body)
            while self.kept_bytes > self.config.rebuild_bytes_max:
                oldest = self.kept.popleft()
                self.kept_bytes -= _KEPT_MESSAGE_BYTES + len(oldest.body)
                self.kept_from = oldest.sequence + 1
        if message.flags & SUSPECT:
            self.suspect_books_before(message.sequence + 1)

    def clear_rebuild(self):
        """For the next session."""
        self.image.begin(None)
        if self.group_image is not None:
            self.group_image.reset()
        self.stage = _RIGHT
        # When a pause ends, or a whole image is discarded; the query for an image.
        self.rebuild_until = 0
        self.rebuild_query: Optional[_Query] = None
        self.pause_ns = _PAUSE_NS_MIN
        self.right_since: Optional[int] = None

    def rebuild_deadline(self):
        group = None if self.group_image is None else self.group_image.complete_until
        if self.stage is _RIGHT:
            return group
        return _earlier(group, self.rebuild_query.deadline if self.stage is _QUERYING else self.rebuild_until)

    def collects_group_image(self):
        """Whether chunks of the snapshot group are of use now."""
        is_collecting = self.phase in (_GROUP_IMAGE, _RUNNING) and self.kept_from is not None
        return is_collecting and self.group_image is not None

    def needs_snapshot_group(self):
        """Whether the snapshot group is needed now, or will be when the channel's first packet comes."""
        if self.phase is _IDLE:
            return self.config.start == "snapshot" and not self.services
        return self.phase is _GROUP_IMAGE or self.collects_group_image()

    def accept_group_chunk(self, session, chunk, now):
        """A checked chunk of the snapshot group, of which the channel collects an image."""
        if session != self.session:
            # The lines say when a session begins.
            raise Refused("session_stale" if session < self.session else "answer_unrequested")
        self.group_image.accept(*chunk, self.kept_from, now)
        if self.phase is _GROUP_IMAGE:
            self.start_with_group_image(now)
        else:
            self.advance_rebuild(now)

    def accept_rebuild_answer(self, packet, service, now):
        if self.phase is not _RUNNING or self.stage is not _QUERYING:
            raise Refused("duplicate")
        if self.image.accept(packet, service, self.rebuild_query, now):
            self.stage, self.rebuild_until = _COMPLETE, now + _COMPLETE_NS_MAX

    def advance_rebuild(self, now):
        """Follows the stream and the clock: after each packet and each deadline, but not while a session is left."""
        if self.kept_from is None or self.phase is not _RUNNING:
            return
        if self.group_image is not None:
            self.group_image.discard_unusable(self.kept_from, now)
            if self.group_image.is_ready(self.reported_through):
                self.finish_rebuild(self.group_image, now)
                return
        if not self.services:
            return
        position = self.image.position()
        if self.stage in (_QUERYING, _COMPLETE) and position is not None and position < self.kept_from:
            # Another loss behind the image, or too many messages since.
            self.pause_rebuild(now)
        elif self.stage is _RIGHT:
            if self.right_since is not None and now - self.right_since >= _PAUSE_NS_MAX:
                self.pause_ns = _PAUSE_NS_MIN
            self.stage, self.rebuild_until = _WAITING, now + self.pause_ns
        elif self.stage is _WAITING and self.rebuild_until <= now:
            self.image.begin(self.kept_from)
            # Each service twice: those without right books are asked again after the pause.
            attempts_max = min(max(2 * self.services, _REBUILD_ATTEMPTS_MIN), self.config.attempts_max)
            self.stage, self.rebuild_query = _QUERYING, _Query(self.config, self.services, now, attempts_max)
        elif self.stage is _QUERYING:
            if not self.rebuild_query.on_deadline(now):
                self.pause_rebuild(now)
        elif self.stage is _COMPLETE:
            if position <= self.reported_through:
                self.finish_rebuild(self.image, now)
            elif self.rebuild_until <= now:
                # The stream does not come to the image's position, be it that no such position exists.
                self.pause_rebuild(now)

    def pause_rebuild(self, now):
        self.rebuilds_refused += 1
        self.image.begin(None)
        self.stage, self.rebuild_until = _WAITING, now + self.pause_ns
        self.pause_ns = min(2 * self.pause_ns, _PAUSE_NS_MAX)

    def finish_rebuild(self, image, now):
        """Delivers the snapshot, and the messages behind it that were delivered before."""
        self.emit_snapshot(image)
        for message in self.kept_behind(image):
            self.emit(_new(Repeated, message))
        self.clear_books()
        self.books_rebuilt += 1
        self.emit(Books(self.number, self.session, True))
        self.image.begin(None)
        if self.group_image is not None:
            self.group_image.reset()
        # The pause stays longer for a while: a loss that recurs at once must not cause a snapshot each time.
        self.pause_ns = min(2 * self.pause_ns, _PAUSE_NS_MAX)
        self.stage, self.right_since = _RIGHT, now

    def emit_snapshot(self, image):
        for _kind, sequence, _part, flags, ts_recv, delta, count, body in image.frames():
            self.emit(Snapshot(self.number, self.session, sequence, flags, ts_recv, delta, count, body))
        self.snapshots += 1

    def kept_behind(self, image):
        position = image.position()
        return [message for message in self.kept if message.sequence >= position]

    # --- The start with an image of the snapshot group ---

    def await_group_image(self, now):
        """Keeps messages from now on, until the snapshot group has sent a whole image."""
        self.counts_before = (self.messages, self.gap_messages, self.lost_messages)
        self.watch_books(True)
        self.clear_rebuild()
        # An image has what was skipped, or is of no use.
        self.skipped = None
        self.phase, self.query = _GROUP_IMAGE, None
        self.group_until = now + self.config.snapshot_group_wait_ns_max

    def start_with_group_image(self, now):
        """Delivers the image of the snapshot group and the messages behind it, if the image is whole.

        Without one in time the channel goes on without.
        """
        if self.kept_from is not None:
            self.group_image.discard_unusable(self.kept_from, now)
            if self.group_image.is_ready(self.reported_through):
                self.emit_snapshot(self.group_image)
                messages = self.kept_behind(self.group_image)
                self.end_group_start()
                self.deliver_kept(messages)
                self.start_running(now)
                return
        if now < self.group_until:
            return
        self.snapshots_unavailable += 1
        if self.services:
            self.end_group_start()
            self.forget_undelivered()
            self.clear_extents()
            self.phase, self.query = _EXTENT, self.new_query(now)
            return
        # No service has the messages before: the stream begins with the oldest message that was kept.
        kept_from, messages = self.kept_from, list(self.kept)
        self.end_group_start()
        if kept_from is not None and kept_from > 1:
            self.suspect_books_before(kept_from)
        self.deliver_kept(messages)
        self.start_running(now)

    def end_group_start(self):
        """The channel waits for an image no longer: only books that are rebuilt need messages that are kept."""
        self.messages, self.gap_messages, self.lost_messages = self.counts_before
        self.watch_books(self.rebuilds_books)
        self.clear_rebuild()

    def deliver_kept(self, messages):
        """Delivers messages that were kept, and what a program must know besides: the channel's state, and the session's end."""
        for message in messages:
            self.messages += 1
            self.emit(message)
            if self.watches_books:
                self.watch_message(message)
        if self.state is not None and self.state < len(STATES):
            self.emit(State(self.number, self.session, self.state))
        if self.has_reported_end:
            self.emit(EndOfSession(self.number, self.session))

    def forget_undelivered(self):
        """Nothing of the session was delivered, and it begins anew."""
        self.parts, self.reported_through, self.state, self.has_reported_end = None, 0, None, False
        self.begin_at(None)

    # --- Sessions and the start ---

    def accept(self, packet, line, now, service):
        is_answer = line == SERVICE_LINE
        if self.phase is _SESSIONS:
            if is_answer:
                self.accept_session_answer(packet, service, now)
            else:
                self.next_session = max(packet.session, self.next_session)
            return
        if self.session != packet.session:
            if is_answer:
                raise Refused("answer_unrequested")
            if self.session is not None and packet.session < self.session:
                raise Refused("session_stale")
            is_uncut = packet.part is None or packet.part[1] == 0
            if not self.on_newer_session(packet.session, packet.first if is_uncut else None, now):
                return
        if self.phase in (_RUNNING, _CLOSING):
            try:
                self.accept_running(packet, line, now, service)
            finally:
                self.advance_rebuild(now)
        elif self.phase is _GROUP_IMAGE:
            delivered = len(self.receiver.items)
            try:
                self.accept_running(packet, line, now, service)
            finally:
                del self.receiver.items[delivered:]
                self.start_with_group_image(now)
        elif self.phase in (_DEFINITIONS, _EXTENT) and is_answer:
            self.accept_start_answer(packet, service, now)
        elif self.phase is _SNAPSHOT and is_answer:
            self.accept_snapshot_answer(packet, service, now)
        else:
            if packet.flags & END_OF_SESSION:
                self.session_end = packet.next << 16
            first, next_ = self.skipped or (packet.first, packet.next)
            self.skipped = (min(first, packet.first), max(next_, packet.next))

    def accept_running(self, packet, line, now, service):
        is_answer = line == SERVICE_LINE
        if is_answer and packet.flags & SNAPSHOT:
            self.accept_rebuild_answer(packet, service, now)
            return
        first, next_ = _positions_of(packet)
        if packet.flags & SNAPSHOT and first != next_:
            raise Refused("sequence_invalid")
        is_answer_end = is_answer and _is_end_of_answer(packet)
        if is_answer_end and self.query is None and self.request is None:
            raise Refused("duplicate")  # nobody asked, or what was asked for has arrived meanwhile
        is_first_report = False
        if is_answer_end:
            is_first_report = self.report_extent(service, _extent_of(packet))
            if packet.next == 0:
                # That log has nothing of the session, so there is no position to announce.
                self.on_extent_reported(is_first_report, now)
                self.close_when_complete(now)
                return
            unavailable = self.unavailable_before()
            if unavailable is not None:
                # Only what is known to exist is lost: whether there is more, a single answer does not say.
                self.declare_missing_before(min(unavailable << 16, self.frontier), now)
        # A late joiner cannot begin in the middle of a message.
        if self.expected == _NONE:
            begin = first if not first & _PART_MASK else ((first >> 16) + 1) << 16
            self.begin_at(begin)
            self.reported_through = begin >> 16
            if begin >> 16 > 1 or self.phase is _GROUP_IMAGE:
                self.suspect_books_before(begin >> 16)
        refused = None
        try:
            if first < next_ and not is_answer_end:
                self.arbitrate(line, first, next_, packet.is_plain, packet.frames, now)
            else:
                self.announce(line, next_, now)
                if not packet.is_plain and self.expected != _NONE and self.expected <= next_:
                    for frame in packet.frames:
                        self.on_out_of_sequence(frame)
        except Refused as error:
            refused = error
        # A refused packet ends nothing, and neither does one that others have passed. The end of an answer says that its service
        # knows the session's end, not that the venue has ended the session.
        is_used = refused is None or refused.reason == "duplicate"
        if packet.flags & END_OF_SESSION and not is_answer_end and is_used and packet.next << 16 >= self.frontier:
            self.session_end = packet.next << 16
        self.report_end_if_reached()
        if is_answer_end:
            self.on_extent_reported(is_first_report, now)
        self.close_when_complete(now)
        if refused is not None:
            raise refused

    def next_deadline(self):
        if self.phase is _RUNNING:
            query = self.rebuild_deadline()
        elif self.phase is _GROUP_IMAGE:
            query = _earlier(self.group_image.complete_until, self.group_until)
        else:
            query = self.query.deadline if self.query is not None else None
        return _earlier(self.gap_deadline(), query)

    def on_deadline(self, now):
        if self.phase is _GROUP_IMAGE:
            delivered = len(self.receiver.items)
            self.gaps_on_deadline(now)
            self.report_end_if_reached()
            del self.receiver.items[delivered:]
            self.start_with_group_image(now)
            return
        self.gaps_on_deadline(now)
        self.report_end_if_reached()
        is_given_up = self.query is not None and not self.query.on_deadline(now)
        if is_given_up or self.is_query_satisfied():
            self.finish_query(now)
        self.close_when_complete(now)
        self.advance_rebuild(now)

    def poll_request(self):
        if self.query is not None and self.query.take_due():
            if self.phase is _SESSIONS:
                return SESSIONS, self.number, self.sessions_from, 0, 0
            if self.phase is _DEFINITIONS:
                # Without progress the next service is asked, from its first definition on.
                if self.next_definition == self.requested_from:
                    self.definitions_service, self.next_definition = None, 0
                self.requested_from = self.next_definition
                return DEFINITIONS, self.number, self.session, self.next_definition, self.next_definition
            if self.phase is _SNAPSHOT:
                return (SNAPSHOT_CHUNKS, self.number, self.session, *self.image.request())
            start = 0 if self.expected == _NONE else self.expected >> 16
            return RANGE, self.number, self.session, start, start
        if self.phase is _RUNNING and self.stage is _QUERYING and self.rebuild_query.take_due():
            return (SNAPSHOT_CHUNKS, self.number, self.session, *self.image.request())
        if self.request is None or not self.request[4]:
            return None
        self.request[4] = False
        return RANGE, self.number, self.session, self.request[0] >> 16, -(-self.request[1] >> 16)

    def finish(self):
        if self.phase is _GROUP_IMAGE:
            # No image came: nothing of the session is delivered.
            self.end_group_start()
            self.snapshots_unavailable += 1
            return
        while True:
            gap = self.front_gap()
            if gap is None:
                break
            self.declare(*gap)
        if self.parts is not None:
            self.abandon_message()
        self.report_end_if_reached()

    # Log extents: each service speaks only for its own log. (first, next, is_final), or None until it has reported.

    def clear_extents(self):
        self.extents = [None] * self.services

    def report_extent(self, service, extent):
        """Returns whether it is the service's first report."""
        if service >= len(self.extents):
            return False
        is_first, self.extents[service] = self.extents[service] is None, extent
        return is_first

    def any_final(self):
        return any(extent is not None and extent[2] for extent in self.extents)

    def all_reported(self):
        return all(extent is not None for extent in self.extents)

    def any_reported(self):
        return any(extent is not None for extent in self.extents)

    def extent_range(self):
        known = [extent for extent in self.extents if extent is not None and extent[1] >= 1]
        return (min(e[0] for e in known), max(e[1] for e in known), len(known)) if known else None

    def unavailable_before(self):
        """No service can deliver an earlier sequence. None while a log is empty, since it may still receive entries."""
        known = self.extent_range()
        return known[0] if known is not None and known[2] == self.services else None

    def is_query_satisfied(self):
        # The chunks of a snapshot say when it is complete.
        if self.query is None or self.phase is _SNAPSHOT:
            return False
        if self.phase is _SESSIONS and not (self.oldest is not None or self.session is None or self.any_final()):
            return False
        # A session is left only when a service knows where it ended.
        if self.phase is _CLOSING and not self.any_final():
            return False
        return self.all_reported() or self.any_reported() and self.query.has_asked_enough()

    def on_extent_reported(self, is_first_report, now):
        if self.is_query_satisfied():
            self.finish_query(now)
        elif self.query is not None and is_first_report:
            self.query.ask_next(now)

    def finish_query(self, now):
        """Continues with the answers received, if any."""
        if self.phase is _SNAPSHOT:
            self.restart_snapshot(now)
            return
        self.starts_unanswered += not self.any_reported()
        self.definitions_incomplete += self.phase is _DEFINITIONS and not self.all_reported()
        is_final = self.any_final()
        if self.phase is _SESSIONS and self.oldest is None:
            self.sessions_incomplete += self.session is not None and not is_final
            self.begin_session(self.next_session, None, now)
        elif self.phase is _SESSIONS:
            first, next_, _count = self.extent_range() or (1, 1, 0)
            next_session, oldest, query = self.next_session, self.oldest, self.query
            self.switch_to(oldest)
            self.start_without_state(1 if self.is_same_day_restart() else first)
            self.phase, self.next_session, self.is_end_known = _CLOSING, next_session, is_final
            self.query = None if is_final else self.new_query(now)
            self.try_announce(next_, now)
        elif self.phase is _DEFINITIONS:
            self.after_definitions(now)
        elif self.phase is _EXTENT:
            known = self.extent_range()
            if self.is_same_day_restart():
                self.start_without_state(1)
            elif known is not None:
                self.start_without_state(known[0])
            if known is not None:
                self.try_announce(known[1], now)
            self.start_running(now)
        elif self.phase is _CLOSING:
            self.sessions_incomplete += not is_final
            self.is_end_known, self.query = True, None
        self.close_when_complete(now)

    def try_announce(self, next_, now):
        # A refusal shows as a loss when the session is left, and live packets carry the same range.
        try:
            self.announce(SERVICE_LINE, next_ << 16, now)
        except Refused:
            pass

    def new_query(self, now):
        return _Query(self.config, self.services, now)

    def on_newer_session(self, session, first, now):
        """A packet of a newer session arrived, at `first` if it begins a message. Returns whether the session begins."""
        has_more = self.expected != _NONE and not self.has_reported_end
        if self.phase in (_DEFINITIONS, _SNAPSHOT, _EXTENT):
            self.next_session = session if self.next_session is None else max(session, self.next_session)
        elif self.phase is _GROUP_IMAGE:
            # Images of the present session come no more, and nothing of it was delivered.
            self.end_group_start()
            self.snapshots_unavailable += 1
            self.forget_undelivered()
            if self.services:
                self.clear_extents()
                self.phase, self.query, self.next_session = _EXTENT, self.new_query(now), session
            else:
                self.phase, self.session = _IDLE, None
                self.begin_session(session, first, now)
        elif self.phase is _CLOSING:
            self.next_session = max(session, self.next_session)
            self.close_when_complete(now)
        elif self.phase is _RUNNING and self.services and has_more:
            self.clear_extents()
            # If the end was received, only the messages missing before it are requested.
            self.is_end_known = self.session_end is not None
            self.phase, self.next_session = _CLOSING, session
            self.query = None if self.is_end_known else self.new_query(now)
        else:
            self.advance_to(session, first, now)
        return self.session == session

    def advance_to(self, session, first, now):
        """The first packet of a session was observed. Earlier sessions in the logs are delivered before it."""
        if self.session is not None:
            since = self.session._replace(restart=self.session.restart + 1) if self.session.restart < 0xFFFFFFFF else None
        else:
            since = session._replace(restart=0) if self.config.start == "day" else None
        if self.services and since is not None and since < session:
            self.clear_extents()
            self.phase, self.query = _SESSIONS, self.new_query(now)
            self.sessions_from, self.oldest, self.next_session = since, None, session
        else:
            self.begin_session(session, first, now)

    def accept_session_answer(self, packet, service, now):
        """Processes an answer about sessions. The oldest ended session before the next one is delivered first."""
        session = packet.session
        # Any other packet answers an earlier query.
        if not _is_end_of_answer(packet) or session < self.sessions_from:
            return
        is_in_log = session < self.next_session and packet.next >= 1
        if is_in_log and (self.oldest is None or session < self.oldest):
            # The services that reported before hold nothing of this session.
            self.extents = [extent and (0, 0, False) for extent in self.extents]
            self.oldest = session
        if is_in_log and self.oldest == session:
            extent = _extent_of(packet)
        else:
            # A log that has the next session has nothing in between. Restart counts follow each other, so on the same day it
            # lacks a session that exists.
            lacks_session = self.sessions_from[:2] == self.next_session[:2]
            extent = (0, 0, self.oldest is None and session >= self.next_session and not lacks_session)
        is_first_report = self.report_extent(service, extent)
        self.on_extent_reported(is_first_report, now)

    def begin_session(self, session, first, now):
        self.switch_to(session)
        self.begin_at(None)
        self.next_session = None
        is_from_start = first is not None and first <= 1
        if self.services and not is_from_start:
            self.phase, self.query = _DEFINITIONS, self.new_query(now)
            self.definitions_service, self.next_definition, self.requested_from = None, 0, 0
            self.definitions.clear()
        else:
            if is_from_start or self.is_same_day_restart():
                self.start_at(1)
            elif self.group_image is not None and self.starts_with_snapshot():
                self.await_group_image(now)
                return
            self.phase, self.query = _RUNNING, None

    def starts_with_snapshot(self):
        """Only the first session that a receiver follows: it receives the later ones from their beginning."""
        return self.config.start == "snapshot" and self.previous_session is None

    def switch_to(self, session):
        """Ends the current session and begins the next one."""
        self.finish()
        skipped, self.skipped = self.skipped, None
        if skipped is not None and self.expected == _NONE:
            self.report_lost(*skipped)
        self.clear_extents()
        self.clear_rebuild()
        self.previous_session = self.session
        self.begin_stream(session)

    def is_same_day_restart(self):
        """Whether the venue restarted within the trading date being followed. The session then has a first message."""
        return self.previous_session is not None and self.previous_session[:2] == self.session[:2]

    def start_at(self, first):
        first = max(first, 1)
        self.begin_at(first << 16)
        self.reported_through = first

    def start_without_state(self, first):
        """Behind the session's first message, the books before it are not known."""
        self.start_at(first)
        if first > 1:
            self.suspect_books_before(first)

    def start_running(self, now):
        """The start is complete. A newer session observed meanwhile is next."""
        next_session, self.next_session = self.next_session, None
        self.phase, self.query = _RUNNING, None
        # Nothing has checked the end that was received before the start: a log that goes further refutes it.
        if self.session_end is not None and self.expected != _NONE and self.session_end < self.frontier:
            self.session_end = None
        if next_session is not None:
            self.on_newer_session(next_session, None, now)

    def close_when_complete(self, now):
        """Moves to the next session once all messages of the current one have arrived or been given up."""
        if self.phase is _CLOSING and self.is_end_known and self.expected == self.frontier:
            self.advance_to(self.next_session, None, now)

    def after_definitions(self, now):
        if self.services and self.starts_with_snapshot():
            self.image.begin(None)
            self.phase, self.query = _SNAPSHOT, self.new_query(now)
        elif self.previous_session is not None or self.config.start != "live":
            self.clear_extents()
            self.phase, self.query = _EXTENT, self.new_query(now)
        else:
            self.skipped = None
            self.start_running(now)

    def restart_snapshot(self, now):
        """No service went on with its snapshot: another one is asked, the group awaited, or the session delivered from the logs."""
        self.query = self.new_query(now)
        if self.image.give_up_image():
            return
        if self.group_image is not None and self.next_session is None:
            self.await_group_image(now)
            return
        self.snapshots_unavailable += 1
        self.clear_extents()
        self.phase = _EXTENT

    def accept_snapshot_answer(self, packet, service, now):
        if not self.image.accept(packet, service, self.query, now):
            return
        next_, is_suspect = self.image.image[-2:]
        self.emit_snapshot(self.image)
        self.image.begin(None)
        skipped, self.skipped = self.skipped, None
        self.start_at(next_)
        if is_suspect:
            self.suspect_books_before(next_)
        if skipped is not None and skipped[1] > next_:
            # What was published meanwhile is requested.
            self.try_announce(skipped[1], now)
        self.start_running(now)

    def is_new_definition(self, sequence):
        """Each log may lack definitions that another one has. Those beyond the number remembered may come again."""
        if sequence in self.definitions:
            return False
        if len(self.definitions) < _DEFINITIONS_MAX:
            self.definitions.add(sequence)
        return True

    def accept_start_answer(self, packet, service, now):
        is_end, is_snapshot = packet.flags & HEARTBEAT != 0, packet.flags & SNAPSHOT != 0
        first, next_ = packet.first, packet.next
        has_reported = service < self.services and self.extents[service] is not None
        if self.phase is _DEFINITIONS and (self.definitions_service not in (None, service) or has_reported):
            pass  # an answer of another service than the one that is asked, or of one that has sent everything
        elif self.phase is _DEFINITIONS and is_snapshot and is_end:
            if first == next_ and first <= self.next_definition:
                self.definitions_service, self.next_definition, self.requested_from = None, 0, 0
                is_first_report = self.report_extent(service, (0, 0, False))
                self.on_extent_reported(is_first_report, now)
            elif self.next_definition > self.requested_from:
                # A limit shortened the answer, or a part was lost: the next piece. Without any progress the deadline decides.
                self.query.request_next_piece(now)
        elif self.phase is _DEFINITIONS:
            # Another order, or a duplicate: the index of the next request resolves it.
            if is_snapshot and first == self.next_definition and next_ - first == packet.frame_count:
                self.definitions_service, self.next_definition, is_any_new = service, next_, False
                for _kind, sequence, _part, flags, ts_recv, delta, count, body in packet.frames:
                    if self.is_new_definition(sequence):
                        is_any_new = True
                        self.emit(Definition(self.number, self.session, sequence, flags, ts_recv, delta, count, body))
                self.query.on_progress(is_any_new, now)
        elif _is_end_of_answer(packet):
            is_first_report = self.report_extent(service, _extent_of(packet))
            self.on_extent_reported(is_first_report, now)


def _earlier(one, other):
    """The earlier one of two times that may be None."""
    return one if other is None else other if one is None else min(one, other)


def _is_end_of_answer(packet):
    """The last packet of an answer about sessions or messages: the log's extent in the session."""
    return packet.flags & HEARTBEAT and not packet.flags & SNAPSHOT


def _extent_of(packet):
    return packet.first, packet.next, packet.flags & END_OF_SESSION != 0


def _positions_of(packet):
    """The range that a packet covers."""
    first, next_ = packet.first << 16, packet.next << 16
    if packet.part is None:
        return first, next_
    sequence, part, is_last = packet.part
    own = sequence << 16 | part
    first = own if part else first
    if is_last:
        return first, next_
    if part == 0xFFFF:
        raise Refused("field_invalid")
    return first, own + 1


# --- Records ----------------------------------------------------------------------------------------------------------

UNDEFINED_TIME = (1 << 64) - 1
MAYBE_BAD_BOOK, BAD_TS_RECV, FROM_SNAPSHOT = 1 << 2, 1 << 3, 1 << 5
# By record type and length (DBN version 3): offsets of ts_recv, ts_in_delta and flags, where it has them.
_LOCAL_FIELDS = {
    (0xA0, 56): (40, 48, 36),  # mbo
    (0x00, 48): (32, 40, 30),  # trades
    (0x01, 80): (32, 40, 30),  # mbp-1
    (0x0A, 368): (32, 40, 30),  # mbp-10
    (0x12, 40): (16, None, None),  # status
    (0x13, 520): (16, None, None),  # definition
    (0x14, 112): (16, None, None),  # imbalance
    (0x18, 80): (16, 52, None),  # statistics
}
# The types that change a book or the trading status, and where they have their action.
_STATE_RECORDS = {(0xA0, 56): 38, (0x01, 80): 28, (0x0A, 368): 28, (0x12, 40): None}


class LocalTimes:
    """Writes the gateway's receive times into the records of one channel.

    Times never decrease within the channel: a lower one is raised, and its record flagged (BAD_TS_RECV). Records of a suspect
    item are flagged MAYBE_BAD_BOOK. A record of an unknown type, or of a known type with another length, stays as it is.

    Of a repeated message only the records that change a book or the trading status are returned, flagged FROM_SNAPSHOT (bit 5). The
    others, trades and fills among them, were delivered before.
    """

    def __init__(self) -> None:
        self._last = 0

    def fill(self, item: Union[Message, Definition, Snapshot, Repeated]) -> bytearray:
        """The records of the item with `ts_recv`, `ts_in_delta` and flags."""
        body = bytearray(item.body)
        flags = MAYBE_BAD_BOOK if item.flags & SUSPECT else 0
        ts_recv = item.ts_recv
        if ts_recv != UNDEFINED_TIME and type(item) is not Definition:
            # A definition that is published again has the time of its first publication.
            if ts_recv < self._last:
                ts_recv, flags = self._last, flags | BAD_TS_RECV
            self._last = ts_recv
        offset = 0
        while offset < len(body):
            length = body[offset] * 4
            ts_recv_at, delta_at, flags_at = _LOCAL_FIELDS.get((body[offset + 1], length), (None, None, None))
            if flags_at is not None:
                body[offset + flags_at] |= flags
            if ts_recv_at is not None and ts_recv != UNDEFINED_TIME:
                struct.pack_into("<Q", body, offset + ts_recv_at, ts_recv)
                if delta_at is not None:
                    struct.pack_into("<i", body, offset + delta_at, item.ts_in_delta)
            offset += length
        return _state_records(body) if type(item) is Repeated else body


def _state_records(body):
    state = bytearray()
    for record in records(body):
        layout = (record[1], len(record))
        action_at = _STATE_RECORDS.get(layout)
        # Trades and fills change no book: the cancel beside them does, and the levels of a trade are those before its effect.
        if layout not in _STATE_RECORDS or action_at is not None and record[action_at] in b"TF":
            continue
        if action_at is not None:
            record[_LOCAL_FIELDS[layout][2]] |= FROM_SNAPSHOT
        state += record
    return state


def describe(item: Item) -> str:
    """One line of text, as in the test vectors."""
    kind = type(item)
    if kind is SessionStart:
        feed, date, restart = item.session
        return f"session channel={item.channel} feed={feed} date={date} restart={restart}"
    if kind in (Message, Definition, Snapshot, Repeated):
        return (
            f"{kind.__name__.lower()} channel={item.channel} sequence={item.sequence} flags={item.flags} ts_recv={item.ts_recv} "
            f"ts_in_delta={item.ts_in_delta} records={item.record_count} body={item.body.hex() or '-'}"
        )
    if kind is Books:
        return f"books channel={item.channel} state={'right' if item.is_right else 'suspect'}"
    if kind is State:
        return f"state channel={item.channel} state={item.state}"
    if kind is EndOfSession:
        return f"end channel={item.channel}"
    return f"{kind.__name__.lower()} channel={item.channel} first={item.first} next={item.next}"


# --- Sockets ----------------------------------------------------------------------------------------------------------


class LineAddress(NamedTuple):
    """One output line: multicast group (or a local address, if it is sent by unicast), port, address of the interface."""

    address: str
    port: int
    interface: str = "0.0.0.0"


_DATAGRAMS_PER_SOCKET_MAX = 64
# Rounds in which a socket was not read until it was empty, after which deadlines wait no longer.
_UNDRAINED_ROUNDS_MAX = 128
# Pause after a failure of the snapshot group's socket.
_GROUP_RETRY_NS = 1_000_000_000
# The largest packet that a gateway can be configured to publish.
_LARGEST_PACKET_BYTES = 8_972
_NS_PER_MS = 1_000_000
# Not in the socket module of every version.
_IP_MULTICAST_ALL, _IP_ADD_SOURCE_MEMBERSHIP = 49, 39


class Subscriber:
    """A receiver with its sockets. `for item in subscriber` blocks and never ends; `poll` returns."""

    def __init__(
        self, config: Config, lines: Sequence[LineAddress], services: Sequence[tuple] = (), sources: Sequence[str] = (),
        receive_buffer_bytes: int = 8 << 20, snapshot_group: Optional[LineAddress] = None,
    ):  # fmt: skip
        """`services`: addresses of the gateways' retransmission services, as (host, port). `sources`: addresses of the
        gateways; the groups are joined for these senders only (IGMPv3), and other packets are refused. Empty: any sender.
        `snapshot_group`: the snapshot group, if the gateways have one. It is joined only while a snapshot is needed: at a start with
        "snapshot" where no service has one, and while books are rebuilt."""
        self.receiver = Receiver(config, len(lines), len(services), snapshot_group=snapshot_group is not None)
        #: Datagrams read, requests sent, requests that could not be sent or were refused, packets of other senders.
        self.datagrams = self.requests = self.requests_failed = self.sources_refused = 0
        #: Times that the snapshot group could not be joined or read while the lines went on; tried again a second later.
        self.snapshot_group_failures = 0
        # One byte more than the maximum packet size, so that a truncated packet is too long and is refused.
        self._bytes_max = config.packet_bytes_max + TAG_BYTES + 1
        self._sources = frozenset(sources)
        self._sockets: list = []
        self._undrained_rounds = 0
        self._receive_buffer_bytes = receive_buffer_bytes
        self._group_address = None if snapshot_group is None else LineAddress(*snapshot_group)
        # The snapshot group's socket and whether senders must be checked, while it is joined.
        self._group: Optional[tuple] = None
        self._group_retry_at = 0
        self._poll = select.poll()
        try:
            for number, line in enumerate(lines):
                sock = self._open()
                self._add(sock, number, 0, _join(sock, LineAddress(*line), sources))
            for number, service in enumerate(services):
                sock = self._open()
                # Only the service's datagrams are accepted as answers.
                sock.connect(tuple(service))
                self._add(sock, SERVICE_LINE, number, False)
            self._join_group_if_needed()
        except BaseException:
            self.close()
            raise

    def _open(self):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_bytes)
        except BaseException:
            sock.close()
            raise
        return sock

    def _add(self, sock, line, service, checks_sender):
        self._sockets.append((sock, line, service, checks_sender))
        self._poll.register(sock, select.POLLIN)

    def close(self) -> None:
        self._leave_group()
        for sock, *_ in self._sockets:
            sock.close()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Item]:
        while True:
            yield from self.poll(1.0)

    def line_addresses(self) -> list:
        """Local addresses of the lines: port 0 is replaced by the actual port."""
        return [sock.getsockname() for sock, line, *_ in self._sockets if line != SERVICE_LINE]

    def poll(self, timeout_s: float) -> list:
        """Waits at most that long for datagrams or a deadline, and returns the items. Raises `RivalEpochs`."""
        receiver = self.receiver
        timeout_ms = timeout_s * 1e3
        deadline = receiver.next_deadline()
        if deadline is not None:
            timeout_ms = min(timeout_ms, max(deadline - _now(), 0) / _NS_PER_MS)
        # poll(2) has whole milliseconds; the wait must not end before the deadline.
        self._poll.poll(int(timeout_ms) + (timeout_ms > int(timeout_ms)))
        is_drained = True
        for entry in self._sockets:
            is_drained &= self._drain(*entry)
        # Behind the lines: what a chunk's position needs has then been read. The group's datagrams delay no deadline.
        if is_drained and self._group is not None:
            self._drain_group(*self._group)
        # Datagrams still in a socket are not missing: deadlines wait for them, but not for as long as anybody floods a line.
        self._undrained_rounds = 0 if is_drained else self._undrained_rounds + 1
        if self._undrained_rounds % _UNDRAINED_ROUNDS_MAX == 0:
            receiver.on_deadline(_now())
        while True:
            request = receiver.poll_request()
            if request is None:
                break
            self._send(*request)
        if self._group_address is not None and self._group_retry_at <= _now():
            try:
                self._join_group_if_needed()
            except OSError:
                # The lines go on without it.
                self._group_failed()
        # What was delivered before comes first.
        if receiver.rival_epochs is not None and not receiver.items:
            raise receiver.rival_epochs
        items, receiver.items = receiver.items, []
        return items

    def finish(self) -> list:
        """Ends the input: returns held messages, and the missing ones as lost."""
        self.receiver.finish()
        items, self.receiver.items = self.receiver.items, []
        return items

    def _drain(self, sock, line, service, checks_sender):
        """Reads a socket until it is empty (True) or its quota is used up."""
        accept, receive, bytes_max, now = self.receiver.accept, sock.recv, self._bytes_max, _now()
        for count in range(_DATAGRAMS_PER_SOCKET_MAX):
            try:
                if checks_sender:
                    data, sender = sock.recvfrom(bytes_max)
                    if sender[0] not in self._sources:
                        self.sources_refused += 1
                        continue
                else:
                    data = receive(bytes_max)
            except BlockingIOError:
                self.datagrams += count
                return True
            except OSError:
                if line != SERVICE_LINE:
                    raise
                # The service is not running; the request is repeated.
                self.requests_failed += 1
                return True
            accept(line, data, now, service)
        self.datagrams += _DATAGRAMS_PER_SOCKET_MAX
        return False

    def _drain_group(self, sock, checks_sender):
        now = _now()
        for _ in range(_DATAGRAMS_PER_SOCKET_MAX):
            try:
                data, sender = sock.recvfrom(self._bytes_max)
            except BlockingIOError:
                return
            except OSError:
                self._group_failed()
                return
            self.datagrams += 1
            if checks_sender and sender[0] not in self._sources:
                self.sources_refused += 1
                continue
            self.receiver.accept_from_snapshot_group(data, now)

    def _join_group_if_needed(self):
        """Joins the snapshot group, or leaves it: most of the time nothing of it is needed."""
        if self._group_address is None:
            return
        if not self.receiver.needs_snapshot_group:
            self._leave_group()
        elif self._group is None:
            sock = self._open()
            try:
                checks_sender = _join(sock, self._group_address, self._sources)
            except BaseException:
                sock.close()
                raise
            self._group = sock, checks_sender
            self._poll.register(sock, select.POLLIN)

    def _leave_group(self):
        if self._group is not None:
            sock, _checks_sender = self._group
            self._group = None
            self._poll.unregister(sock)
            sock.close()

    def _group_failed(self):
        """Leaves the group, to join it again a while later."""
        self.snapshot_group_failures += 1
        self._leave_group()
        self._group_retry_at = _now() + _GROUP_RETRY_NS

    def _send(self, service, request):
        self.requests += 1
        sock = next(entry[0] for entry in self._sockets if entry[1] == SERVICE_LINE and entry[2] == service)
        try:
            sock.send(request)
        except OSError:
            self.requests_failed += 1


def _join(sock, line, sources):
    """Binds a socket to its line. Returns whether senders must be checked here: a unicast line has no group."""
    # Several subscribers may run on one host.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((line.address, line.port))
    group, interface = socket.inet_aton(line.address), socket.inet_aton(line.interface)
    if not 224 <= group[0] <= 239:
        return bool(sources)
    # Otherwise, groups that other processes joined on the same port would arrive here too.
    sock.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
    if not sources:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group + interface)
    for source in sources:
        membership = group + interface + socket.inet_aton(source)
        sock.setsockopt(socket.IPPROTO_IP, _IP_ADD_SOURCE_MEMBERSHIP, membership)
    return False


def _now() -> int:
    """ns; includes the time that the machine is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


# --- Command line -----------------------------------------------------------------------------------------------------


def _address(text: str) -> tuple:
    host, _, port = text.rpartition(":")
    try:
        socket.inet_aton(host)
        return host, int(port)
    except (OSError, ValueError):
        raise argparse.ArgumentTypeError(f"not ADDRESS:PORT: {text}") from None


def _arguments(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Receives the published multicast of mdgw and prints what is delivered, one item on a line.",
        epilog="Exit code 0: everything was received. 1: the venue's lines had gaps, or messages were lost. 2: could not run, or "
        "rival epochs were received.",
    )
    add = parser.add_argument
    add("--line", action="append", required=True, type=_address, metavar="ADDR:PORT", help="output line; repeat for each")
    add("--interface", default="0.0.0.0", metavar="ADDR", help="address of the interface to join on; default: the kernel's choice")
    add("--source", action="append", default=[], metavar="ADDR", help="address of a gateway; repeat for each; default: any sender")
    add(
        "--retransmission", action="append", default=[], type=_address, metavar="ADDR:PORT",
        help="retransmission service of a gateway; repeat for each",
    )  # fmt: skip
    add(
        "--snapshot-group", type=_address, metavar="ADDR:PORT",
        help="snapshot group of the gateways, joined while a snapshot is needed: with --start snapshot where no service has one, and "
        "with --rebuild",
    )  # fmt: skip
    add("--group", type=int, default=1, help="group to receive; default: 1")
    add("--channel", action="append", default=[], type=int, help="channel to receive; repeat for each; default: all")
    add(
        "--tag-key", action="append", default=[], metavar="FILE",
        help="key file of packet tags; repeat for each key that is accepted",
    )  # fmt: skip
    add(
        "--start", choices=("session", "day", "live", "snapshot"), default="day",
        help="where to begin; default: the oldest message of the trading day in the services' logs",
    )  # fmt: skip
    add(
        "--rebuild", action="store_true",
        help="rebuild suspect books from a snapshot: deliver it, and the messages behind it once more; needs a service with "
        "snapshots = true, or the snapshot group",
    )  # fmt: skip
    add(
        "--window", type=int, default=Config().window_packets, metavar="PACKETS", help="packets held while a gap is pending"
    )  # fmt: skip
    add("--dbn", metavar="FILE", help="write the records to a file (DBN without metadata) instead of printing items")
    add("--quiet", action="store_true", help="print no items with records: messages, definitions, snapshots")
    add("--count", type=int, metavar="N", help="exit after this many messages")
    add("--exit-idle-s", type=float, metavar="S", help="exit when nothing new was received for this many seconds")
    add("--until-ended", action="store_true", help="exit when the session of every channel has ended")
    return parser.parse_args(argv)


def main(argv: Optional[Sequence[str]] = None) -> int:
    arguments = _arguments(argv)
    is_stopped = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_stopped.append(True))
    try:
        config = Config(
            group=arguments.group, channels=tuple(arguments.channel), start=arguments.start, window_packets=arguments.window,
            tag_keys=tuple(map(TagKey.load, arguments.tag_key)), packet_bytes_max=_LARGEST_PACKET_BYTES,
            rebuilds_books=arguments.rebuild,
        )  # fmt: skip
        lines = [LineAddress(*line, arguments.interface) for line in arguments.line]
        group = LineAddress(*arguments.snapshot_group, arguments.interface) if arguments.snapshot_group else None
        subscriber = Subscriber(config, lines, arguments.retransmission, arguments.source, snapshot_group=group)
        records_file = open(arguments.dbn, "wb") if arguments.dbn else None
    except (OSError, ValueError) as error:
        print(f"mdgw_subscriber: {error}", file=sys.stderr)
        return 2
    print(f"receiving {len(lines)} lines", file=sys.stderr, flush=True)
    printer = _Printer(records_file, arguments.quiet)
    code = 0
    last_new = time.monotonic()
    with subscriber:
        try:
            while not is_stopped:
                items = subscriber.poll(0.05)
                printer.show(items)
                if items:
                    last_new = time.monotonic()
                elif arguments.exit_idle_s is not None and time.monotonic() - last_new >= arguments.exit_idle_s:
                    break
                if arguments.count is not None and printer.messages >= arguments.count:
                    break
                if arguments.until_ended and printer.open and not any(printer.open.values()):
                    break
            printer.show(subscriber.finish())
        except RivalEpochs as rivals:
            print(f"mdgw_subscriber: {rivals}", file=sys.stderr)
            code = 2
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if records_file is not None:
        records_file.close()
    for channel in subscriber.receiver.channels.values():
        if channel.starts_unanswered:
            print(f"channel {channel.number}: no retransmission service answered at the start", file=sys.stderr)
        elif channel.definitions_incomplete:
            print(f"channel {channel.number}: not every retransmission service sent its definitions", file=sys.stderr)
        if channel.snapshots_unavailable:
            print(f"channel {channel.number}: no snapshot that could be used came", file=sys.stderr)
        if channel.sessions_incomplete:
            print(f"channel {channel.number}: {channel.sessions_incomplete} sessions were left at an unknown end", file=sys.stderr)
    for reason, count in sorted(subscriber.receiver.drops.items()):
        # Normal on two lines and with images that are of no use.
        if count and reason not in ("duplicate", "answer_unrequested"):
            print(f"refused {count} packets: {reason}", file=sys.stderr)
    print(
        f"{printer.messages} messages, {printer.missing} missing; {subscriber.datagrams} datagrams, "
        f"{subscriber.requests} requests", file=sys.stderr,
    )  # fmt: skip
    return code or (1 if printer.missing else 0)


class _Printer:
    def __init__(self, records_file, is_quiet):
        self.records_file, self.is_quiet = records_file, is_quiet
        self.messages = self.missing = 0
        #: Whether the session of a channel is open.
        self.open: dict = {}
        self.times: dict = {}

    def show(self, items):
        lines = []
        for item in items:
            kind = type(item)
            if kind is Message:
                self.messages += 1
            elif kind is SessionStart or kind is EndOfSession:
                self.open[item.channel] = kind is SessionStart
            elif kind is Gap or kind is Lost:
                self.missing += item.next - item.first
            has_records = kind in (Message, Definition, Snapshot, Repeated)
            if self.records_file is not None and has_records:
                # Definitions of a late start are published at their own position, too.
                if kind is not Definition:
                    self.records_file.write(self.times.setdefault(item.channel, LocalTimes()).fill(item))
            elif not (has_records and self.is_quiet):
                lines.append(describe(item))
        if lines:
            print("\n".join(lines), flush=True)


if __name__ == "__main__":
    sys.exit(main())
