//! Every key, in the order of the file.

use super::{Absent, Allowed, Key, Table, limits, limits::Bound};

const fn key(name: &'static str, allowed: Allowed, default: Absent, effect: &'static str) -> Key {
    Key { name, allowed, default, effect }
}

/// A number with the default of its bound.
const fn number(name: &'static str, bound: Bound, effect: &'static str) -> Key {
    key(name, Allowed::Number(bound), Absent::OfBound, effect)
}

/// A required text.
const fn required(name: &'static str, allowed: &'static str, effect: &'static str) -> Key {
    key(name, Allowed::Text(allowed), Absent::Required, effect)
}

/// An optional text without a default; `absent` describes what is in force without the key.
const fn optional(name: &'static str, allowed: &'static str, absent: &'static str, effect: &'static str) -> Key {
    key(name, Allowed::Text(allowed), Absent::Depends(absent), effect)
}

const ADDRESS: &str = "IPv4 address and port";
const PATH: &str = "path";
const ADMIN_LISTEN: &str = "IPv4 address and port, or the path of a socket";
const INTERFACE: &str = "name or IPv4 address of an interface";
const KEY_FILE: &str = "path of 64 hexadecimal digits that only the owner may read";

// Keys of both stores, etcd and ZooKeeper.
const STORE_ENDPOINTS: Key = required("endpoints", "list of 1 to 9 `\"host:port\"`", "Nodes of the store.");
const STORE_USER: Key = optional("user", "text", "none", "User, with `password_file`.");
const STORE_PASSWORD_FILE: Key =
    optional("password_file", PATH, "none", "File that holds the password; only its owner may have access.");

