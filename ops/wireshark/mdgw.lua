-- Wireshark dissector for what mdgw publishes: packets, frames, records, retransmission requests and answers.
-- ops/guide/output-protocol.md is the specification.
-- The Debian package installs it for all users. Elsewhere copy it to the folder of Lua plugins (Help, About Wireshark, Folders).
--
-- Packets are recognised by their first four bytes on any UDP port. A packet that a receiver refuses is shown as far as it can be
-- read, with the reason in mdgw.refused. Tags are shown, not checked.

local mdgw = Proto("mdgw", "mdgw published market data")

local KINDS = { [0] = "message", [1] = "gap", [2] = "snapshot", [3] = "state", [4] = "snapshot chunk" }
local STATES = { [0] = "waiting", [1] = "live", [2] = "gap", [3] = "recovering", [4] = "stale", [5] = "ended", [6] = "failed" }
local FEEDS = { [1] = "nasdaq-itch-5.0", [2] = "bx-itch-5.0", [3] = "psx-itch-5.0", [4] = "iex-tops-1.6", [5] = "iex-deep-1.0" }
local REQUESTS = { [1] = "range", [2] = "definitions", [3] = "sessions", [4] = "epoch", [5] = "snapshot" }
local RTYPES = {
    [0x00] = "trades", [0x01] = "mbp-1", [0x0a] = "mbp-10", [0x12] = "status", [0x13] = "definition", [0x14] = "imbalance",
    [0x16] = "symbol mapping", [0x18] = "statistics", [0xa0] = "mbo",
}
local HEARTBEAT, RETRANSMISSION, SNAPSHOT, END_OF_SESSION, TAGGED = 1, 2, 4, 8, 16
local FIRST_PART, LAST_PART, SUSPECT, LATE_FILL = 1, 2, 4, 8
local HEADER_BYTES, FRAME_HEADER_BYTES, REQUEST_BYTES, TAG_BYTES = 64, 32, 56, 16
local SEQUENCE_END = 2 ^ 47

