# Functions for the scripts `run` of this folder, which source this file with their arguments.
#
# Sets `server` (the command of the server, as an array), `kind` (`bowline` or `etcd`), `cache` (downloaded and built
# files, kept) and `work` (a temporary folder, deleted at the end). All processes started with `start` end with the script.
set -euo pipefail

gallery=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$gallery/../.." && pwd)
# Name of the folder of the script that sources this file.
folder=$(basename "$(cd "$(dirname "$0")" && pwd)")
cache=${CARGO_TARGET_DIR:-$root/target}/gallery
kind=bowline
server=()

die() {
    printf '%s: error: %s\n' "$0" "$*" >&2
    exit 2
}

while (($#)); do
    case $1 in
        --etcd)
            [[ -x ${2-} ]] || die "--etcd needs the path of an etcd program"
            kind=etcd
            server=("$(realpath "$2")")
            shift 2
            ;;
        *) die "unknown argument $1; usage: run [--etcd PATH], with BOWLINE=PATH for another bowline program" ;;
    esac
done

if [[ $kind == bowline ]]; then
    target=${CARGO_TARGET_DIR:-$root/target}
    for program in "${BOWLINE:-$target/release/bowline}" "${BOWLINE:-$target/debug/bowline}"; do
        [[ -x $program ]] && server=("$(realpath "$program")" serve) && break
    done
    ((${#server[@]})) || die "no bowline program; build one with: cargo build --release -p bowline-cli"
fi

mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
work=$(mktemp -d)
results=$work/results
groups=()
# The ids of the servers' processes, by port.
servers=()
: >"$results"

# Ends all process groups that were started, calls the function `stop_others` of the script, if any, and deletes the
# temporary folder.
finish() {
    local status=$? group
    trap - EXIT INT TERM
    for group in ${groups[@]+"${groups[@]}"}; do
        kill -KILL -- "-$group" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    if declare -F stop_others >/dev/null; then stop_others; fi
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

# start LOG COMMAND...: starts a command in a new process group. Sets `started` to the id of the group.
start() {
    local log=$1
    shift
    setsid "$@" >"$log" 2>&1 </dev/null &
    started=$!
    groups+=("$started")
}

# run_to_end LOG COMMAND...: starts a command and waits for it. Returns its exit code.
run_to_end() {
    local code=0
    start "$@"
    wait "$started" || code=$?
    # Ends processes that the command left running.
    kill -KILL -- "-$started" 2>/dev/null || true
    return "$code"
}

is_open() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# free_port: sets `port` to a free port whose successor is also free. The range is below that of outgoing connections.
free_port() {
    while port=$((20000 + RANDOM % 6000 * 2)); is_open "$port" || is_open $((port + 1)); do :; done
}

# start_member NAME PORT CLUSTER [FLAG...]: starts a server. PORT + 1 is for members.
start_member() {
    local name=$1 client=$2 cluster=$3 url=http://127.0.0.1:$2 peer=http://127.0.0.1:$(($2 + 1))
    shift 3
    ! is_open "$client" || die "port $client is in use; end the program that listens there"
    start "$work/server-$client.log" "${server[@]}" --name "$name" --data-dir="$work/server-$client" \
        --listen-client-urls="$url" --advertise-client-urls="$url" --listen-peer-urls="$peer" \
        --initial-advertise-peer-urls="$peer" --initial-cluster="$cluster" "$@"
    servers[client]=$started
}

# wait_for_server PORT: waits until the server is healthy.
wait_for_server() {
    local tries
    for ((tries = 0; tries < 300; tries++)); do
        curl -fs "http://127.0.0.1:$1/health" 2>/dev/null | grep -q '"health":"true"' && return
        kill -0 "${servers[$1]}" 2>/dev/null || break
        sleep 0.1
    done
    cat "$work/server-$1.log" >&2
    die "${server[*]} did not start"
}

# start_server PORT [FLAG...]: starts a server of one member. PORT + 1 is for members.
start_server() {
    local client=$1
    shift
    start_member default "$client" "default=http://127.0.0.1:$((client + 1))" "$@"
    wait_for_server "$client"
}

# start_cluster NAME COUNT PORT [FLAG...]: starts a cluster of the members NAME0, NAME1, ... Their ports are PORT, PORT + 2,
# and so on.
start_cluster() {
    local name=$1 count=$2 first=$3 i cluster=
    shift 3
    for ((i = 0; i < count; i++)); do cluster+=,$name$i=http://127.0.0.1:$((first + 2 * i + 1)); done
    for ((i = 0; i < count; i++)); do start_member "$name$i" $((first + 2 * i)) "${cluster#,}" "$@"; done
    for ((i = 0; i < count; i++)); do wait_for_server $((first + 2 * i)); done
}

# need NAME VERSION TOOL...: if a tool is missing, prints that the program is skipped, and ends the script.
need() {
    local name=$1 version=$2 tool
    shift 2
    for tool in curl setsid timeout "$@"; do
        command -v "$tool" >/dev/null && continue
        printf 'SKIPPED: %s %s: needs %s\n' "$name" "$version" "$tool"
        [[ -z ${BOWLINE_REQUIRE_TOOLS-} ]] || exit 1
        exit 0
    done
}

# go_module MODULE VERSION SUM: downloads a Go module, compares its sum with the pinned one and sets `module` to a
# copy that can be written to.
go_module() {
    local json source
    json=$(cd "$work" && go mod download -json "$1@$2") || die "download of $1@$2 failed: $json"
    grep -qF "\"Sum\": \"$3\"" <<<"$json" || die "$1@$2 does not have the pinned sum $3: $json"
    source=$(sed -n 's/^\t"Dir": "\(.*\)",\?$/\1/p' <<<"$json")
    # The name without the major version: etcd's modules all end with /v3.
    module=$cache/$(basename "${1%/v[0-9]}")-$2
    if [[ ! -d $module ]]; then
        rm -rf "$module.new"
        cp -R "$source" "$module.new"
        chmod -R u+w "$module.new"
        mv "$module.new" "$module"
    fi
    export GOFLAGS=-mod=mod GOTOOLCHAIN=${GOTOOLCHAIN:-local}
}

# go_tests PACKAGE [ARGUMENT...]: builds and runs the tests of a package of `module`, and adds their results. Tests with
# subtests count, as do their subtests.
go_tests() {
    local log=$work/tests.log code=0
    cd "$module"
    run_to_end "$log" nice go test -v -count=1 -timeout 20m "$@" || code=$?
    sed -n 's/^ *--- PASS: \([^ ]*\).*/pass \1/p; s/^ *--- FAIL: \([^ ]*\).*/fail \1/p;
        s/^ *--- SKIP: \([^ ]*\).*/skip \1/p' "$log" >"$work/new"
    add_results "$log" "$code" "$1"
}

# add_results LOG CODE NAME: adds the results in $work/new, which a command wrote to LOG before it ended with CODE.
add_results() {
    if (($2)) && ! grep -q '^fail ' "$work/new" || [[ ! -s $work/new ]]; then
        tail -n 50 "$1" >&2
        echo "fail $3 (no test failed, exit code $2)" >>"$work/new"
    fi
    cat "$work/new" >>"$results"
    if grep -q '^fail ' "$work/new"; then cp "$1" "$cache/$folder-failed.log"; fi
}

# python_source NAME VERSION SHA256: downloads the source of a Python package and sets `module` to its folder.
python_source() {
    module=$cache/$1-$2
    [[ ! -d $module ]] || return 0
    echo "$1==$2 --hash=sha256:$3" >"$work/source.txt"
    pip download --quiet --no-deps --no-binary "$1" --dest "$work" -r "$work/source.txt" || die "download of $1 failed"
    tar -xzf "$work/$1-$2.tar.gz" -C "$work"
    mv "$work/$1-$2" "$module"
}

# python_packages REQUIREMENT...: installs packages into a virtual environment of PYTHON and puts it first in PATH.
python_packages() {
    local environment=$cache/$folder-environment
    if [[ ! -f $environment/done || $(<"$environment/done") != "$*" ]]; then
        rm -rf "$environment"
        "${PYTHON:-python3}" -m venv "$environment"
        "$environment/bin/pip" install --quiet --no-input "$@" || die "packages for $folder cannot be installed"
        echo "$*" >"$environment/done"
    fi
    export PATH=$environment/bin:$PATH
}

# python_tests [ARGUMENT...]: runs pytest in `module` for at most LIMIT (default 20m) and adds the results.
python_tests() {
    local log=$work/tests.log code=0
    cd "$module"
    run_to_end "$log" timeout "${LIMIT:-20m}" nice python -m pytest -rA --color=no -p no:cacheprovider "$@" || code=$?
    # Reads only the summary, because other lines may contain the same words.
    sed -n '/^=* short test summary info/,$ {s/^PASSED \([^ ]*\).*/pass \1/p
        s/^\(FAILED\|ERROR\) \([^ ]*\).*/fail \2/p; s/^SKIPPED \[[0-9]*\] \([^ ]*\):.*/skip \1/p}' "$log" >"$work/new"
    add_results "$log" "$code" pytest
}

# etcdctl_program: puts etcdctl 3.5, the newest one with `snapshot status`, first in PATH.
etcdctl_program() {
    local version=v3.5.21 folder=$cache/etcdctl-v3.5.21
    if [[ ! -x $folder/etcdctl ]]; then
        mkdir -p "$work/etcdctl"
        (
            cd "$work/etcdctl"
            export GOFLAGS=-mod=mod
            go mod init etcdctl && go get "go.etcd.io/etcd/etcdctl/v3@$version"
            nice go build -o "$folder/etcdctl" go.etcd.io/etcd/etcdctl/v3
        ) >"$work/etcdctl.log" 2>&1 || die "etcdctl $version cannot be built: $(<"$work/etcdctl.log")"
    fi
    export PATH=$folder:$PATH
}

expected=()
skipped_by_suite=()

# expect_skip PATTERN REASON: tests whose names match may be skipped. Other skipped tests count as failures.
expect_skip() { skipped_by_suite+=("$1=$2"); }

# expect_failure KIND PATTERN REASON: tests whose names match may fail. KIND is `bowline`, `etcd` or `both`. For
# `bowline`, docs/etcd-compatibility.md explains the reason.
expect_failure() {
    if [[ $1 == both || $1 == "$kind" ]]; then expected+=("$2=$3"); fi
}

# report NAME VERSION: prints the failures and the counts. Ends the script, with 1 if a failure was not expected.
report() {
    local verdict name entry reason code=0 passed failed skipped
    passed=$(grep -c '^pass ' "$results" || true)
    failed=$(grep -c '^fail ' "$results" || true)
    skipped=$(grep -c '^skip ' "$results" || true)
    while read -r verdict name; do
        reason=
        if [[ $verdict == skip ]]; then
            for entry in ${skipped_by_suite[@]+"${skipped_by_suite[@]}"}; do
                # shellcheck disable=SC2053 # a pattern
                if [[ $name == ${entry%%=*} ]]; then reason=${entry#*=}; fi
            done
            printf 'skipped by the suite (%s): %s\n' "${reason:-unexpected}" "$name"
            [[ $reason ]] || code=1
            continue
        fi
        for entry in ${expected[@]+"${expected[@]}"}; do
            # shellcheck disable=SC2053 # a pattern
            if [[ $name == ${entry%%=*} ]]; then reason=${entry#*=}; fi
        done
        if [[ $verdict == pass && $reason ]]; then
            printf 'passed, though a failure was expected (%s): %s\n' "$reason" "$name"
        elif [[ $verdict == fail && $reason ]]; then
            printf 'failed as expected (%s): %s\n' "$reason" "$name"
        elif [[ $verdict == fail ]]; then
            printf 'FAILED: %s\n' "$name"
            code=1
        fi
    done <"$results"
    ((passed)) || code=1
    printf '%s %s: %d passed, %d failed' "$1" "$2" "$passed" "$failed"
    if ((skipped)); then printf ', %d skipped' "$skipped"; fi
    printf '\n'
    exit "$code"
}