pub(super) const TABLES: [Table; 25] = [
    Table {
        header: "[gateway]",
        about: "The gateway itself. There must be one.",
        keys: &[
            number(
                "node",
                limits::NODE,
                "Number of this gateway, part of every epoch. The gateways of a pair must differ.",
            ),
            required(
                "state_file",
                PATH,
                "Epochs and restart counts, synced to disk. It must survive a reboot; without it receivers may refuse the gateway.",
            ),
            key(
                "log_dir",
                Allowed::Text(PATH),
                Absent::Value("\"/dev/shm/mdgw\""),
                "Directory of the publication logs. In memory no write waits for a disk.",
            ),
            optional(
                "log_group",
                "name of a group",
                "the umask decides",
                "Group whose members, and nobody else, may read the publication logs ([shared memory](shared-memory.md)). The gateway's user must be a member.",
            ),
            optional("audit_file", PATH, "no audit", "Changes of leadership, each on disk before the next one."),
            optional(
                "control_socket",
                PATH,
                "no socket",
                "Unix socket for `mdgw ha`, `mdgw reload` and `mdgw top`, for this user alone.",
            ),
            number("segment_bytes", limits::SEGMENT_BYTES, "Size of one segment of a publication log."),
            number(
                "retention_bytes",
                limits::RETENTION_BYTES,
                "What the log of one channel may take: a whole number of segments, at least 2.",
            ),
            number(
                "retention_seconds",
                limits::RETENTION_SECONDS,
                "How old an entry may become; 0: as long as there is room.",
            ),
            key(
                "lock_memory",
                Allowed::Bool,
                Absent::Value("true"),
                "Whether memory is locked where the host allows it.",
            ),
        ],
    },
    Table {
        header: "[[pool]]",
        about: "A pool of threads. There must be at least one.",
        keys: &[
            required("name", "letters, digits, `-`, `_`", "Name for `channel.pool` and reports."),
            optional(
                "cores",
                "list of core numbers, 0 to 1023",
                "required, unless `threads` is given",
                "One pinned thread for each core. A core belongs to one pool only.",
            ),
            key(
                "threads",
                Allowed::Number(limits::THREADS),
                Absent::Depends("required, unless `cores` is given"),
                "Number of unpinned threads instead; for trying things out.",
            ),
            key(
                "dispatch",
                Allowed::OneOf(&["leader-followers", "half-sync", "reactor"]),
                Absent::Value("\"leader-followers\""),
                "Which thread processes which channel. `leader-followers`: any thread any channel, one at a time. `half-sync`: the first thread receives for all, the others process the channels that are theirs (two threads or more). `reactor`: each thread has channels and sockets of its own. [When which is worth it](install.md#dispatch-model).",
            ),
            key(
                "io",
                Allowed::OneOf(&["auto", "io_uring", "epoll"]),
                Absent::Value("\"auto\""),
                "I/O backend; `auto` asks the kernel and logs why it chose.",
            ),
            key(
                "wait",
                Allowed::OneOf(&["spin", "park", "spin-then-park"]),
                Absent::Value("\"spin-then-park\""),
                "Wait strategy. `spin` is for cores that nothing else uses: the leader and one follower spin, further followers sleep.",
            ),
            key(
                "promotion",
                Allowed::OneOf(&["strict", "lazy"]),
                Absent::Depends("`\"strict\"` with `wait = \"spin\"`, else `\"lazy\"`"),
                "When the leading thread promotes a follower ([glossary](../../ARCHITECTURE.md#glossary)): always before it processes, or (`lazy`) only if the work should take longer than 1 us (a follower spins) or 10 us (it sleeps).",
            ),
            number("spin_us", limits::SPIN_US, "How long `spin-then-park` spins."),
            number("quota", limits::QUOTA, "Packets that one claim may process before other channels get a turn."),
            number("batch", limits::BATCH, "Events claimed in one turn."),
            number("priority", limits::PRIORITY, "SCHED_FIFO priority of the threads; 0: ordinary threads."),
            number(
                "spare_channels",
                limits::SPARE_CHANNELS,
                "How many channels [a reload](#what-a-reload-may-change) may add to the pool. Each slot takes the memory of a channel's latency histograms, 1.3 MiB for each thread at the default precision; a removed channel gives its slot back. With another `dispatch` than `leader-followers` a pool's channels are fixed.",
            ),
        ],
    },
    Table {
        header: "[[channel]]",
        about: "One independently sequenced stream of a feed. There must be at least one.",
        keys: &[
            key("id", Allowed::Number(limits::CHANNEL_ID), Absent::Required, "Number in published packets."),
            required("name", "letters, digits, `-`, `_`", "Name in reports and alarms."),
            key(
                "feed",
                Allowed::OneOf(&["nasdaq-itch-5.0", "bx-itch-5.0", "psx-itch-5.0", "iex-tops-1.6", "iex-deep-1.0"]),
                Absent::Required,
                "Which feed it is.",
            ),
            number("group", limits::GROUP_ID, "The group whose lease covers this channel."),
            optional(
                "pool",
                "name of a pool",
                "the only pool",
                "Which pool processes it; required where there are several.",
            ),
            optional(
                "schemas",
                "list of schemas that the feed carries",
                "by feed",
                "What is published: mbo, mbp-1, mbp-10, trades, status, definition, imbalance, statistics.",
            ),
            optional(
                "date",
                "`\"YYYY-MM-DD\"`",
                "from the input, else from the clock",
                "Trading date of the next session, where it is not to be taken from the input. A session that has begun keeps its date, and dates never go back.",
            ),
            number(
                "window_packets",
                limits::WINDOW_PACKETS,
                "Packets held behind a gap: more than quota times lines. When it is full, the first gap is declared at once.",
            ),
            number(
                "gap_timeout_us",
                limits::GAP_TIMEOUT_US,
                "How long the other line may take to fill a gap before the gap is requested from the peer, then from the venue. Without either it is declared then.",
            ),
            number(
                "line_silence_ms",
                limits::LINE_SILENCE_MS,
                "No packet and no heartbeat on a line for this long raises the alarm `line-silent`.",
            ),
            number("orders_max", limits::ORDERS_MAX, "Live orders; by-order feeds only. Memory is taken at start."),
            number("levels_max", limits::LEVELS_MAX, "Price levels of all books. Memory is taken at start."),
            number("instruments_max", limits::INSTRUMENTS_MAX, "Instruments. Memory is taken at start."),
            key(
                "order_store",
                Allowed::OneOf(&["hash", "window"]),
                Absent::Value("\"hash\""),
                "How orders are found; by-order feeds only. `window` puts an array for young orders in front.",
            ),
        ],
    },
    Table {
        header: "[[channel.line]]",
        about: "One redundant copy of a channel: 1 to 7 for each channel.",
        keys: &[
            key(
                "name",
                Allowed::OneOf(&["A", "B", "C", "D", "E", "F", "G"]),
                Absent::Depends("the next letter from `A`"),
                "Name of the line.",
            ),
            required("group", ADDRESS, "Multicast group (or address of this host) and port."),
            required("interface", INTERFACE, "Where the group is joined."),
            optional("source", "list of IPv4 addresses", "any sender", "Senders that are believed."),
            number(
                "receive_buffer_bytes",
                limits::RECEIVE_BUFFER_BYTES,
                "Socket buffer. Without CAP_NET_ADMIN the kernel caps it at `net.core.rmem_max`.",
            ),
            key(
                "stamps",
                Allowed::OneOf(&["kernel", "hardware"]),
                Absent::Value("\"kernel\""),
                "Whose receive stamps: the kernel's, or the network card's where it has them.",
            ),
            number("busy_poll_us", limits::BUSY_POLL_US, "Busy polling of the socket; 0: as the system has it."),
        ],
    },
    Table {
        header: "[channel.recovery]",
        about: "The venue's retransmission server. Leave the table out where there is none.",
        keys: &[
            required("server", ADDRESS, "Where requests go."),
            number("timeout_ms", limits::RECOVERY_TIMEOUT_MS, "How long an answer of the venue may take."),
            number(
                "attempts_max",
                limits::ATTEMPTS_MAX,
                "Requests to the venue for the same position before the gap is declared.",
            ),
            number("messages_per_request_max", limits::MESSAGES_PER_REQUEST_MAX, "Messages in one request."),
            number(
                "requests_in_flight_max",
                limits::REQUESTS_IN_FLIGHT_MAX,
                "Requests in flight at the same time, each for another gap or another piece of one.",
            ),
        ],
    },
    Table {
        header: "[[output]]",
        about: "Where groups are published. A group that no output carries goes to its publication log only.",
        keys: &[
            required(
                "groups",
                "list of group numbers",
                "Which groups are published here. A group belongs to one output.",
            ),
            number(
                "payload_bytes_max",
                limits::PAYLOAD_BYTES_MAX,
                "Largest UDP payload; 1472 fits an Ethernet frame. At least 712 beside `[output.snapshots]`.",
            ),
            number("heartbeat_ms", limits::HEARTBEAT_MS, "Interval of heartbeats on idle channels."),
            optional(
                "tag_key_files",
                "list of 1 to 4 paths",
                "no tags",
                "[Keys of packet tags](packet-tags.md). The gateway tags its packets with the first key. Packets with a tag under any of the keys are accepted.",
            ),
            key(
                "accept_untagged",
                Allowed::Bool,
                Absent::Depends("`false`"),
                "Whether packets without a tag are accepted although there are keys: while the gateways change to tags.",
            ),
        ],
    },
    Table {
        header: "[[output.line]]",
        about: "One or two lines that carry the same packets.",
        keys: &[
            required("address", ADDRESS, "Multicast group and port."),
            required("interface", INTERFACE, "By which interface packets leave."),
            number("ttl", limits::TTL, "Hops that a packet may take."),
            key(
                "loopback",
                Allowed::Bool,
                Absent::Value("false"),
                "Whether receivers on this host get the packets too.",
            ),
            optional(
                "source",
                "list of IPv4 addresses",
                "any sender",
                "Addresses of the group's gateways: the standby and `mdgw tail` join for these senders only. Addresses can be forged.",
            ),
        ],
    },
    Table {
        header: "[output.snapshots]",
        about: "A group on which the leader sends [snapshots](output-protocol.md#the-snapshot-group) of the output's channels unasked, one channel after the other: receivers without a path for requests start from it. A thread of the gateway then keeps all books once more. Leave the table out to send none.",
        keys: &[
            required("address", ADDRESS, "Multicast group and port; none of the output lines."),
            required("interface", INTERFACE, "By which interface packets leave."),
            number("ttl", limits::TTL, "Hops that a packet may take."),
            key(
                "loopback",
                Allowed::Bool,
                Absent::Value("false"),
                "Whether receivers on this host get the packets too.",
            ),
            optional(
                "source",
                "list of IPv4 addresses",
                "as the lines",
                "Addresses of the group's gateways, as of an output line. `mdgw tail` joins for these senders only.",
            ),
            number(
                "interval_ms",
                limits::SNAPSHOT_INTERVAL_MS,
                "From the beginning of one round of all channels to the beginning of the next. A round that takes longer is followed by the next one at once.",
            ),
            number(
                "bytes_per_second",
                limits::SNAPSHOT_GROUP_BYTES_PER_SECOND,
                "Rate at which chunks are sent. A million orders are 64 MB.",
            ),
            number(
                "passes",
                limits::SNAPSHOT_PASSES,
                "How often each snapshot is sent. A receiver waits for a chunk that it lost until the next pass.",
            ),
        ],
    },
    Table {
        header: "[retransmission]",
        about: "Answers to our own subscribers. Leave the table out to run without.",
        keys: &[
            required("listen", ADDRESS, "Where subscribers ask."),
            required("allowed", "list of networks, such as `\"10.20.0.0/16\"`", "Nobody else is answered."),
            number("requests_per_second", limits::REQUESTS_PER_SECOND, "Per requester."),
            number("bytes_per_second", limits::BYTES_PER_SECOND, "Per requester."),
            key(
                "snapshots",
                Allowed::Bool,
                Absent::Value("false"),
                "Whether subscribers can start with a snapshot of the books. A thread of its own then keeps all books once more.",
            ),
            number("snapshot_bytes_per_second", limits::SNAPSHOT_BYTES_PER_SECOND, "Of snapshots, per requester."),
            number("packets_per_request_max", limits::PACKETS_PER_REQUEST_MAX, "Packets in the answer to one request."),
            number("requesters_max", limits::REQUESTERS_MAX, "Requesters remembered at a time."),
        ],
    },
    Table {
        header: "[live]",
        about: "Official DBN live clients over TCP, served by `mdgw live`, a process of its own: [set-up](live.md). Leave the table out to run without.",
        keys: &[
            required("listen", ADDRESS, "Where clients connect. The protocol has no encryption."),
            required(
                "key_file",
                "path",
                "Keys of the clients, a file that only its owner may read. `mdgw live` reads it again at `mdgw reload --live` or on SIGHUP.",
            ),
            optional(
                "control_socket",
                PATH,
                "no socket",
                "Unix socket at which `mdgw top` and `mdgw ha status` find the sessions, for this user alone. They look at `/run/mdgw-live/control`. `mdgw reload --live` needs it.",
            ),
            optional(
                "admin_listen",
                ADMIN_LISTEN,
                "no listener",
                "[Metrics and health](metrics.md#programs-beside-the-gateway) of `mdgw live` over HTTP, as `admin.listen` of the gateway: without encryption and passwords.",
            ),
            number(
                "sessions_max",
                limits::LIVE_SESSIONS_MAX,
                "Of all keys together; each key has a limit of its own in the key file.",
            ),
            number(
                "handshakes_max",
                limits::LIVE_HANDSHAKES_MAX,
                "Not authenticated yet, at a time; of one address at most half of them. Further ones are closed at once.",
            ),
            number(
                "handshakes_per_second",
                limits::LIVE_HANDSHAKES_PER_SECOND,
                "Further ones are closed at once. An address may have half of them.",
            ),
            number(
                "handshake_timeout_ms",
                limits::LIVE_HANDSHAKE_TIMEOUT_MS,
                "How long an authentication may take, and after it the wait for a log that is still being read.",
            ),
            number(
                "failures_per_minute",
                limits::LIVE_FAILURES_PER_MINUTE,
                "Failed authentications per address; its further connections are closed at once.",
            ),
            number("line_bytes_max", limits::LIVE_LINE_BYTES_MAX, "A longer line ends the session."),
            number(
                "symbols_max",
                limits::LIVE_SYMBOLS_MAX,
                "Per session, a symbol in several schemas once; `ALL_SYMBOLS` counts as none.",
            ),
            number(
                "queue_bytes_max",
                limits::LIVE_QUEUE_BYTES_MAX,
                "How far a session may be behind before records are skipped, or the session ends. Each dataset takes twice as much memory, shared by all sessions.",
            ),
            number(
                "journal_days_max",
                limits::LIVE_JOURNAL_DAYS_MAX,
                "With a table `[journal]`: latest trading dates of which the journals are read for what the log no longer has, at the start and for replays; 0: none.",
            ),
            number(
                "replays_max",
                limits::LIVE_REPLAYS_MAX,
                "Replays of a dataset at a time; further ones wait for their turn. Each has a thread, and books of its own.",
            ),
            number(
                "stall_seconds",
                limits::LIVE_STALL_SECONDS,
                "A client that takes nothing for that long is disconnected.",
            ),
            number("threads", limits::LIVE_THREADS, "Threads that write to clients."),
        ],
    },
    Table {
        header: "[journal]",
        about: "DBN files of what is published, written by `mdgw journal`, a process of its own: [set-up](journal.md). Leave the table out to run without.",
        keys: &[
            required(
                "directory",
                "path",
                "Folder of the journals, made if it does not exist. One process writes to it.",
            ),
            optional(
                "admin_listen",
                ADMIN_LISTEN,
                "no listener",
                "[Metrics and health](metrics.md#programs-beside-the-gateway) of `mdgw journal` over HTTP, as `admin.listen` of the gateway: without encryption and passwords.",
            ),
            key(
                "compression",
                Allowed::OneOf(&["none", "zstd"]),
                Absent::Value("\"none\""),
                "Of closed journals. An open one is plain.",
            ),
            number("flush_ms", limits::JOURNAL_FLUSH_MS, "Longest time until a record is on the disk."),
            number(
                "retention_days",
                limits::JOURNAL_RETENTION_DAYS,
                "Closed journals of earlier trading dates are removed; 0: none.",
            ),
            number(
                "retention_bytes",
                limits::JOURNAL_RETENTION_BYTES,
                "Of all journals, the open ones included. Above it the oldest closed ones are removed, but never the last of a dataset and its schemas; 0: none.",
            ),
            number(
                "free_bytes_min",
                limits::JOURNAL_FREE_BYTES_MIN,
                "Left free on the disk: below it the journal stops, with an alarm, until there is space again.",
            ),
        ],
    },
    Table {
        header: "[nats]",
        about: "Streams of NATS JetStream, written by `mdgw nats`, a process of its own: [set-up](nats.md). Leave the table out to run without. Both gateways of a pair have the same table.",
        keys: &[
            required("servers", "list of 1 to 9 `\"nats://host:port\"`", "Servers of one cluster."),
            optional(
                "admin_listen",
                ADMIN_LISTEN,
                "no listener",
                "[Metrics and health](metrics.md#programs-beside-the-gateway) of `mdgw nats` over HTTP, as `admin.listen` of the gateway: without encryption and passwords.",
            ),
            optional(
                "credentials_file",
                PATH,
                "none",
                "File of credentials (JWT and seed); only its owner may have access.",
            ),
            optional("token_file", PATH, "none", "File that holds a token; only its owner may have access."),
            optional("user", "text", "none", "User, with `password_file`."),
            optional("password_file", PATH, "none", "File that holds the password; only its owner may have access."),
            key(
                "tls",
                Allowed::Bool,
                Absent::Value("false"),
                "Whether the connection must be encrypted. `ca_file` or `certificate_file` implies it.",
            ),
            optional("ca_file", PATH, "the host's authorities", "Authority of the servers' certificates."),
            optional("certificate_file", PATH, "none", "Our certificate, with `key_file`."),
            optional("key_file", PATH, "none", "Key of our certificate; only its owner may have access."),
            key(
                "stream",
                Allowed::Text("letters, digits, `-`, `_`"),
                Absent::Value("\"mdgw\""),
                "First part of the streams' names: the stream of `XNAS.ITCH` is `mdgw-XNAS-ITCH`.",
            ),
            key(
                "subject_prefix",
                Allowed::Text("tokens of letters, digits, `-`, `_`, with dots between them"),
                Absent::Value("\"mdgw\""),
                "First tokens of each subject.",
            ),
            optional("channels", "list of names of channels", "all", "Channels to sink, of each dataset one."),
            optional("schemas", "list of schemas", "all that a channel publishes", "Schemas to sink."),
            key(
                "create_stream",
                Allowed::Bool,
                Absent::Value("true"),
                "Whether a stream is made that does not exist. The keys from `storage` to `duplicate_window_seconds` apply to streams that are made; an existing one stays as it is.",
            ),
            key(
                "storage",
                Allowed::OneOf(&["file", "memory"]),
                Absent::Value("\"file\""),
                "Where the server keeps a stream.",
            ),
            number("replicas", limits::NATS_REPLICAS, "Servers that have a stream."),
            number("bytes_max", limits::NATS_BYTES_MAX, "Size above which the oldest messages are removed; 0: none."),
            number(
                "age_max_seconds",
                limits::NATS_AGE_MAX_SECONDS,
                "Age above which messages are removed; 0: none. [Longer than any pause](nats.md#limits) between two messages.",
            ),
            number(
                "duplicate_window_seconds",
                limits::NATS_DUPLICATE_WINDOW_SECONDS,
                "For how long the server recognises a message id. At least `2 * takeover_ms + ack_timeout_ms`.",
            ),
            number(
                "takeover_ms",
                limits::NATS_TAKEOVER_MS,
                "How long a stream must be silent, while this gateway's log has more, before its sink goes on behind the other one's messages.",
            ),
            number(
                "ack_timeout_ms",
                limits::NATS_ACK_TIMEOUT_MS,
                "How long an answer may take before the stream's end is read again.",
            ),
            number("in_flight_max", limits::NATS_IN_FLIGHT_MAX, "Messages of a stream that await acknowledgement."),
        ],
    },
    Table {
        header: "[mirror]",
        about: "`mdgw mirror`, a process on a host without a gateway: [set-up](live.md#on-a-host-without-a-gateway). It runs without the table too.",
        keys: &[optional(
            "admin_listen",
            ADMIN_LISTEN,
            "no listener",
            "[Metrics and health](metrics.md#programs-beside-the-gateway) of `mdgw mirror` over HTTP, as `admin.listen` of the gateway: without encryption and passwords.",
        )],
    },
    Table {
        header: "[admin]",
        about: "[Metrics, health and a page](metrics.md) over HTTP. Leave the table out to run without.",
        keys: &[required(
            "listen",
            ADMIN_LISTEN,
            "Address, or a socket in the file system for the gateway's user alone. There is no encryption and no password: keep an address on loopback, or behind a packet filter.",
        )],
    },
    Table {
        header: "[election]",
        about: "Who publishes, where several gateways run this configuration. Without the table the gateway publishes alone. [A pair](pair.md) shows the whole set-up.",
        keys: &[
            key(
                "backend",
                Allowed::OneOf(&["file", "etcd", "zookeeper", "quorum", "emergent"]),
                Absent::Required,
                "Who grants leadership.",
            ),
            required("name", "1 to 64 letters, digits, `-`, `_` or `.`", "Name of this gateway."),
            key(
                "profile",
                Allowed::OneOf(&["default", "fast", "calm"]),
                Absent::Value("\"default\""),
                "Lease, renewal and margin: 100/20/20 ms, 40/8/8 ms, 1000/200/200 ms.",
            ),
            number(
                "lease_ms",
                limits::LEASE_MS,
                "L, the lease: a standby that was not informed of the leader's end waits this long, counted from when it learned of the last renewal, before it leads. The default is that of the profile `default`; `fast` has 40, `calm` 1000. Shorter: faster takeovers, and leadership is lost by shorter stalls. Times that could let two leases overlap are refused.",
            ),
            number(
                "renew_ms",
                limits::RENEW_MS,
                "R, the period of renewals (of heartbeats, with `emergent`), at most a third of lease less margin. The default is that of the profile `default`; `fast` has 8, `calm` 200. A store's node that leaves a request unanswered for this long is given up for the next node.",
            ),
            number(
                "margin_ms",
                limits::MARGIN_MS,
                "M, the margin: a leader stops this long before its lease ends. At least 2 x lease x `rate_error_ppm` (counted as 600 if it is less) + `send_us_max` + 1 us, and less than the lease. The default is that of the profile `default`; `fast` has 8, `calm` 200.",
            ),
            key(
                "send_us_max",
                Allowed::Number(limits::SEND_US_MAX),
                Absent::Depends("half of `margin_ms`: 10000 with the profile `default`"),
                "S, the longest time from the check of the fence to the return of the send. The margin must cover it. Longer sends are counted (`sends_slow`) and logged, not stopped.",
            ),
            number(
                "rate_error_ppm",
                limits::RATE_ERROR_PPM,
                "Bound on the error of any clock's rate: 100 ppm for the crystal, and what a time daemon slews. The default covers a slew of 500 ppm, the fastest of `adjtime`. A gateway whose clock may be off by more, or whose kernel does not report how it corrects the clock, neither renews nor takes over. A smaller bound makes others wait less, but not the margin smaller.",
            ),
            key(
                "on_suspended",
                Allowed::OneOf(&["hold", "stop"]),
                Absent::Value("\"hold\""),
                "What a leader does while its connection to the store is in doubt. `hold`: it publishes until its deadline; with `etcd` or `zookeeper` (not in latch mode) it also asks the other gateways for promises, which extend the deadline. `stop`: it closes its fence at once, thus also when one node hangs. Only for these two backends.",
            ),
            number(
                "revision",
                limits::REVISION,
                "Raise it with each change of what is published: a higher revision may follow a lower one.",
            ),
            key(
                "preferred_leader",
                Allowed::Number(limits::NODE),
                Absent::Depends("none"),
                "Gateway that leads where it can. Not for `emergent`, nor for a latch.",
            ),
            key(
                "spread",
                Allowed::Bool,
                Absent::Depends("`true` with two peers or more and no `preferred_leader`"),
                "Whether groups are spread over the gateways.",
            ),
            number(
                "tenure_ms_min",
                limits::TENURE_MS_MIN,
                "Minimum tenure: how long a leader leads before it hands over by itself, to a gateway that has been fitter, or preferred, for 250 ms. It doubles with each such move in a row, up to 300000 (or this value, if that is more). A leadership of one hour resets it to this value; with `quorum`, so does a takeover without hand-over. A leader whose output nobody receives moves at once, unless the last such move did not help either. A takeover after a death, and `mdgw ha hand-over`, never wait for it. 0: no minimum. Not for `emergent`, nor for a latch.",
            ),
            key(
                "core",
                Allowed::Number(limits::CORE),
                Absent::Depends("any core"),
                "Core of the threads `mdgw-elect-N` of all groups; never a core of a pool. Other threads of an election do not run there by themselves.",
            ),
            number(
                "priority",
                limits::PRIORITY,
                "SCHED_FIFO priority of the election threads, and of a sentinel that the gateway starts; 0: none.",
            ),
            number(
                "listener_timeout_ms",
                limits::LISTENER_TIMEOUT_MS,
                "How long listeners may delay an opening of the fence; at most half of lease less margin.",
            ),
            key(
                "kernel_fence",
                Allowed::Bool,
                Absent::Value("false"),
                "Whether the kernel refuses what is sent past the deadline. It needs root, or CAP_BPF and CAP_NET_ADMIN; with a delegated cgroup it fences a cgroup of its own, else that of the service.",
            ),
        ],
    },
    Table {
        header: "[election.file]",
        about: "For `backend = \"file\"`.",
        keys: &[key(
            "directory",
            Allowed::Text(PATH),
            Absent::Value("\"/dev/shm/mdgw-election\""),
            "Directory of the records; both gateways use the same.",
        )],
    },
    Table {
        header: "[election.etcd]",
        about: "For `backend = \"etcd\"`, in a build with the feature `etcd`.",
        keys: &[
            STORE_ENDPOINTS,
            key(
                "prefix",
                Allowed::Text("text"),
                Absent::Value("\"/mdgw/\""),
                "What all keys begin with; the record of group 1 is `/mdgw/group-1`.",
            ),
            number(
                "request_timeout_ms",
                limits::STORE_REQUEST_TIMEOUT_MS,
                "How long one request may take before its outcome counts as unknown. A leader does not wait for it: after `renew_ms` without an answer the gateway gives the node up and uses the next one. It matters where it is shorter than `renew_ms`, and for the last requests of a gateway that ends.",
            ),
            optional("ca_file", PATH, "no encryption", "Authority of the nodes' certificates."),
            optional("certificate_file", PATH, "none", "Our certificate, with `key_file`; only with `ca_file`."),
            optional("key_file", PATH, "none", "Key of our certificate; only its owner may have access."),
            STORE_USER,
            STORE_PASSWORD_FILE,
        ],
    },
    Table {
        header: "[election.zookeeper]",
        about: "For `backend = \"zookeeper\"`, in a build with the feature `zookeeper`.",
        keys: &[
            STORE_ENDPOINTS,
            key(
                "path",
                Allowed::Text("path of letters, digits, `-`, `_` and `.`"),
                Absent::Value("\"/mdgw\""),
                "Node below which ours are; the record of group 1 is `/mdgw/group-1`.",
            ),
            key(
                "mode",
                Allowed::OneOf(&["lease", "latch"]),
                Absent::Value("\"lease\""),
                "`latch`: a queue of ephemeral nodes instead of a lease that the gateways time.",
            ),
            number("session_ms", limits::STORE_SESSION_MS, "Session time-out; for `mode = \"latch\"` only."),
            number(
                "request_timeout_ms",
                limits::STORE_REQUEST_TIMEOUT_MS,
                "How long one request may take before its outcome counts as unknown. With `mode = \"lease\"` a leader does not wait for it: after `renew_ms` without an answer the gateway gives the node up and uses the next one.",
            ),
            STORE_USER,
            STORE_PASSWORD_FILE,
        ],
    },
    Table {
        header: "[election.quorum]",
        about: "For `backend = \"quorum\"`.",
        keys: &[
            required("listen", ADDRESS, "UDP address of this gateway's voter."),
            required("key_file", KEY_FILE, "Key that all voters share."),
            required("vote_directory", PATH, "Directory of the votes; it must survive a loss of power."),
        ],
    },
    Table {
        header: "[[election.quorum.voter]]",
        about: "Each other voter, gateway or witness. With this gateway 3, 5, 7 or 9.",
        keys: &[
            key("node", Allowed::Number(limits::NODE), Absent::Required, "Number of the other gateway or witness."),
            required("address", ADDRESS, "UDP address of its voter."),
        ],
    },
    Table {
        header: "[election.emergent]",
        about: "For `backend = \"emergent\"`.",
        keys: &[
            key(
                "allow_split",
                Allowed::Text("`true`"),
                Absent::Required,
                "Accepts that both sides of a network split may publish.",
            ),
            required("listen", ADDRESS, "UDP address of this gateway, as the others reach it."),
            required("key_file", KEY_FILE, "Key that all members share."),
            optional(
                "seeds",
                "list of addresses and ports",
                "required, unless `bootstrap` is true",
                "Members that this gateway asks to join.",
            ),
            key(
                "bootstrap",
                Allowed::Bool,
                Absent::Value("false"),
                "Whether this gateway bootstraps the membership if no member answers. True on exactly one.",
            ),
            key(
                "minimum_size",
                Allowed::Number(limits::MINIMUM_SIZE),
                Absent::Required,
                "Members without which nobody leads. More than half of the gateways: never two leaders.",
            ),
            number(
                "join_attempts",
                limits::JOIN_ATTEMPTS,
                "How often it asks before it bootstraps. Without `bootstrap` it keeps asking, and raises an alarm after twice as many.",
            ),
        ],
    },
    Table {
        header: "[election.link]",
        about: "The link between gateways: hand-over, gaps filled by the peer, state copy, death notices.",
        keys: &[
            required("listen", ADDRESS, "This gateway's end, TCP and UDP."),
            optional("peer", ADDRESS, "required with one peer that has no `link`", "The other gateway's end."),
            required("key_file", KEY_FILE, "Key that all gateways share."),
            key(
                "sentinel",
                Allowed::Text("`\"spawn\"`, `\"none\"` or the path of a socket"),
                Absent::Value("\"spawn\""),
                "Who reports this gateway's death: a process that it starts, nobody, or a sentinel that the service manager started.",
            ),
            number(
                "hang_limit_ms",
                limits::HANG_LIMIT_MS,
                "A leader without progress for so long is killed by the sentinel; 0: never, else at least 200 more than `listener_timeout_ms`.",
            ),
            number("history_bytes", limits::HISTORY_BYTES, "How much of each channel's input is kept for the peer."),
        ],
    },
    Table {
        header: "[[election.peer]]",
        about: "Each other gateway.",
        keys: &[
            key("node", Allowed::Number(limits::NODE), Absent::Required, "Its `gateway.node`."),
            required("name", "1 to 64 letters, digits, `-`, `_` or `.`", "Its `election.name`."),
            optional(
                "link",
                ADDRESS,
                "`election.link.peer`",
                "Its end of the link; required where there are several peers.",
            ),
        ],
    },
    Table {
        header: "[latency]",
        about: "Interval logs of latencies. [Latency](latency.md) shows what to do with them.",
        keys: &[
            optional("directory", PATH, "measured, not written", "Directory of the interval logs."),
            number("interval_ms", limits::LATENCY_INTERVAL_MS, "Length of an interval."),
            number(
                "significant_digits",
                limits::SIGNIFICANT_DIGITS,
                "Precision: 2 keeps every percentile within 1 %; 3 takes several times the memory.",
            ),
        ],
    },
    Table {
        header: "[log]",
        about: "The log of `mdgw run` and `mdgw live`. [The log](install.md#the-log) describes the formats and their fields.",
        keys: &[
            key(
                "level",
                Allowed::OneOf(&["error", "warn", "info", "debug", "trace"]),
                Absent::Value("\"info\""),
                "Least severity that is logged. Libraries log warnings and errors only, except at `trace`.",
            ),
            key(
                "format",
                Allowed::OneOf(&["auto", "text", "json", "journald"]),
                Absent::Value("\"auto\""),
                "`auto`: `journald` where standard error is connected to the journal, and `text` otherwise. `text` and `json` write one \
                 line for each event to standard error.",
            ),
            number(
                "alarm_interval_ms",
                limits::ALARM_INTERVAL_MS,
                "Each alarm about one thing is written at once, and then at most once in this interval. 0: whenever it is raised.",
            ),
        ],
    },
];