local fields = {
    magic = ProtoField.string("mdgw.magic", "Magic"),
    version = ProtoField.uint8("mdgw.version", "Version"),
    flags = ProtoField.uint8("mdgw.flags", "Flags", base.HEX),
    heartbeat = ProtoField.bool("mdgw.flags.heartbeat", "Heartbeat", 8, nil, HEARTBEAT),
    retransmission = ProtoField.bool("mdgw.flags.retransmission", "Retransmission", 8, nil, RETRANSMISSION),
    snapshot = ProtoField.bool("mdgw.flags.snapshot", "Snapshot", 8, nil, SNAPSHOT),
    end_of_session = ProtoField.bool("mdgw.flags.end_of_session", "End of session", 8, nil, END_OF_SESSION),
    tagged = ProtoField.bool("mdgw.flags.tagged", "Tagged", 8, nil, TAGGED),
    group = ProtoField.uint16("mdgw.group", "Group"),
    channel = ProtoField.uint16("mdgw.channel", "Channel"),
    frame_count = ProtoField.uint16("mdgw.frame_count", "Frames"),
    payload_bytes = ProtoField.uint16("mdgw.payload_bytes", "Bytes of frames"),
    reserved = ProtoField.bytes("mdgw.reserved", "Reserved"),
    epoch = ProtoField.uint64("mdgw.epoch", "Epoch"),
    epoch_count = ProtoField.uint64("mdgw.epoch.count", "Term"),
    epoch_node = ProtoField.uint8("mdgw.epoch.node", "Node"),
    session = ProtoField.bytes("mdgw.session", "Session"),
    feed = ProtoField.uint16("mdgw.session.feed", "Feed", base.DEC, FEEDS),
    date = ProtoField.uint32("mdgw.session.date", "Trading date"),
    restart = ProtoField.uint32("mdgw.session.restart", "Restart count"),
    first = ProtoField.uint64("mdgw.first", "First sequence"),
    next = ProtoField.uint64("mdgw.next", "Next sequence"),
    send_time = ProtoField.absolute_time("mdgw.send_time", "Send time", base.UTC),
    send_time_ns = ProtoField.uint64("mdgw.send_time_ns", "Send time, ns"),
    tag = ProtoField.bytes("mdgw.tag", "Tag"),
    request = ProtoField.uint8("mdgw.request.kind", "Request", base.DEC, REQUESTS),
    nonce = ProtoField.uint64("mdgw.request.nonce", "Nonce"),
    kind = ProtoField.uint8("mdgw.frame.kind", "Kind", base.DEC, KINDS),
    sequence = ProtoField.uint64("mdgw.frame.sequence", "Sequence"),
    ts_recv = ProtoField.uint64("mdgw.frame.ts_recv", "Receive time, ns"),
    ts_in_delta = ProtoField.int32("mdgw.frame.ts_in_delta", "Receive time less the venue's send time, ns"),
    body_bytes = ProtoField.uint16("mdgw.frame.body_bytes", "Bytes of the body"),
    record_count = ProtoField.uint16("mdgw.frame.record_count", "Records"),
    frame_flags = ProtoField.uint8("mdgw.frame.flags", "Flags", base.HEX),
    first_part = ProtoField.bool("mdgw.frame.flags.first_part", "First part", 8, nil, FIRST_PART),
    last_part = ProtoField.bool("mdgw.frame.flags.last_part", "Last part", 8, nil, LAST_PART),
    suspect = ProtoField.bool("mdgw.frame.flags.suspect", "Suspect", 8, nil, SUSPECT),
    late_fill = ProtoField.bool("mdgw.frame.flags.late_fill", "Late fill", 8, nil, LATE_FILL),
    part = ProtoField.uint16("mdgw.frame.part", "Part"),
    gap_first = ProtoField.uint64("mdgw.gap.first", "First missing sequence"),
    gap_next = ProtoField.uint64("mdgw.gap.next", "First sequence after the gap"),
    state = ProtoField.uint8("mdgw.state", "State of the channel", base.DEC, STATES),
    record_bytes = ProtoField.uint16("mdgw.record.bytes", "Bytes"),
    rtype = ProtoField.uint8("mdgw.record.rtype", "Record type", base.HEX, RTYPES),
    publisher = ProtoField.uint16("mdgw.record.publisher_id", "Publisher"),
    instrument = ProtoField.uint32("mdgw.record.instrument_id", "Instrument"),
    ts_event = ProtoField.uint64("mdgw.record.ts_event", "Event time, ns"),
    record = ProtoField.bytes("mdgw.record", "Record"),
    refused = ProtoField.string("mdgw.refused", "Refused by receivers"),
    cut = ProtoField.bool("mdgw.cut", "Cut by the capture"),
}
local list = {}
for _, field in pairs(fields) do
    list[#list + 1] = field
end
mdgw.fields = list

local refused_expert = ProtoExpert.new("mdgw.refused.expert", "Refused by receivers", expert.group.MALFORMED, expert.severity.ERROR)
mdgw.experts = { refused_expert }

local function is_set(flags, flag)
    return flags % (2 * flag) >= flag
end

-- Numbers up to 2^53 are exact; larger ones only have to compare as larger.
local function number(range)
    return range:le_uint64():tonumber() % 2 ^ 64
end

local function days_of_month(year, month)
    if month == 2 then
        local is_leap = year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0)
        return is_leap and 29 or 28
    end
    return (month == 4 or month == 6 or month == 9 or month == 11) and 30 or 31
end

local function is_session(range)
    local date = range(4, 4):le_uint()
    local year, month, day = math.floor(date / 10000), math.floor(date / 100) % 100, date % 100
    return FEEDS[range(0, 2):le_uint()] ~= nil and range(2, 2):le_uint() == 0 and range(12, 4):le_uint() == 0
        and year >= 1970 and year <= 9999 and month >= 1 and month <= 12 and day >= 1 and day <= days_of_month(year, month)
end

local function add_session(tree, range)
    local feed, date, restart = range(0, 2):le_uint(), range(4, 4):le_uint(), range(8, 4):le_uint()
    local session = tree:add(fields.session, range)
    session:append_text(string.format(" (%s %d #%d)", FEEDS[feed] or "?", date, restart))
    session:add_le(fields.feed, range(0, 2))
    session:add_le(fields.date, range(4, 4))
    session:add_le(fields.restart, range(8, 4))
end

local function add_flags(tree, field, range, names)
    local flags = tree:add(field, range)
    for _, name in ipairs(names) do
        flags:add(fields[name], range)
    end
    return range:uint()
end

