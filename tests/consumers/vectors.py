"""Prints a file of test vectors with what the receiver in Python makes of it: the lines that begin with "> "."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../gateway/subscriber/python"))
import mdgw_subscriber as mdgw  # noqa: E402


def settings_of(words):
    return dict(word.split("=", 1) for word in words)


def from_hex(text):
    return b"" if text == "-" else bytes.fromhex(text)


def packet_lines(data, keys, nonce):
    try:
        if data.startswith(b"MDGR"):
            request = mdgw.parse_request(data)
            feed, date, restart = request.session or (0, 0, 0)
            return [
                f"> request kind={request.kind} group={request.group} channel={request.channel} feed={feed} date={date} "
                f"restart={restart} first={request.first} next={request.next} nonce={request.nonce}"
            ]
        packet = mdgw.parse_packet(data)
        mdgw.check_tag(keys, False, data, nonce)
    except mdgw.Refused as refused:
        return [f"> refused {refused.reason}"]
    session = packet.session
    lines = [
        f"> packet flags={packet.flags} tagged={int(packet.is_tagged)} group={packet.group} channel={packet.channel} "
        f"epoch={packet.epoch} feed={session.feed} date={session.date} restart={session.restart} first={packet.first} "
        f"next={packet.next} send_time_ns={packet.send_time_ns} frames={packet.frame_count}"
    ]
    for frame in packet.frames:
        if packet.is_plain:
            kind, part = mdgw.KIND_MESSAGE, 0
            _channel, _session, sequence, flags, ts_recv, delta, count, body = frame
        else:
            kind, sequence, part, flags, ts_recv, delta, count, body = frame
        if kind == mdgw.KIND_GAP:
            content = "gap_first={} gap_next={}".format(*mdgw.GAP_BODY.unpack(body))
        elif kind == mdgw.KIND_STATE:
            content = f"state={body[0]}"
        else:
            content = f"body={body.hex() or '-'}"
        lines.append(
            f"> frame kind={kind} sequence={sequence} part={part} flags={flags} ts_recv={ts_recv} ts_in_delta={delta} "
            f"records={count} {content}"
        )
    return lines


class Stream:
    def __init__(self, settings):
        keys = tuple(mdgw.TagKey(bytes.fromhex(key)) for key in settings.get("keys", "").split(",") if key)
        names = {"window": "window_packets", "attempts": "attempts_max", "per_request": "messages_per_request_max"}
        limits = {
            names.get(name, name): int(settings[name])
            for name in ("window", "attempts", "per_request", "message_bytes_max")
            if name in settings
        }
        limits["snapshot_bytes_max"] = int(settings.get("snapshot_bytes_max", 1 << 20))
        limits["rebuild_bytes_max"] = int(settings.get("rebuild_bytes_max", 1 << 20))
        config = mdgw.Config(
            channels_max=4, start=settings.get("start", "session"), tag_keys=keys,
            accepts_untagged=settings.get("accepts_untagged") == "1", rebuilds_books=settings.get("rebuild") == "1", **limits,
        )  # fmt: skip
        number = {name: int(settings.get(name, default)) for name, default in
                  (("lines", 1), ("services", 0), ("request_nonce", 0), ("epoch_nonce", 0))}  # fmt: skip
        self.receiver = mdgw.Receiver(config, snapshot_group=settings.get("snapshot_group") == "1", **number)
        self.has_reported_rivals = False

    def show(self):
        items, self.receiver.items = self.receiver.items, []
        for item in items:
            print(">", mdgw.describe(item))

    def on_deadline(self, now):
        self.receiver.on_deadline(now)
        self.show()
        while True:
            request = self.receiver.poll_request()
            if request is None:
                break
            print(f"> request {request[0]} {request[1].hex()}")
        rivals = self.receiver.rival_epochs
        if rivals is not None and not self.has_reported_rivals:
            self.has_reported_rivals = True
            print(f"> rivals lowest={rivals.lowest} highest={rivals.highest} contradicted={int(rivals.is_contradicted)}")

    def deadlines_before(self, now):
        while True:
            deadline = self.receiver.next_deadline()
            if deadline is None or deadline >= now:
                return
            self.on_deadline(deadline)

    def accept(self, now, source, *number, data):
        if source == "group":
            reason = self.receiver.accept_from_snapshot_group(data, now)
        elif source == "line":
            reason = self.receiver.accept(int(*number), data, now)
        else:
            reason = self.receiver.accept(mdgw.SERVICE_LINE, data, now, int(*number))
        self.show()
        if reason is not None and reason != "duplicate":
            print(f"> refused {reason}")


def main(path):
    data = keys = nonce = stream = None
    with open(path, encoding="ascii") as file:
        lines = [line.rstrip("\n") for line in file if not line.startswith("> ")]
    for number, line in enumerate(lines + [""]):
        word, *rest = line.split(" ")
        if word == "vector":
            data, keys, nonce = b"", [], None
        elif word == "keys":
            keys = [mdgw.TagKey(bytes.fromhex(key)) for key in rest[0].split(",")]
        elif word == "nonce":
            nonce = int(rest[0])
        elif word == "bytes":
            data = from_hex(rest[0])
        elif word == "" and data is not None:
            print("\n".join(packet_lines(data, keys, nonce)))
            data = None
        elif word == "at":
            stream.deadlines_before(int(rest[0]))
        elif word == "records":
            times = mdgw.LocalTimes()
        if number < len(lines):
            print(line)
        if word == "set":
            stream = Stream(settings_of(rest))
        elif word == "at":
            if len(rest) > 1:
                stream.accept(int(rest[0]), *rest[1:-1], data=from_hex(rest[-1]))
            stream.on_deadline(int(rest[0]))
        elif word == "finish":
            stream.receiver.finish()
            stream.show()
        elif word == "item":
            fields = settings_of(rest)
            kind = mdgw.Repeated if fields.get("repeated") == "1" else mdgw.Message
            item = kind(
                1, None, 1, int(fields["flags"]), int(fields["ts_recv"]), int(fields["ts_in_delta"]), 1,
                from_hex(fields["body"]),
            )  # fmt: skip
            print(">", times.fill(item).hex() or "-")


main(sys.argv[1])
