#!/bin/sh
# Creates ops/pictures/top.svg: a gateway on loopback that receives three simulated feeds, two of them on lossy lines.
#   ops/pictures/top.sh target/release/mdgw
set -eu
mdgw=$(realpath "${1:?usage: ops/pictures/top.sh PROGRAM}")
picture=$(dirname "$(realpath "$0")")/top.svg
folder=$(mktemp -d)
trap 'kill $started 2>/dev/null; wait; rm -r "$folder"' EXIT
started=

cat >"$folder/gateway.toml" <<END
[gateway]
state_file = "$folder/state"
log_dir = "$folder/log"
control_socket = "$folder/control"
segment_bytes = 4194304
retention_bytes = 16777216

[[pool]]
name = "main"
threads = 2
wait = "park"

[[output]]
groups = [1]

[[output.line]]
address = "239.255.78.10:31010"
interface = "lo"
loopback = true

[latency]
directory = "$folder/latency"
interval_ms = 2000
END
for channel in 1:nasdaq 2:bx 3:psx; do
    cat >>"$folder/gateway.toml" <<END

[[channel]]
id = ${channel%:*}
name = "${channel#*:}"
feed = "${channel#*:}-itch-5.0"
orders_max = 262144
levels_max = 262144

[[channel.line]]
name = "A"
group = "239.255.78.1:2651${channel%:*}"
interface = "lo"

[[channel.line]]
name = "B"
group = "239.255.78.2:2651${channel%:*}"
interface = "lo"
END
done

"$mdgw" run "$folder/gateway.toml" --date 2026-11-20 2>"$folder/log.txt" &
started="$started $!"
until grep -q "gateway running" "$folder/log.txt"; do sleep 0.1; done
simulate() {
    number=$1
    shift
    "$mdgw" sim --line "239.255.78.1:2651$number" --line "239.255.78.2:2651$number" --interface lo --messages 1000000 "$@" >/dev/null &
    started="$started $!"
}
simulate 1 --rate 2500 --loss 0.01 --never-on-all --skew-us 0,40
simulate 2 --rate 400 --loss 0.02 --skew-us 25,0
simulate 3 --rate 150 --skew-us 10,0
sleep 12
"$mdgw" top --socket "$folder/control" --svg "$picture" --size 100x12