-- Adds the records of a body. Returns how many there are, or nil for anything else.
local function add_records(tree, body)
    local offset, count, length = 0, 0, body:len()
    while offset < length do
        local bytes = body(offset, 1):uint() * 4
        if bytes < 16 or bytes % 8 ~= 0 or offset + bytes > length then
            return nil
        end
        local range = body(offset, bytes)
        local rtype = range(1, 1):uint()
        local record = tree:add(fields.record, range)
        record:set_text(string.format("Record: %s, instrument %d", RTYPES[rtype] or string.format("type 0x%02x", rtype), range(4, 4):le_uint()))
        record:add(fields.record_bytes, range(0, 1), bytes)
        record:add(fields.rtype, range(1, 1))
        record:add_le(fields.publisher, range(2, 2))
        record:add_le(fields.instrument, range(4, 4))
        record:add_le(fields.ts_event, range(8, 8))
        offset, count = offset + bytes, count + 1
    end
    return count
end

-- Adds a body and checks it against its kind. Returns the first sequence after the frame's range, or nil and the reason.
local function add_body(tree, body, kind, sequence, record_count)
    local length = body and body:len() or 0
    if length % 8 ~= 0 then
        return nil, "message_length"
    end
    if kind == 0 or kind == 2 then
        local count = length == 0 and 0 or add_records(tree, body)
        if count ~= record_count then
            return nil, "message_length"
        end
        return sequence + 1
    end
    if length ~= (kind == 1 and 16 or kind == 4 and 48 or 8) then
        return nil, "message_length"
    end
    if kind == 4 then
        tree:append_text(string.format(": image %d, chunk %d of %d", body(0, 4):le_uint(), body(4, 4):le_uint(), body(8, 4):le_uint()))
        return sequence
    end
    if kind == 3 then
        tree:add(fields.state, body(0, 1))
        tree:append_text(": " .. (STATES[body(0, 1):uint()] or "unknown state"))
        return sequence
    end
    tree:add_le(fields.gap_first, body(0, 8))
    tree:add_le(fields.gap_next, body(8, 8))
    local first, next = number(body(0, 8)), number(body(8, 8))
    tree:append_text(string.format(": [%.0f, %.0f)", first, next))
    if first ~= sequence or first >= next then
        return nil, "sequence_invalid"
    end
    return next
end

-- Adds a frame. Returns its length, kind, sequence, flags, part and next sequence, or nil and the reason.
local function add_frame(tree, range)
    local body_bytes, record_count = range(20, 2):le_uint(), range(22, 2):le_uint()
    local is_whole = FRAME_HEADER_BYTES + body_bytes <= range:len()
    local length = is_whole and FRAME_HEADER_BYTES + body_bytes or range:len()
    local kind, sequence, part = range(24, 1):uint(), number(range(0, 8)), range(26, 2):le_uint()
    local frame = tree:add(mdgw, range(0, length), string.format("Frame: %s %.0f", KINDS[kind] or "unknown kind", sequence))
    frame:add_le(fields.sequence, range(0, 8))
    frame:add_le(fields.ts_recv, range(8, 8))
    frame:add_le(fields.ts_in_delta, range(16, 4))
    frame:add_le(fields.body_bytes, range(20, 2))
    frame:add_le(fields.record_count, range(22, 2))
    frame:add(fields.kind, range(24, 1))
    local flags = add_flags(frame, fields.frame_flags, range(25, 1), { "first_part", "last_part", "suspect", "late_fill" })
    frame:add_le(fields.part, range(26, 2))
    if not is_whole then
        return nil, "message_truncated"
    end
    if not KINDS[kind] then
        return nil, "protocol_mismatch"
    end
    if kind == 0 and flags % 4 ~= 3 then
        frame:append_text(string.format(", part %d%s", part, is_set(flags, LAST_PART) and ", the last" or ""))
    end
    local body = body_bytes > 0 and range(FRAME_HEADER_BYTES, body_bytes) or nil
    local next, reason = add_body(frame, body, kind, sequence, record_count)
    if not next then
        return nil, reason
    end
    return length, kind, sequence, flags, part, next
end

-- Adds all frames and checks them as a receiver does. Returns the reason if it refuses them.
local function add_frames(tree, range, packet)
    local offset, position, length = 0, packet.first, range and range:len() or 0
    if is_set(packet.flags, HEARTBEAT) and packet.frame_count ~= 0 then
        return "length_mismatch"
    end
    for _ = 1, packet.frame_count do
        if length - offset < FRAME_HEADER_BYTES then
            return "length_mismatch"
        end
        local bytes, kind, sequence, flags, part, covered = add_frame(tree, range(offset, length - offset))
        if not bytes then
            return kind
        end
        offset = offset + bytes
        -- With its part it must fit a position, whatever the kind.
        if sequence >= SEQUENCE_END then
            return "sequence_invalid"
        end
        if kind == 0 and flags % 4 == 3 and part ~= 0 then
            return "field_invalid"
        end
        -- Snapshots are out of sequence, and a late fill precedes the packet's range by definition.
        if kind <= 1 and not is_set(packet.flags, SNAPSHOT) and not is_set(flags, LATE_FILL) then
            if sequence < position then
                return "sequence_invalid"
            end
            position = covered
            if kind == 0 and flags % 4 ~= 3 then
                if packet.frame_count ~= 1 then
                    return "field_invalid"
                end
                position = is_set(flags, LAST_PART) and covered or sequence
                if packet.next ~= position or (part > 0 and packet.first ~= sequence) then
                    return "sequence_invalid"
                end
            end
            if position > packet.next then
                return "sequence_invalid"
            end
        end
    end
    return offset ~= length and "length_mismatch" or nil
end

local function describe(packet)
    local flags, range = packet.flags, string.format("[%.0f, %.0f)", packet.first, packet.next)
    local is_answer = is_set(flags, RETRANSMISSION)
    local text
    if flags % TAGGED == HEARTBEAT + RETRANSMISSION + SNAPSHOT + END_OF_SESSION then
        return "Answer: epoch"
    elseif is_answer and is_set(flags, HEARTBEAT) then
        text = is_set(flags, SNAPSHOT) and "End of definitions or snapshot " or "End of answer "
    elseif packet.is_chunk then
        text = string.format("Snapshot chunk %.0f", packet.first)
        range = packet.image and string.format(" of image %.0f", packet.image) or ""
    elseif is_answer then
        text = is_set(flags, SNAPSHOT) and "Definitions " or "Again "
    elseif is_set(flags, HEARTBEAT) then
        text = "Heartbeat "
    else
        text = is_set(flags, SNAPSHOT) and "State " or "Packet "
    end
    local count = packet.frame_count
    text = text .. range .. (count > 0 and string.format(", %d frame%s", count, count > 1 and "s" or "") or "")
    return text .. (is_set(flags, END_OF_SESSION) and ", end of session" or "")
end

-- Adds the packet's header and frames. Returns a line of text, and the reason if receivers refuse the packet.
local function add_packet(tree, buffer)
    local length = buffer:reported_len()
    if length < HEADER_BYTES then
        return "Packet", "header_truncated"
    end
    if buffer:len() < HEADER_BYTES then
        return "Packet"
    end
    local packet = {
        flags = buffer(5, 1):uint(), frame_count = buffer(10, 2):le_uint(), first = number(buffer(40, 8)), next = number(buffer(48, 8)),
    }
    local payload_bytes = buffer(12, 2):le_uint()
    tree:add(fields.version, buffer(4, 1))
    add_flags(tree, fields.flags, buffer(5, 1), { "heartbeat", "retransmission", "snapshot", "end_of_session", "tagged" })
    tree:add_le(fields.group, buffer(6, 2))
    tree:add_le(fields.channel, buffer(8, 2))
    tree:add_le(fields.frame_count, buffer(10, 2))
    tree:add_le(fields.payload_bytes, buffer(12, 2))
    tree:add(fields.reserved, buffer(14, 2))
    local epoch = tree:add_le(fields.epoch, buffer(16, 8))
    epoch:add(fields.epoch_count, buffer(17, 7), buffer(16, 8):le_uint64():rshift(8))
    epoch:add(fields.epoch_node, buffer(16, 1))
    add_session(tree, buffer(24, 16))
    tree:add_le(fields.first, buffer(40, 8))
    tree:add_le(fields.next, buffer(48, 8))
    local send_time = buffer(56, 8):le_uint64()
    tree:add_le(fields.send_time_ns, buffer(56, 8))
    local seconds, ns = send_time / UInt64(1000000000), send_time % UInt64(1000000000)
    tree:add(fields.send_time, buffer(56, 8), NSTime.new(seconds:tonumber(), ns:tonumber()))
    -- A chunk of a snapshot has the flags of definitions. Its first frame says which of both it is, and of which image.
    if is_set(packet.flags, SNAPSHOT) and packet.frame_count > 0 and buffer:len() > HEADER_BYTES + 24 then
        packet.is_chunk = buffer(HEADER_BYTES + 24, 1):uint() == 4
        local image_offset = HEADER_BYTES + FRAME_HEADER_BYTES
        packet.image = buffer:len() >= image_offset + 4 and buffer(image_offset, 4):le_uint() or nil
    end
    local text = describe(packet)
    if buffer(4, 1):uint() ~= 1 or packet.flags > 31 or buffer(14, 2):le_uint() ~= 0 then
        return text, "protocol_mismatch"
    end
    local tag_bytes = is_set(packet.flags, TAGGED) and TAG_BYTES or 0
    if length ~= HEADER_BYTES + payload_bytes + tag_bytes then
        return text, "length_mismatch"
    end
    local is_cut = buffer:len() < length
    if tag_bytes > 0 and not is_cut then
        tree:add(fields.tag, buffer(length - TAG_BYTES, TAG_BYTES))
    end
    if not is_session(buffer(24, 16)) then
        return text, "field_invalid"
    end
    if packet.first > packet.next or packet.next >= SEQUENCE_END then
        return text, "sequence_invalid"
    end
    if is_cut then
        return text
    end
    return text, add_frames(tree, payload_bytes > 0 and buffer(HEADER_BYTES, payload_bytes) or nil, packet)
end

-- Adds a request. Returns a line of text, and the reason if services refuse it.
local function add_request(tree, buffer)
    local length = buffer:reported_len()
    if length < REQUEST_BYTES then
        return "Request", "header_truncated"
    end
    if buffer:len() < REQUEST_BYTES then
        return "Request"
    end
    local kind, first, next = buffer(5, 1):uint(), number(buffer(32, 8)), number(buffer(40, 8))
    tree:add(fields.version, buffer(4, 1))
    tree:add(fields.request, buffer(5, 1))
    tree:add_le(fields.group, buffer(6, 2))
    tree:add_le(fields.channel, buffer(8, 2))
    tree:add(fields.reserved, buffer(10, 6))
    add_session(tree, buffer(16, 16))
    tree:add_le(fields.first, buffer(32, 8))
    tree:add_le(fields.next, buffer(40, 8))
    tree:add_le(fields.nonce, buffer(48, 8))
    local text = string.format("Request: %s [%.0f, %.0f)", REQUESTS[kind] or "unknown", first, next)
    if length > REQUEST_BYTES then
        return text, "trailing_bytes"
    end
    local is_reserved_zero = buffer(10, 2):le_uint() == 0 and buffer(12, 4):le_uint() == 0
    if buffer(4, 1):uint() ~= 1 or not REQUESTS[kind] or not is_reserved_zero then
        return text, "protocol_mismatch"
    end
    local is_current = number(buffer(16, 8)) == 0 and number(buffer(24, 8)) == 0
    if not is_current and not is_session(buffer(16, 16)) then
        return text, "field_invalid"
    end
    return text, first > next and "sequence_invalid" or nil
end

function mdgw.dissector(buffer, packet_info, root)
    local length = buffer:len()
    local magic = length >= 5 and buffer(0, 4):string() or ""
    -- The version distinguishes packets from those of MoldUDP64, whose packets begin with ten letters that the venue chooses.
    if (magic ~= "MDGW" and magic ~= "MDGR") or buffer(4, 1):uint() >= 32 then
        return 0
    end
    packet_info.cols.protocol = "MDGW"
    local tree = root:add(mdgw, buffer(0, length))
    tree:add(fields.magic, buffer(0, 4))
    local text, reason
    if magic == "MDGW" then
        text, reason = add_packet(tree, buffer)
    else
        text, reason = add_request(tree, buffer)
    end
    if length < buffer:reported_len() then
        tree:add(fields.cut, buffer(0, length), true)
        text = text .. ", cut by the capture"
    end
    tree:append_text(", " .. text)
    packet_info.cols.info = text
    if reason then
        tree:add(fields.refused, buffer(0, length), reason)
        tree:add_proto_expert_info(refused_expert, "Refused by receivers: " .. reason)
        packet_info.cols.info:append(" [refused: " .. reason .. "]")
    end
    return length
end

-- Any port. A port may also be assigned: Decode As, or tshark -d udp.port==31000,mdgw.
mdgw:register_heuristic("udp", function(buffer, packet_info, root)
    return mdgw.dissector(buffer, packet_info, root) > 0
end)
DissectorTable.get("udp.port"):add_for_decode_as(mdgw)
